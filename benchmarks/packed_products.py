"""Products of packed weights by rows of activations, format and size, and by kernel.

A size is N x K of the weight. Weights take turns, as many as no cache holds, up to 32 of them, so
that each is read from memory, as a model's are. GB/s counts the packed weight, the rows and the
result, each once; "/ one row" is the time over that of the least number of rows by the kernel that
glnn chooses. From 64 rows on the dense product of the same size is timed beside, in FP32. Results
of 256 of the weight's rows are held against float64 before anything is timed.

    python -m benchmarks.packed_products
    python -m benchmarks.packed_products --rows 1,2,4,8,16 --sizes 4096x4096 --formats Q4_0 --json
    python -m benchmarks.packed_products --rows 8 --kernel "gemv ROWS=1,2" --kernel gemm_skinny_8x16
    python -m benchmarks.packed_products --rows 1,8 --norm --gate silu
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.candidates import KernelSelection
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.compiler import prepare
from glnn.core.types import TensorType
from glnn.errors import GlnnError
from glnn.graph.operator import Operator
from glnn.graph.operators import Matmul, QuantizedMatmul
from glnn.graph.operators.quantized_matmul import GATES, gated, random_weight
from glnn.graph.quantization import FORMATS, QuantizedFormat
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import allowed
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

Array = NDArray[Any]
ROWS, FORMATS_MEASURED = "1,2,4,8,16", "Q4_0,Q4_K,Q8_0"
SIZES = "576x576,4096x4096,14336x4096,128256x4096"
DENSE_ROWS = 64  # from which on products are bound by arithmetic
CACHED = 1 << 28  # bytes of weights that no cache holds
MOST_WEIGHTS = 32
CHECKED_ROWS = 256  # of the weight, whose products are computed in float64
EPS = 1e-5


@dataclass(frozen=True)
class Product:
    """The product of `rows` rows by a weight of (n, k) packed numbers."""

    format: QuantizedFormat
    n: int
    k: int
    norm: bool = False
    gate: str = ""

    @property
    def operator(self) -> QuantizedMatmul:
        """The operator, whose results are half as many where there is a gate."""
        eps = EPS if self.norm else 0.0
        return QuantizedMatmul(self.format.name, self._results, self.k, eps, self.gate)

    @property
    def _results(self) -> int:
        return self.n // 2 if self.gate else self.n

    def weight(self) -> Array:
        """Return a packed weight of random numbers."""
        words = np.zeros(self.format.words(self.operator.rows, self.k), np.int32)
        return random_weight(self.format, words, self.operator.rows, self.k)

    def operands(self, weight: Array, rows: int) -> dict[str, Array]:
        """Return `weight` and random operands beside it."""
        generator = np.random.default_rng(rows)
        found: dict[str, Array] = {"x": generator.standard_normal((rows, self.k), np.float32)}
        found["weight"] = weight
        if self.norm:
            found["norm"] = generator.random(self.k, np.float32)
        return found

    def error(self, operands: dict[str, Array], result: Array) -> float:
        """Return the relative error of some columns of `result` against float64."""
        generator, x = np.random.default_rng(0), operands["x"].astype(np.float64)
        columns = np.unique(generator.integers(0, self._results, CHECKED_ROWS))
        if self.norm:
            mean = (x * x).mean(axis=1, keepdims=True)
            x = x / np.sqrt(mean + EPS) * operands["norm"]

        def products(rows: Array) -> Array:
            weight = self.format.unpack(operands["weight"], self.operator.rows, self.k, rows)
            found: Array = x @ weight.astype(np.float64).T
            return found

        expected = products(columns)
        if self.gate:
            expected = gated(self.gate).evaluate(expected, products(columns + self._results))
        return relative_error(result[:, columns], expected)


def spec_of(operator: Operator, operands: dict[str, Array]) -> OpSpec:
    """Return the operator on operands of these types."""
    return OpSpec.create(operator, {n: TensorType.from_array(a) for n, a in operands.items()}, {})


def measured(
    backend: GlBackend,
    operator: Operator,
    operands: dict[str, Array],
    kernel: Kernel,
    error: Callable[[Array], float] | None,
    repeat: int,
) -> dict[str, Any]:
    """Time `kernel`, on weights that take turns. Raises GlnnError where its result is wrong."""
    spec = spec_of(operator, operands)
    row: dict[str, Any] = {"kernel": kernel.name, "parameters": dict(kernel.defaults)}
    if error is not None:
        work, out = prepare(operator, operands, backend, kernel)
        work()
        row["error"] = error(out.pull())
        if not row["error"] <= allowed(kernel, spec):
            raise GlnnError(f"{kernel.name}: off by {row['error']:.1e}, no time is given")
        del work, out
    nbytes = operands["weight"].nbytes
    count = max(1, min(MOST_WEIGHTS, CACHED // nbytes))
    works = [prepare(operator, operands, backend, kernel)[0] for _ in range(count)]

    def all_of() -> None:
        for one in works:
            one()

    timing = time_work(backend, all_of, repeat)
    seconds = timing.seconds / count
    results = operands["x"].shape[0] * spec.result_shape[-1]
    moved = nbytes + 4 * results + operands["x"].nbytes
    flops = spec.op.cost_of(spec.types).flops
    row |= {"us": 1e6 * seconds, "by_timer": timing.by_timer, "weights": count}
    return row | {"gb_s": moved / seconds / 1e9, "tflops": flops / seconds / 1e12}


def measure(
    backend: GlBackend,
    product: Product,
    rows: list[int],
    selections: list[KernelSelection],
    repeat: int,
) -> Iterator[dict[str, Any]]:
    """Yield the time of each kernel for each number of rows."""
    weight, operator = product.weight(), product.operator
    first_us = None
    for count in rows:
        operands = product.operands(weight, count)
        spec = spec_of(operator, operands)
        chosen = backend.choose(spec)
        assert isinstance(chosen, Kernel)
        kernels = [chosen, *(k for one in selections for k in one.candidates(backend, spec))]
        key = {"format": str(product.format), "size": f"{product.n}x{product.k}", "rows": count}
        for i, kernel in enumerate(kernels):
            row: dict[str, Any] = {**key, "chosen": i == 0, "kernel": kernel.name}
            check = partial(product.error, operands)
            try:
                row |= measured(backend, operator, operands, kernel, check, repeat)
            except GlnnError as error:
                yield row | {"reason": str(error)}
                continue
            first_us = first_us or row["us"]
            yield row | {"over_one": row["us"] / first_us}


def dense(
    backend: GlBackend, size: tuple[int, int], rows: list[int], repeat: int
) -> Iterator[dict[str, Any]]:
    """Yield the time of the product with a weight of float32, for large numbers of rows."""
    (n, k), generator = size, np.random.default_rng(0)
    many = [count for count in rows if count >= DENSE_ROWS]
    weight = generator.standard_normal((n, k) if many else (0, k), np.float32)
    for count in many:
        operands = {"x": generator.standard_normal((count, k), np.float32), "weight": weight}
        row: dict[str, Any] = {"format": "dense", "size": f"{n}x{k}", "rows": count}
        try:
            kernel = backend.choose(spec_of(Matmul(), operands))
            assert isinstance(kernel, Kernel)
            row |= measured(backend, Matmul(), operands, kernel, None, repeat)
        except GlnnError as error:
            row |= {"kernel": "-", "reason": str(error)}
        yield {**row, "chosen": True}


def numbers(option: str, text: str) -> list[int]:
    """Return the numbers in `text`, by commas. Raises GlnnError."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and int(part) > 0):
            raise GlnnError(f"{option}: expected numbers as 1,2,8, got {part!r}")
    return [int(part) for part in parts]


def sizes_of(text: str) -> list[tuple[int, int]]:
    """Return the sizes in `text`, as 4096x4096, by commas. Raises GlnnError."""
    found = []
    for part in text.split(","):
        n, by, k = part.strip().partition("x")
        if not by:
            raise GlnnError(f"--sizes: expected NxK as 4096x4096, got {part!r}")
        found.append((*numbers("--sizes", n), *numbers("--sizes", k)))
    return [(n, k) for n, k in found]


def formats_of(text: str) -> list[QuantizedFormat]:
    """Return the formats in `text`, by commas. Raises GlnnError."""
    found = []
    for part in text.split(","):
        name = part.strip().lower()
        if name not in FORMATS:
            raise GlnnError(f"--formats: expected some of {', '.join(FORMATS)}, got {part!r}")
        found.append(FORMATS[name])
    return found


@click.command(help=__doc__)
@click.option("--rows", default=ROWS, show_default=True, help="Rows of activations, by commas.")
@click.option("--sizes", default=SIZES, show_default=True, help="NxK of weights, by commas.")
@click.option("--formats", default=FORMATS_MEASURED, show_default=True, help="By commas.")
@click.option(
    "--kernel", "kernels", multiple=True, help="Also a kernel, with parameters as `NAME ROWS=1,2`."
)
@click.option("--norm", is_flag=True, help="Normalise the rows before.")
@click.option("--gate", type=click.Choice(GATES), help="A gate: results are half as many.")
@click.option("--dense/--no-dense", "beside", default=True, help="The dense product beside.")
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    rows: str,
    sizes: str,
    formats: str,
    kernels: tuple[str, ...],
    norm: bool,
    gate: str | None,
    beside: bool,
    repeat: int,
    as_json: bool,
) -> None:
    selections = [KernelSelection.parse("quantized_matmul", one) for one in kernels]
    counts, shapes, packings = numbers("--rows", rows), sizes_of(sizes), formats_of(formats)
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    found: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        task = bar.add_task("timing", total=len(shapes) * len(packings))
        for n, k in shapes:
            if beside:
                found += dense(backend, (n, k), counts, repeat)
            for format in packings:
                product = Product(format, n, k, norm, gate or "")
                found += measure(backend, product, counts, selections, repeat)
                bar.advance(task)
    if as_json:
        print(json.dumps({**machine(backend.device), "rows": found}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{key} {value}" for key, value in machine(backend.device).items()))
    for n, k in shapes:
        _show(out, f"{n}x{k}", found)


def _show(out: Screen, size: str, found: list[dict[str, Any]]) -> None:
    heads = "format", ">rows", "kernel", ">us", ">GB/s", ">TFLOP/s", ">/ one row", ">error"
    shown = table(*heads)
    for row in found:
        if row["size"] != size:
            continue
        values = ",".join(f"{name}={value}" for name, value in row.get("parameters", {}).items())
        kernel = row["kernel"] + (" (chosen)" if row["chosen"] else f" {values}")
        if "reason" in row:
            shown.add(row["format"], str(row["rows"]), f"{kernel}: {row['reason']}", *"-----")
            continue
        times = (number(row.get(key)) for key in ("us", "gb_s", "tflops", "over_one"))
        off = "-" if row.get("error") is None else f"{row['error']:.1e}"
        shown.add(row["format"], str(row["rows"]), kernel, *times, off)
    out.show(shown, f"weights of {size}")


if __name__ == "__main__":
    run(main)

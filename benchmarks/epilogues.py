"""What a bias, an activation or a residual behind a product or a convolution costs each kernel.

A time is that of all launches of the operator with what follows it in their epilogue, over that of
the operator alone, by the GPU's timer where it is believed; results of up to 2^31 multiply-adds
are checked first. Where a compiler does not unroll a loop of long epilogues, sums may leave the
registers: then GELU or Mish takes several times as long as ReLU.

    python -m benchmarks.epilogues
    python -m benchmarks.epilogues --sizes 197x3072x768,1576x3072x768 --only nothing
    python -m benchmarks.epilogues --sizes 512 \\
        --kernel gemm_split_k_column_major --kernel "gemm_tiled AHEAD=0,1,2"
    python -m benchmarks.epilogues --sizes nothing --only 1x1,stem --json
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.candidates import KernelSelection
from benchmarks.command import run
from benchmarks.matmul import shape_of, sizes_of
from benchmarks.operator_cases import CONVOLUTIONS
from benchmarks.record import machine
from benchmarks.tables import table
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.tuning import describe

Array = NDArray[np.float32]
ACTIVATIONS = "ReLU", "Hardswish", "SiLU", "GELU", "Mish"
EPILOGUES = {
    "bias": BIASED,
    **{name: BIASED.then(Epilogue(call(name.lower(), Arg(0)))) for name in ACTIVATIONS},
    "Clip": BIASED.then(Epilogue(call("minimum", call("maximum", Arg(0), 0.0), 6.0))),
    "residual": BIASED.then(Epilogue(call("add", Arg(0), Arg(1)), ("full",))),
}
"""Behind a bias each, as layers have it; Clip is ReLU6 as exporters write it."""
SIZES = "128,256,384,512,768,1024,2048,197x768x768,197x2304x768,197x3072x768,1576x3072x768"
NOTHING = "nothing"
OPS = "matmul", "conv2d"


def products(text: str) -> Iterator[tuple[str, Operator, dict[str, Array]]]:
    """The products of `text`, sizes as 512 or 197x3072x768. Raises GlnnError."""
    for size in () if text == NOTHING else sizes_of(text):
        m, n, k = shape_of(size)
        generator = np.random.default_rng(k)
        x = generator.standard_normal((m, k), dtype=np.float32)
        weight = generator.standard_normal((n, k), dtype=np.float32) / np.float32(k**0.5)
        yield size, Matmul(), {"x": x, "weight": weight}


def convolutions(text: str) -> Iterator[tuple[str, Operator, dict[str, Array]]]:
    """The convolutions of benchmarks.convolutions with one of the texts of `text` in their name."""
    texts = [part.strip() for part in text.split(",") if part.strip()]
    for case in () if text == NOTHING else CONVOLUTIONS:
        if any(part in case.name for part in texts):
            yield case.name, case.operator, case.operands(1)


def measured(
    backend: GlBackend,
    name: str,
    op: Operator,
    operands: Mapping[str, Array],
    repeat: int,
    selections: tuple[KernelSelection, ...],
    epilogues: Mapping[str, Epilogue],
) -> Iterator[dict[str, Any]]:
    """Yield a row for the chosen kernel, or one for each candidate of `selections`."""
    shapes = {name: array.shape for name, array in operands.items()}
    spec = OpSpec.create(op, shapes, {})
    of_op = (one for one in selections if one.kernel.op == op.name)
    kernels = [kernel for one in of_op for kernel in one.candidates(backend, spec)]
    layouts = {"x": "nhwC4c"} if len(shapes["x"]) == 4 else None
    generator = np.random.default_rng(1)
    # The kernel chosen without an epilogue is timed with each of them.
    for kernel in kernels if selections else [backend.choose(spec)]:
        row: dict[str, Any] = {"name": name, "kernel": describe(kernel), "reasons": {}}
        try:
            alone = kernel_time(backend, op, operands, kernel, repeat, layouts=layouts)
        except GlnnError as error:
            yield {**row, "ms": None, "reasons": {"alone": str(error)}}
            continue
        row |= {"ms": 1e3 * alone.seconds, "by_timer": alone.by_timer, "error": alone.error}
        for label, epilogue in epilogues.items():
            operands_of_epilogue = {
                name: generator.standard_normal(shape, dtype=np.float32)
                for name, shape in epilogue.shapes(spec.result_shape).items()
            }
            arrays = {**operands, **operands_of_epilogue}
            try:
                time = kernel_time(backend, op, arrays, kernel, repeat, epilogue, layouts=layouts)
            except GlnnError as error:  # a kernel made of stages takes no residual
                row["reasons"][label] = str(error)
            else:
                row[label] = time.seconds / alone.seconds
        yield row


@click.command(help=__doc__)
@click.option("--sizes", default=SIZES, show_default=True, help="Of products; `nothing` for none.")
@click.option(
    "--only",
    default="1x1,3x3 64 > 64,groups,stem,depthwise",
    show_default=True,
    help="Convolutions with one of these texts in their name; `nothing` for none.",
)
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    help='As "gemm_tiled AHEAD=0,1"; may be repeated.',
)
@click.option(
    "--epilogues",
    "labels",
    default=",".join(EPILOGUES),
    show_default=True,
    help="What is measured behind each operator.",
)
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    sizes: str, only: str, kernels: tuple[str, ...], labels: str, repeat: int, as_json: bool
) -> None:
    if unknown := [label for label in labels.split(",") if label not in EPILOGUES]:
        raise GlnnError(f"--epilogues: expected some of {', '.join(EPILOGUES)}, got {unknown[0]!r}")
    epilogues = {label: EPILOGUES[label] for label in labels.split(",")}
    selections = tuple(one for text in kernels for one in _parse_kernel(text))
    cases = [*products(sizes), *convolutions(only)]
    if not cases:
        raise GlnnError(f"--sizes, --only: no product and no convolution, got {sizes}, {only}")
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    result: dict[str, Any] = {**machine(backend.device), "rows": []}
    with progress(not as_json) as bar:
        task = bar.add_task("epilogues", total=len(cases))
        for name, op, operands in cases:
            bar.update(task, description=name)
            result["rows"] += measured(backend, name, op, operands, repeat, selections, epilogues)
            bar.advance(task)
    if not result["rows"]:
        raise GlnnError("--kernel: none that is asked for computes one of these")
    if as_json:
        print(json.dumps(result, indent=2))
        return
    shown = table("operator", "kernel", ">ms alone", *(f">{label}" for label in epilogues))
    for row in result["rows"]:
        ratios = (number(row.get(label)) for label in epilogues)
        shown.add(row["name"], row["kernel"], number(row["ms"]), *ratios)
    out = Screen()
    out.show(shown, f"times over those of the operator alone on {result['device']}")
    for row in result["rows"]:
        for label, reason in row["reasons"].items():
            out.say(f"{row['name']}, {label}: {reason}")


def _parse_kernel(text: str) -> list[KernelSelection]:
    """Return the kernels of products and of convolutions that `text` names. Raises GlnnError."""
    name = text.split(maxsplit=1)[0] if text.strip() else text
    selections: list[KernelSelection] = []
    refused: list[str] = []
    for op in OPS:  # kernels of one name may have other parameters
        if name not in {kernel.name for kernel in kernels_for(op, "compute")}:
            continue
        try:
            selections.append(KernelSelection.parse(op, text))
        except GlnnError as error:
            refused.append(f"{op}: {error}")
    if not selections:
        none = f"--kernel: {' and '.join(OPS)} have no kernel {name!r}"
        raise GlnnError("; ".join(refused) or none)
    return selections


if __name__ == "__main__":
    run(main)

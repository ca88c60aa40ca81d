"""Microseconds of each kernel for the products of a perceptron's training, operands as they lie.

Of a layer's weights W (out, in), its input X (batch, in) and the gradient dY (batch, out) of its
result: Y = X W^T, dX = dY W and dW = dY^T X, all of rows that runs change. Kernels are those that
reorder none of them, with the parameters for this device; with --all also every other value of each
parameter, one at a time.

    python -m benchmarks.training_products --json
    python -m benchmarks.training_products --batches 64 --all \\
        --kernels gemm_split_k16,gemm_tiled_32x64_long_k
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.errors import GlnnError
from glnn.gl import Buffer
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import fitted
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.profiling.timing import time_work

LAYERS = ((784, 512), (512, 10), (784, 1024), (1024, 1024), (1024, 10))
HOPELESS = 4.0  # times the fastest so far: what takes longer is not measured any closer


def problems(batch: int) -> Iterator[tuple[str, OpSpec]]:
    """The products of all layers; rows of no whole fours lie padded, as kernels give them."""
    for inner, outer in LAYERS:
        layer = f"{batch} x {inner}-{outer}"
        wanted = {
            "Y": ((batch, inner), (outer, inner), "R", "R"),
            "dX": ((batch, outer), (inner, outer), "R4" if outer % 4 else "R", "C"),
            "dW": ((outer, batch), (inner, batch), "C", "C"),
        }
        for name, (x, weight, rows, lies) in wanted.items():
            if name != "dX" or inner != LAYERS[0][0]:  # nobody wants that of the images
                shapes, layouts = {"x": x, "weight": weight}, {"x": rows, "weight": lies}
                yield f"{name} {layer}", OpSpec.create(Matmul(), shapes, layouts)


def candidates(
    backend: GlBackend, spec: OpSpec, names: tuple[str, ...], every: bool
) -> Iterator[Kernel]:
    """The kernels that reorder nothing for `spec`, so called unless there are no `names`."""
    offers = backend.device.capabilities
    for declared in kernels_for("matmul", backend.name):
        kernel = fitted(declared, offers)
        if kernel is None or declared.document or (names and declared.name not in names):
            continue
        if spec.lies.moved(kernel) or not spec.fits(kernel) or kernel.stages:
            continue
        versions = [kernel]
        for parameter, values in declared.tune.items() if every else ():
            versions += [kernel.with_parameters(**{parameter: value}) for value in values]
        for version in dict.fromkeys(tuple(v.defaults.items()) for v in versions):
            one = kernel.with_parameters(**dict(version))
            if why_not(one, spec, offers) is None:
                yield one


def seconds(backend: GlBackend, spec: OpSpec, kernel: Kernel, least: float) -> float:
    """Of one run on random numbers. Raises GlnnError where it cannot run."""
    layouts = backend.layouts(kernel, spec)
    stores: dict[str, Buffer] = {}
    generator = np.random.default_rng(1)
    for name, shape in spec.shapes.items():
        stores[name] = backend.allocate(shape, layouts[name])
        stores[name].set(generator.standard_normal(shape, np.float32))
        backend.upload(stores[name])
    out = backend.allocate(spec.output, layouts["out"])
    work = backend.prepare(kernel, spec, stores, out)
    return time_work(backend, work, 5, 0.02, HOPELESS * least).seconds


def measured(
    backend: GlBackend, batches: tuple[int, ...], names: tuple[str, ...], every: bool
) -> Iterator[dict[str, Any]]:
    """A row for each product: what would be chosen, and microseconds by kernel."""
    for batch in batches:
        for name, spec in problems(batch):
            found: dict[str, float] = {}
            for kernel in candidates(backend, spec, names, every):
                least = min(found.values(), default=np.inf) / 1e6
                values = " ".join(f"{k}={v}" for k, v in kernel.defaults.items())
                try:
                    time = 1e6 * seconds(backend, spec, kernel, least)
                except GlnnError:  # what the driver alone knows
                    continue
                found[f"{kernel.name} {values}".strip()] = round(time, 2)
            sizes = {k: spec.op_sizes[k] for k in ("m", "n", "k")}
            chosen = backend.choose(spec).name
            yield {"product": name, **sizes, "chosen": chosen, "microseconds": found}


@click.command(help=__doc__)
@click.option("--backend", default="compute", show_default=True)
@click.option("--batches", default="64,100,512", show_default=True, help="By commas.")
@click.option("--kernels", "names", default="", help="By commas; all unless given.")
@click.option("--all", "every", is_flag=True, help="Every value of each parameter.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(backend: str, batches: str, names: str, every: bool, as_json: bool) -> None:
    opened = open_backend(backend)
    if not isinstance(opened, GlBackend):
        raise GlnnError(f"--backend: expected compute or feedback, got {backend}")
    counts = tuple(int(one) for one in batches.split(",") if one.strip().isdigit())
    asked = tuple(one.strip() for one in names.split(",") if one.strip())
    rows = opened.perform(lambda: list(measured(opened, counts, asked, every)))
    if as_json:
        click.echo(json.dumps({"machine": machine(opened.device), "rows": rows}))
        return
    for row in rows:
        ranked = sorted(row["microseconds"].items(), key=lambda item: item[1])[:6]
        times = ", ".join(f"{kernel} {time:g}" for kernel, time in ranked)
        click.echo(f"{row['product']}, chosen {row['chosen']}: {times} us")


if __name__ == "__main__":
    run(main)

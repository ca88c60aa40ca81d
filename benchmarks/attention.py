"""Attention of networks by kernels, those with other parameters too, beside its bounds.

A line for each case and kernel: microseconds of a run, by the GPU's own timer where that is
believed, the greater of the bounds (least bytes over the bandwidth of a copy, operations over the
greatest FP32 rate, both measured in the same run), its share of the time, the seconds of the first
run, in which a program is compiled, and with --check the relative error against NumPy in float64.
The first line of a case is of the kernel that glnn chooses. With --rows each of these is tried,
too, a kernel's name with parameters.

    python -m benchmarks.attention
    python -m benchmarks.attention --cases vit_8,whisper_1 --rows "flash TM=8; flash WG_Y=16"
"""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.command import run
from benchmarks.roofline import intensities, roof_option
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.compiler import prepare
from glnn.core.types import Array
from glnn.errors import GlnnError
from glnn.graph.operators.attention import Attention, StridedView, Windows
from glnn.kernels import kernels_for
from glnn.kernels.capability_check import fitted
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.profiling.timing import time_work
from glnn.validation.comparison import relative_error

ENCODERS = {
    "vit": (12, 197, 197, 64, False),
    "distilbert": (12, 128, 128, 64, False),
    "minilm": (6, 128, 128, 64, False),
    "gpt2": (12, 64, 64, 64, True),
    "whisper": (6, 1500, 1500, 64, False),
    "gpt2-token": (12, 1, 512, 64, False),
    "whisper-token": (6, 1, 1500, 64, False),
}
"""Heads, queries, keys, numbers of a head, and whether a mask is added, by network."""
SWIN = {"swin1": (8, 3), "swin2": (4, 6), "swin3": (2, 12), "swin4": (1, 24)}
"""Windows along each side of an image, and heads, by stage of Swin-T."""
BATCHES = (1, 8, 32)


def case(name: str) -> tuple[Attention, dict[str, Array]]:
    """Return attention as vit_8 has it, a network or stage and its batch, and random operands.

    Queries, keys and values lie in one tensor, as one product makes them, but for those of a token
    after many. Raises GlnnError for an
    unknown name.
    """
    network, _, batch = name.rpartition("_")
    if not (batch.isdecimal() and int(batch) > 0 and network in {*ENCODERS, *SWIN}):
        known = ", ".join((*ENCODERS, *SWIN))
        raise GlnnError(f"--cases: expected {known}, each with a batch as in vit_8, got {name!r}")
    images, generator = int(batch), np.random.default_rng(0)
    windows = None
    if network in SWIN:
        side, heads = SWIN[network]
        windows, width, masked = Windows(side, side, 7, 7, 3 % (7 * side), 3), 32, True
        queries = tokens = windows.tokens
        samples = images * windows.count
    else:
        heads, queries, tokens, width, masked = ENCODERS[network]
        samples = images
    all_tokens, row = tokens * samples // images, 3 * heads * width
    x = generator.standard_normal((images, all_tokens, 3, heads, width), np.float32)
    at = tuple(StridedView(i * heads * width, all_tokens * row, width, row) for i in range(3))
    operands, masks = dict.fromkeys("qkv", x), 0
    if queries != tokens:
        operands["q"] = generator.standard_normal((images, queries, heads, width), np.float32)
        at = (StridedView(0, queries * heads * width, width, heads * width), *at[1:])
    if masked:  # of windows: a bias of each head and the mask of each window of an image
        masks = 1 if windows is None else windows.count
        shape = (masks, 1 if windows is None else heads, tokens, tokens)
        operands["mask"] = generator.standard_normal(shape, np.float32)
        if windows is None:
            operands["mask"][:] = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
        each = tokens * tokens
        at = (*at, StridedView(0, shape[1] * each, each if shape[1] > 1 else 0, tokens))
    op = Attention(samples, heads, queries, tokens, width, width, at, width**-0.5, masks=masks)
    return replace(op, windows=windows), operands


def kernel_of(backend: GlBackend, row: str) -> Kernel:
    """Return the kernel of a text as "flash TM=8". Raises GlnnError where there is none."""
    name, *values = row.split()
    for declared in kernels_for("attention", backend.name):
        if declared.name == name and (fit := fitted(declared, backend.device.capabilities)):
            return fit.with_parameters(**{n: int(v) for n, v in (one.split("=") for one in values)})
    raise GlnnError(f"--rows: no kernel for attention runs here by the name {name!r}")


def measured(
    backend: GlBackend, op: Attention, operands: dict[str, Array], kernel: Kernel, exact: Any
) -> tuple[float, float, float | None]:
    """Return the seconds of a run, those of the first, which compiles the program where it is a
    new one, and the error of a run; None for the error where `exact` is.
    """

    def work() -> tuple[float, float, float | None]:
        begin = perf_counter()
        launch, out = prepare(op, operands, backend, kernel)
        launch()
        got = out.pull()
        first = perf_counter() - begin
        error = None if exact is None else relative_error(got, exact)
        launch, _ = prepare(op, operands, backend, kernel)
        return time_work(backend, launch, 3, 0.02).seconds, first, error

    return backend.perform(work)


@click.command(help=__doc__)
@click.option("--cases", help="By commas; of all networks with batches of 1, 8 and 32 by default.")
@click.option("--rows", default="", help="Kernels with parameters, separated by semicolons.")
@click.option("--check", is_flag=True, help="Print errors against NumPy in float64, too.")
@roof_option
def main(cases: str | None, rows: str, check: bool, roof_mib: int) -> None:
    names = cases.split(",") if cases else [f"{n}_{b}" for n in (*ENCODERS, *SWIN) for b in BATCHES]
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    rates = intensities(backend.device, numbers=roof_mib << 18)
    flops, bandwidth = max(r["gflops"] for r in rates) * 1e9, max(r["gb_s"] for r in rates) * 1e9
    print(f"{flops / 1e12:.3g} TFLOP/s and {bandwidth / 1e9:.0f} GB/s")
    given = [row.strip() for row in rows.split(";") if row.strip()]
    for name in names:
        op, operands = case(name)
        spec = OpSpec.create(op, {n: array.shape for n, array in operands.items()}, {})
        cost = spec.op.cost_of(spec.op_shapes)
        exact = op.compute({n: one.astype(float) for n, one in operands.items()}) if check else None
        bound = max(cost.flops / flops, cost.bytes / bandwidth)
        print(f"{name}: bound {1e6 * bound:.1f} us")
        masked = "_masked" if "mask" in operands else ""
        kernels = [backend.choose(spec)]
        for row in given:
            known, *values = row.split()
            kernels.append(kernel_of(backend, " ".join((known + masked, *values))))
        for kernel in kernels:
            text = " ".join((kernel.name, *(f"{n}={v}" for n, v in kernel.defaults.items())))
            try:
                time, first, error = measured(backend, op, operands, kernel, exact)
            except GlnnError as refusal:
                print(f"  {text}: {str(refusal).splitlines()[0]}", flush=True)
                continue
            text += "" if error is None else f", off by {error:.1e}"
            print(f"  {1e6 * time:8.1f} us {bound / time:4.0%} {first:5.2f} s  {text}", flush=True)


if __name__ == "__main__":
    run(main)

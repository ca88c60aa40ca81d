"""Convolutions of the networks that people run, one by one, beside cuDNN and the roofline.

Everything is on the device, images as the kernel takes them; a time is that of all launches of a
convolution, by the GPU's timer where it is believed. PyTorch's is that of a CUDA graph of several,
with cuDNN's benchmark on and TF32 off. The roof is the greater of operations over the device's
greatest FP32 rate and bytes, each once, over the bandwidth of a copy, both measured in the same
run; "of the roof" is its share of glnn's time, and small convolutions are bound by the time of a
launch, which it does not count.

    python -m benchmarks.convolutions
    python -m benchmarks.convolutions --batch 8 --only depthwise,stem --json
    python -m benchmarks.convolutions --no-peers --repeat 3

With --kernel those kernels are timed, with these values of their parameters, wherever they can
compute a convolution; without it, the one that would be chosen.

    python -m benchmarks.convolutions --only "groups 32" --kernel implicit \\
        --kernel "grouped_nhwc WG_X=8,16 PX=1,2"
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.candidates import Asked
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.roofline import intensities, roof_option
from benchmarks.tables import table
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.graph.operators import Conv2d
from glnn.kernels.op_spec import OpSpec
from glnn.tuning import describe
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Peer = Callable[["Case", Array, Array], "tuple[float, Array]"]
WITHIN = 1e-4  # the relative error of the peer's result: more is not the same convolution
GRAPH = 20  # convolutions of a CUDA graph


@dataclass(frozen=True)
class Case:
    """A convolution of images of `c` channels and `side` x `side` pixels."""

    name: str
    c: int
    o: int
    side: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def operator(self) -> Conv2d:
        """With as much padding as keeps the size, but for the stride."""
        down, across = (self.dilation * (k - 1) // 2 for k in self.kernel)
        two = (self.stride, self.stride), (self.dilation, self.dilation)
        return Conv2d(two[0], (down, across, down, across), two[1], self.groups)

    def operands(self, batch: int) -> dict[str, Array]:
        """Random ones, of so many images."""
        generator = np.random.default_rng(self.c)
        shape = self.o, self.c // self.groups, *self.kernel
        size = batch, self.c, self.side, self.side
        x = generator.standard_normal(size, dtype=np.float32)
        weight = generator.standard_normal(shape, dtype=np.float32) / np.float32(shape[1] ** 0.5)
        return {"x": x, "weight": weight}


CASES = (
    Case("1x1 64 > 256, 56", 64, 256, 56),
    Case("1x1 256 > 64, 56", 256, 64, 56),
    Case("1x1 512 > 128, 28", 512, 128, 28),
    Case("1x1 256 > 1024, 14", 256, 1024, 14),
    Case("1x1 1024 > 256, 14", 1024, 256, 14),
    Case("1x1 2048 > 512, 7", 2048, 512, 7),
    Case("1x1 24 > 144, 56", 24, 144, 56),
    Case("1x1 320 > 1280, 7", 320, 1280, 7),
    Case("1x1 stride 2 256 > 512, 56", 256, 512, 56, stride=2),
    Case("3x3 64 > 64, 224", 64, 64, 224, (3, 3)),
    Case("3x3 64 > 64, 56", 64, 64, 56, (3, 3)),
    Case("3x3 128 > 128, 28", 128, 128, 28, (3, 3)),
    Case("3x3 256 > 256, 14", 256, 256, 14, (3, 3)),
    Case("3x3 512 > 512, 28", 512, 512, 28, (3, 3)),
    Case("3x3 512 > 512, 7", 512, 512, 7, (3, 3)),
    Case("3x3 128 > 32, 14", 128, 32, 14, (3, 3)),
    Case("3x3 stride 2 128 > 128, 56", 128, 128, 56, (3, 3), 2),
    Case("3x3 stride 2 512 > 512, 14", 512, 512, 14, (3, 3), 2),
    Case("3x3 dilation 2 256 > 256, 28", 256, 256, 28, (3, 3), 1, 2),
    Case("3x3 groups 32 128 > 128, 56", 128, 128, 56, (3, 3), 1, 1, 32),
    Case("3x3 groups 32 256 > 256, 28", 256, 256, 28, (3, 3), 1, 1, 32),
    Case("3x3 groups 32 512 > 512, 14", 512, 512, 14, (3, 3), 1, 1, 32),
    Case("3x3 groups 32 1024 > 1024, 7", 1024, 1024, 7, (3, 3), 1, 1, 32),
    Case("5x5 48 > 64, 35", 48, 64, 35, (5, 5)),
    Case("1x7 192 > 192, 17", 192, 192, 17, (1, 7)),
    Case("7x1 192 > 192, 17", 192, 192, 17, (7, 1)),
    Case("stem 7x7 stride 2 3 > 64, 224", 3, 64, 224, (7, 7), 2),
    Case("stem 3x3 stride 2 3 > 32, 224", 3, 32, 224, (3, 3), 2),
    Case("stem 3x3 3 > 64, 224", 3, 64, 224, (3, 3)),
    Case("depthwise 3x3 144, 56", 144, 144, 56, (3, 3), 1, 1, 144),
    Case("depthwise 3x3 stride 2 96, 112", 96, 96, 112, (3, 3), 2, 1, 96),
    Case("depthwise 3x3 960, 7", 960, 960, 7, (3, 3), 1, 1, 960),
    Case("depthwise 3x3 dilation 2 576, 28", 576, 576, 28, (3, 3), 1, 2, 576),
    Case("depthwise 5x5 240, 28", 240, 240, 28, (5, 5), 1, 1, 240),
    Case("depthwise 5x5 stride 2 672, 14", 672, 672, 14, (5, 5), 2, 1, 672),
    Case("depthwise 7x7 96, 56", 96, 96, 56, (7, 7), 1, 1, 96),
    Case("transposed 2x2 stride 2 256 > 128, 28, in phases", 256, 512, 28),
    Case("transposed 3x3 256 > 256, 14", 256, 256, 14, (3, 3)),
)
"""A transposed convolution is one of all phases of its result, or of the turned weights."""


def cudnn() -> Peer | None:
    """PyTorch's seconds and result, by cuDNN in a CUDA graph; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True

    def timed(case: Case, x: Array, weight: Array) -> tuple[float, Array]:
        image, kernel = torch.from_numpy(x).cuda(), torch.from_numpy(weight).cuda()
        op = case.operator

        def work() -> Any:
            padding = op.padding[:2]
            return torch.conv2d(image, kernel, None, op.stride, padding, op.dilation, op.groups)

        for _ in range(3):
            out = work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH):
                out = work()
        times = []
        for _ in range(12):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3 / GRAPH)
        return median(times[2:]), out.cpu().numpy()

    return timed


def measured(
    backend: GlBackend,
    case: Case,
    batch: int,
    repeat: int,
    peer: Peer | None,
    roof: tuple[float, float],
    asked: tuple[Asked, ...] = (),
) -> Iterator[dict[str, Any]]:
    """A row, or one for each kernel asked for.

    roof: operations and bytes that the device does in a second.
    """
    op, operands = case.operator, case.operands(batch)
    shapes = {name: array.shape for name, array in operands.items()}
    spec = OpSpec.create(op, shapes, {})
    kernels = [kernel for one in asked for kernel in one.able(backend, spec)]
    seconds, flops = None, op.flops(shapes)
    if peer is not None and (kernels or not asked):
        seconds, result = peer(case, operands["x"], operands["weight"])
        error = relative_error(result, op.compute(operands))
        if not error <= WITHIN:
            raise GlnnError(f"{case.name}: PyTorch's result is off by {error:.1e}")
    for kernel in kernels if asked else (None,):
        found = kernel_time(backend, op, operands, kernel, repeat, layouts={"x": "nhwC4c"})
        bound = max(flops / roof[0], found.nbytes / roof[1])
        row: dict[str, Any] = {"name": case.name, "ms": 1e3 * found.seconds}
        row |= {"kernel": describe(kernel) if kernel else found.kernel, "error": found.error}
        row |= {"gflop": flops / 1e9, "of_roof": bound / found.seconds}
        if seconds is not None:
            row |= {"cudnn_ms": 1e3 * seconds, "over_cudnn": found.seconds / seconds}
        yield row


@click.command(help=__doc__)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--only", help="Those with one of these texts, with commas between, in their name.")
@click.option(
    "--kernel", "kernels", multiple=True, help='As "grouped_nhwc PX=1,2"; may be repeated.'
)
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch on CUDA.")
@roof_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    batch: int,
    only: str | None,
    kernels: tuple[str, ...],
    repeat: int,
    peers: bool,
    roof_mib: int,
    as_json: bool,
) -> None:
    texts = [text.strip() for text in (only or "").split(",")]
    cases = [case for case in CASES if any(text in case.name for text in texts)]
    if not cases:
        raise GlnnError(f"--only: no convolution has {only!r} in its name")
    asked = tuple(Asked.of("conv2d", text) for text in kernels)
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    rates = intensities(backend.device, numbers=roof_mib << 18)
    roof = max(r["gflops"] for r in rates) * 1e9, max(r["gb_s"] for r in rates) * 1e9
    result: dict[str, Any] = {**machine(backend.device), "batch": batch}
    result |= {"roof_gflops": roof[0] / 1e9, "roof_gb_s": roof[1] / 1e9, "rows": []}
    peer = cudnn() if peers else None
    with progress(not as_json) as bar:
        task = bar.add_task("convolutions", total=len(cases))
        for case in cases:
            bar.update(task, description=case.name)
            result["rows"] += measured(backend, case, batch, repeat, peer, roof, asked)
            bar.advance(task)
    if not result["rows"]:
        raise GlnnError("--kernel: none that is asked for computes one of these convolutions")
    if as_json:
        print(json.dumps(result, indent=2))
        return
    shown = table(
        "convolution", "kernel", ">ms", ">cuDNN ms", ">over cuDNN", ">of the roof", ">error"
    )
    for row in result["rows"]:
        error = "-" if row["error"] is None else f"{row['error']:.1e}"
        times = (number(row.get(key)) for key in ("ms", "cudnn_ms", "over_cudnn"))
        shown.add(row["name"], row["kernel"], *times, f"{row['of_roof']:.0%}", error)
    what = f"{roof[0] / 1e12:.3g} TFLOP/s and {roof[1] / 1e9:.0f} GB/s"
    Screen().show(shown, f"batch {batch} on {result['device']}: the roof {what}")


if __name__ == "__main__":
    run(main)

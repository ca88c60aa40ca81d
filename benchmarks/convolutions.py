"""Convolutions of popular networks, one by one, beside PyTorch and the roofline.

Operands are on the device, images in the layout that they have in networks. A time is that of all
launches of a convolution, by the GPU's timer where it is reliable; PyTorch's, of a CUDA graph of
several runs, with cuDNN's benchmark on and TF32 off. Results are checked against NumPy in
float64: those of the first and of the last sample, or all where samples depend on one another. The
roof is the greater of two bounds: FLOPs over the peak FP32 rate, and bytes, each moved once, over
the bandwidth of a copy, both measured in the same run. "share" is the roof's share of glnn's time;
small convolutions are bound by the time of a launch, which the roof does not include.

    python -m benchmarks.convolutions
    python -m benchmarks.convolutions --batch 8 --only depthwise,stem --json
    python -m benchmarks.convolutions --no-peers --repeat 3

With --all the other operators of networks are timed, too, in their layouts: pools, normalisations,
softmax, moves and attention.

    python -m benchmarks.convolutions --all --batch 32 --only "pool,norm"

With --kernel the named kernels are timed, with each of the given values of their parameters,
wherever they can compute a convolution; without it, the kernel that glnn chooses.

    python -m benchmarks.convolutions --only "groups 32" --kernel implicit \\
        --kernel "grouped_nhwc WG_X=8,16 PX=1,2"
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.candidates import KernelSelection
from benchmarks.command import run
from benchmarks.operator_cases import CASES, CONVOLUTIONS, OperatorCase
from benchmarks.record import machine
from benchmarks.roofline import intensities, roof_option
from benchmarks.timing import kernel_time
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import number
from glnn.core.types import TensorType
from glnn.errors import GlnnError
from glnn.graph.operator import Operator
from glnn.kernels.op_spec import OpSpec
from glnn.tuning import describe

Array = NDArray[Any]
Peer = Callable[[OperatorCase, Mapping[str, Array]], "tuple[float, Array]"]
PEER_TOLERANCE = 1e-4  # relative error of PyTorch's result: more is not the same convolution
LINE = "{:>7} {:>7} {:>5} {:>7} {:>5} {:>7}  {}"
GRAPH_RUNS = 20  # runs of an operator in a CUDA graph


def cuda_graph() -> Peer | None:
    """Return a function that times PyTorch in a CUDA graph; None where there is no CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True

    def timed(case: OperatorCase, operands: Mapping[str, Array]) -> tuple[float, Array]:
        tensors: dict[int, Any] = {}  # attention has one array as several operands
        for array in operands.values():
            tensors.setdefault(id(array), torch.from_numpy(array).cuda())
        inputs = {name: tensors[id(array)] for name, array in operands.items()}
        assert case.torch is not None
        for _ in range(3):
            out = case.torch(torch, inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_RUNS):
                out = case.torch(torch, inputs)
        times = []
        for _ in range(8):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(end)) / 1e3 / GRAPH_RUNS)
        return median(times[2:]), out.cpu().numpy()

    return timed


def _spec(
    op: Operator, operands: Mapping[str, Array], layouts: Mapping[str, str] | None = None
) -> OpSpec:
    types = {name: TensorType.from_array(array) for name, array in operands.items()}
    return OpSpec.create(op, types, layouts or {})


def measured(
    backend: GlBackend,
    case: OperatorCase,
    batch: int,
    repeat: int,
    peer: Peer | None,
    roof: tuple[float, float],
    selections: tuple[KernelSelection, ...] = (),
) -> Iterator[dict[str, Any]]:
    """Yield a row for the chosen kernel, or one for each candidate of `selections`.

    roof: FLOPs and bytes a second of the device.
    """
    op, operands = case.make(batch)
    spec, samples = _spec(op, operands), case.checked(op, operands)
    of_op = (one for one in selections if one.kernel.op == op.name)
    kernels: list[Any] = [kernel for one in of_op for kernel in one.candidates(backend, spec)]
    if not selections:
        kernels = [backend.choose(_spec(op, operands, case.layouts))]
    seconds = None
    if peer is not None and case.torch is not None and kernels:
        seconds, result = peer(case, operands)
        error = float(np.max([one.error(result) for one in samples]))  # NaN if one is
        if not error <= PEER_TOLERANCE:
            raise GlnnError(f"{case.name}: PyTorch's result is off by {error:.1e}")
    bound = max(spec.cost.flops / roof[0], spec.cost.bytes / roof[1])
    for kernel in kernels:
        time = kernel_time(
            backend, op, operands, kernel, repeat, layouts=case.layouts, samples=samples
        )
        row: dict[str, Any] = {"name": case.name, "ms": 1e3 * time.seconds}
        row |= {"kernel": describe(kernel) if selections else time.kernel, "error": time.error}
        row |= {"gflop": spec.cost.flops / 1e9, "bound_ms": 1e3 * bound}
        row |= {"of_roof": bound / time.seconds}
        if seconds is not None:
            row |= {"pytorch_ms": 1e3 * seconds, "over_pytorch": time.seconds / seconds}
        yield row


def _operator_and_kernel(text: str) -> tuple[str, str]:
    """Split "softmax=rows LANES=32" into the operator, conv2d unless given, and the kernel."""
    first, blank, values = text.partition(" ")
    operator, _, kernel = first.rpartition("=")
    return operator or "conv2d", kernel + blank + values


@click.command(help=__doc__)
@click.option("--all", "all_operators", is_flag=True, help="Other operators of networks, too.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--only", help="Those with one of these texts, with commas between, in their name.")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    help='As "grouped_nhwc PX=1,2", of others "softmax=rows LANES=32"; may be repeated.',
)
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch on CUDA.")
@roof_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    all_operators: bool,
    batch: int,
    only: str | None,
    kernels: tuple[str, ...],
    repeat: int,
    peers: bool,
    roof_mib: int,
    as_json: bool,
) -> None:
    texts = [text.strip() for text in (only or "").split(",")]
    known = CASES if all_operators else tuple(one.case for one in CONVOLUTIONS)
    cases = [case for case in known if any(text in case.name for text in texts)]
    if not cases:
        what = "operator" if all_operators else "convolution"
        raise GlnnError(f"--only: no {what} has {only!r} in its name")
    selections = tuple(KernelSelection.parse(*_operator_and_kernel(text)) for text in kernels)
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    rates = intensities(backend.device, numbers=roof_mib << 18)
    roof = max(r["gflops"] for r in rates) * 1e9, max(r["gb_s"] for r in rates) * 1e9
    result: dict[str, Any] = {**machine(backend.device), "batch": batch}
    result |= {"roof_gflops": roof[0] / 1e9, "roof_gb_s": roof[1] / 1e9, "rows": []}
    peer = cuda_graph() if peers else None
    if not as_json:
        print(
            f"batch {batch} on {result['device']}: the roof {roof[0] / 1e12:.3g} TFLOP/s and ",
            end="",
        )
        print(f"{roof[1] / 1e9:.0f} GB/s")
        print(LINE.format("us", "bound", "share", "PyTorch", "over", "error", "operator, kernel"))
    for case in cases:
        try:
            for row in measured(backend, case, batch, repeat, peer, roof, selections):
                result["rows"].append(row)
                if not as_json:
                    _show(row)
        except GlnnError as error:  # the other cases go on
            result["rows"].append({"name": case.name, "reason": str(error)})
            if not as_json:
                print(f"{case.name}: {str(error).splitlines()[0]}", flush=True)
    if not result["rows"]:
        raise GlnnError("--kernel: none that is asked for computes one of these operators")
    if as_json:
        print(json.dumps(result, indent=2))


def _show(row: Mapping[str, Any]) -> None:
    """Print a row as a line at once, so that it is there even if the run is interrupted."""
    ours, bound, torch = (
        number(None if row.get(key) is None else 1e3 * row[key])
        for key in ("ms", "bound_ms", "pytorch_ms")
    )
    error = "-" if row["error"] is None else f"{row['error']:.1e}"
    share, over = f"{row['of_roof']:.0%}", number(row.get("over_pytorch"))
    text = f"{row['name']}, {row['kernel']}"
    print(LINE.format(ours, bound, share, torch, over, error, text), flush=True)


if __name__ == "__main__":
    run(main)

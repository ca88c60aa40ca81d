"""One network by PyTorch, in a process of its own (see `benchmarks.network_process`).

FP32 without TF32: eagerly and, where there is CUDA, as a CUDA graph of the eager network, and as
one of the network after torch.compile. The CUDA graph in FP16, whose products tensor cores compute,
has the same float32 input and a float32 output. The reference is computed in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from benchmarks import torch_zoo
from benchmarks.network_process import (
    COMPILED,
    EAGER,
    GRAPH,
    HALF,
    REFERENCE,
    MeasureRows,
    NetworkRequest,
    Row,
    serve,
)

WARM_UP = 3  # runs before a graph is captured, in which cuDNN picks its algorithms
Runs = tuple[Callable[[], NDArray[Any]], Callable[[], None]]
"""A run from host array to host array, and one whose input and output stay on the device."""


def eager_runs(net: Any, host: Any, device: str) -> Runs:
    """Run `net` operator by operator."""
    static = host.to(device)

    def run() -> NDArray[Any]:
        result: NDArray[Any] = net(host.to(device)).cpu().numpy()
        return result

    def resident() -> None:
        net(static)
        if device == "cuda":
            torch.cuda.synchronize()

    return run, resident


def graph_runs(net: Any, host: Any) -> Runs:
    """Run `net` as a CUDA graph."""
    static = host.to("cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            net(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(static)

    def run() -> NDArray[Any]:
        static.copy_(host)
        graph.replay()
        result: NDArray[Any] = output.cpu().numpy()
        return result

    def resident() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run, resident


def with_dtype(net: Any, dtype: Any) -> Callable[[Any], Any]:
    """Return a copy of `net` that computes in `dtype` and takes inputs of any float type.

    Images are channels-last in FP16, as tensor cores take them.
    """
    copy, last = deepcopy(net).to(dtype), torch.channels_last
    if dtype == torch.float16:
        copy = copy.to(memory_format=last)

    def run(x: Any) -> Any:
        if x.is_floating_point():
            images = dtype == torch.float16 and x.ndim == 4
            x = x.to(dtype, memory_format=last if images else torch.preserve_format)
        return copy(x)

    return run


def load(request: NetworkRequest) -> MeasureRows:
    """Build the network with its weights; the first row moves it to the device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch_zoo.loaded(request.network, Path(request.path).with_suffix(torch_zoo.WEIGHTS))

    def runs_of(name: str, host: Any) -> Runs:
        if name == EAGER:
            return eager_runs(net, host, device)
        if name == GRAPH:
            return graph_runs(net, host)
        if name == HALF:
            half = with_dtype(net, torch.float16)
            return graph_runs(lambda x: half(x).float(), host)
        torch._dynamo.reset()
        return graph_runs(torch.compile(net, dynamic=False), host)

    def reference(host: Any) -> NDArray[Any]:
        with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
            return eager_runs(with_dtype(net, torch.float64), host, device)[0]()

    def measure(batch: int, name: str, host: Any) -> Row:
        if name == REFERENCE:
            return request.save_result(batch, name, reference(host))
        run, resident = runs_of(name, host)
        row = request.save_result(batch, name, run())
        row |= request.time_work(run)
        row["resident_ms"] = request.time_work(resident, warm=True)["median_ms"]
        return {**row, "version": f"{torch.__version__} on {device}"}

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Row]:
        net.to(device)
        host = torch.from_numpy(request.network.input(batch))
        for name in names:
            if device != "cuda" and name in (GRAPH, HALF, COMPILED):
                yield {"name": name, "failed": "needs CUDA"}
                continue
            try:
                with torch.no_grad():
                    row = measure(batch, name, host)
            except Exception as error:  # whatever it is, only this row fails
                row = {"name": name, "failed": f"{type(error).__name__}: {error}"}
            yield row
            if device == "cuda":
                torch.cuda.empty_cache()

    return rows


if __name__ == "__main__":
    serve(load)

"""One network by PyTorch, in a process of its own (see `benchmarks.network_process`).

FP32 without TF32: eagerly and, where there is CUDA, as a CUDA graph, and as one of what
torch.compile makes of it. A CUDA graph in FP16, whose products tensor cores compute, begins with
the same float32 input and ends with a float32 output. The reference is computed in float64.
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
    Asked,
    Found,
    Rows,
    serve,
)

WARM_UP = 3  # runs before a graph is captured, in which cuDNN picks its algorithms
Ways = tuple[Callable[[], NDArray[Any]], Callable[[], None]]
"""What runs a network from host array to host array, and on data that is there already."""


def eagerly(net: Any, host: Any, where: str) -> Ways:
    """Run `net` operator by operator."""
    static = host.to(where)

    def run() -> NDArray[Any]:
        result: NDArray[Any] = net(host.to(where)).cpu().numpy()
        return result

    def resident() -> None:
        net(static)
        if where == "cuda":
            torch.cuda.synchronize()

    return run, resident


def as_graph(net: Any, host: Any) -> Ways:
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


def of_type(net: Any, dtype: Any) -> Callable[[Any], Any]:
    """Return a copy of `net` that computes in `dtype`, of inputs of any type of floats.

    Images lie channels last in FP16, as tensor cores take them.
    """
    same, last = deepcopy(net).to(dtype), torch.channels_last
    if dtype == torch.float16:
        same = same.to(memory_format=last)

    def run(x: Any) -> Any:
        if x.is_floating_point():
            images = dtype == torch.float16 and x.ndim == 4
            x = x.to(dtype, memory_format=last if images else torch.preserve_format)
        return same(x)

    return run


def load(asked: Asked) -> Rows:
    """Make the network with its weights, which are moved to the device with its first row."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    where = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch_zoo.loaded(asked.network, Path(asked.path).with_suffix(torch_zoo.WEIGHTS))

    def ways(name: str, host: Any) -> Ways:
        if name == EAGER:
            return eagerly(net, host, where)
        if name == GRAPH:
            return as_graph(net, host)
        if name == HALF:
            half = of_type(net, torch.float16)
            return as_graph(lambda x: half(x).float(), host)
        torch._dynamo.reset()
        return as_graph(torch.compile(net, dynamic=False), host)

    def reference(host: Any) -> NDArray[Any]:
        with torch.backends.cudnn.flags(benchmark=False, allow_tf32=False):
            return eagerly(of_type(net, torch.float64), host, where)[0]()

    def measured(batch: int, name: str, host: Any) -> Found:
        if name == REFERENCE:
            return asked.saved(batch, name, reference(host))
        run, resident = ways(name, host)
        found = asked.saved(batch, name, run())
        times = {**asked.timed(run), "resident_ms": asked.timed(resident, warm=True)["median_ms"]}
        return {**found, **times, "version": f"{torch.__version__} on {where}"}

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Found]:
        net.to(where)
        host = torch.from_numpy(asked.network.input(batch))
        for name in names:
            if where != "cuda" and name in (GRAPH, HALF, COMPILED):
                yield {"name": name, "failed": "needs CUDA"}
                continue
            try:
                with torch.no_grad():
                    found = measured(batch, name, host)
            except Exception as error:  # whatever it is, it costs this row alone
                found = {"name": name, "failed": f"{type(error).__name__}: {error}"}
            yield found
            if where == "cuda":
                torch.cuda.empty_cache()

    return rows


if __name__ == "__main__":
    serve(load)

"""One network by PyTorch, in a process of its own (see `benchmarks.network_process`).

FP32 without TF32, eagerly and, where there is CUDA, as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import torch_zoo
from benchmarks.network_process import GRAPH, Asked, Found, answer, peak_mib

WARM_UP = 3  # runs before a graph is captured, in which cuDNN picks its algorithms
Ways = tuple[Callable[[], NDArray[Any]], Callable[[], None]]


def eagerly(net: Any, host: Any, where: str) -> Ways:
    """What runs `net` from host array to host array, and on data that is there already."""
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
    """The same of a CUDA graph."""
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


def timed(asked: Asked, found: Ways) -> Found:
    """The times of both of `found`."""
    run, resident = found
    return {**asked.timed(run), "resident_ms": asked.timed(resident)["median_ms"]}


def captured(asked: Asked, net: Any, host: Any) -> Found:
    """How it runs as a CUDA graph; `failed` says why it does not."""
    try:
        ways = as_graph(net, host)
        np.save(f"{asked.result}{GRAPH}", ways[0]())
        return timed(asked, ways)
    except RuntimeError as error:
        return {"failed": str(error)}


def main(asked: Asked) -> Found:
    """How it starts and runs eagerly; `graph`: how as a CUDA graph, None without CUDA."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    where = "cuda" if torch.cuda.is_available() else "cpu"
    host = torch.from_numpy(asked.input)
    nets: list[Any] = []

    def load() -> Callable[[], NDArray[Any]]:
        nets.append(torch_zoo.built(asked.network, asked.seed).to(where))
        return eagerly(nets[0], host, where)[0]

    with torch.no_grad():
        found, _ = asked.start(load)
        found |= timed(asked, eagerly(nets[0], host, where))
        graph = captured(asked, nets[0], host) if where == "cuda" else None
    common = {"version": f"{torch.__version__} on {where}", "host_mib": peak_mib()}
    return {**found, **common, "graph": graph and {**graph, **common}}


if __name__ == "__main__":
    answer(main(Asked.from_arguments()))

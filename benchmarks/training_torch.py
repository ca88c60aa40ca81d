"""Steps of training by PyTorch, in a process of its own (see `benchmarks.training_process`).

FP32 without TF32, eagerly and, where there is CUDA, as a CUDA graph of the whole step: forward,
cross-entropy, backward and SGD with momentum. A step begins with copying a batch from host arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.network_process import answer
from benchmarks.peers import torch_layers, torch_network
from benchmarks.training_process import (
    CHECKED,
    MOMENTUM,
    RATE,
    Asked,
    Found,
    Work,
    batches,
    timed,
)

WARM_UP = 3  # steps before a graph is captured, in which cuDNN picks its algorithms
Hosts = list[tuple[Any, Any]]


class Training:
    """A network of PyTorch with its optimiser and the loss of the last step."""

    def __init__(self, work: Work, where: str) -> None:
        model = work.model()
        self.where = where
        self.layers = torch_layers(torch, model, where)
        self.net = torch_network(model, self.layers)
        modules = [layer for layer in self.layers if isinstance(layer, torch.nn.Module)]
        self._parameters = [p for module in modules for p in module.parameters()]
        self._optimizer = torch.optim.SGD(self._parameters, lr=RATE, momentum=MOMENTUM)
        self._buffers = [b for module in modules for b in module.buffers()]
        self.loss: Any = None

    def update(self, x: Any, y: Any) -> None:
        """One step on what is on the device already."""
        self._optimizer.zero_grad(set_to_none=True)
        self.loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.loss.backward()
        self._optimizer.step()

    def step(self, x: Any, y: Any) -> None:
        """One step from tensors of the host."""
        self.update(*(one.to(self.where, non_blocking=True) for one in (x, y)))

    def captured(self, x: Any, y: Any) -> Callable[[Any, Any], None]:
        """A step from tensors of the host as one CUDA graph, which begins with these weights."""
        static = [one.to(self.where) for one in (x, y)]
        kept = [one.detach().clone() for one in (*self._parameters, *self._buffers)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.update(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.update(*static)
        with torch.no_grad():
            for one, before in zip((*self._parameters, *self._buffers), kept, strict=True):
                one.copy_(before)
            for state in self._optimizer.state.values():
                state["momentum_buffer"].zero_()

        def step(x: Any, y: Any) -> None:
            for there, given in zip(static, (x, y), strict=True):
                there.copy_(given, non_blocking=True)
            graph.replay()

        return step


def on_host(work: Work, batch: int, pinned: bool) -> Hosts:
    """Batches as tensors of the host, labels as cross-entropy takes them."""
    hosts = [
        (torch.from_numpy(x), torch.from_numpy(y).to(torch.int64)) for x, y in batches(work, batch)
    ]
    return [(x.pin_memory(), y.pin_memory()) for x, y in hosts] if pinned else hosts


def measured(work: Work, batch: int, where: str, asked: Asked, graph: bool) -> Found:
    """The losses of the first steps, and the times of later ones; `reason` where it fails."""
    try:
        hosts = on_host(work, batch, asked.pinned and where == "cuda")
        training = Training(work, where)
        step = training.captured(*hosts[0]) if graph else training.step
        losses = []
        for i in range(CHECKED):
            step(*hosts[i % len(hosts)])
            losses.append(float(training.loss.detach()))
        steps: list[Any] = [lambda host=host: step(*host) for host in hosts]
        return {"losses": losses, **timed(steps, _wait(where), asked.seconds)}
    except RuntimeError as error:
        return {"reason": str(error)}


def _wait(where: str) -> Callable[[], object]:
    if where == "cuda":
        return lambda: torch.cuda.synchronize()
    return lambda: None


def main(asked: Asked) -> Found:
    """A row for each work and way."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    where = "cuda" if torch.cuda.is_available() else "cpu"
    ways = {"PyTorch eager": False} | ({"PyTorch CUDA graph": True} if where == "cuda" else {})
    rows = [
        {
            "work": work.name,
            "batch": batch,
            "name": name,
            **measured(work, batch, where, asked, graph),
        }
        for work, batch in asked.each()
        for name, graph in ways.items()
    ]
    return {"rows": rows, "pytorch": f"{torch.__version__} on {where}"}


if __name__ == "__main__":
    answer(main(Asked.from_arguments()))

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
    Row,
    TrainingRequest,
    Work,
    batches,
    time_steps,
)

WARM_UP = 3  # steps before a graph is captured, in which cuDNN picks its algorithms
Hosts = list[tuple[Any, Any]]


class Training:
    """A network of PyTorch with its optimiser and the loss of the last step."""

    def __init__(self, work: Work, device: str) -> None:
        model = work.model()
        self.device = device
        self.layers = torch_layers(torch, model, device)
        self.net = torch_network(model, self.layers)
        modules = [layer for layer in self.layers if isinstance(layer, torch.nn.Module)]
        self._parameters = [p for module in modules for p in module.parameters()]
        self._optimizer = torch.optim.SGD(self._parameters, lr=RATE, momentum=MOMENTUM)
        self._buffers = [b for module in modules for b in module.buffers()]
        self.loss: Any = None

    def update(self, x: Any, y: Any) -> None:
        """Make one step with tensors that are on the device."""
        self._optimizer.zero_grad(set_to_none=True)
        self.loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.loss.backward()
        self._optimizer.step()

    def step(self, x: Any, y: Any) -> None:
        """Make one step with tensors of the host."""
        self.update(*(one.to(self.device, non_blocking=True) for one in (x, y)))

    def capture_step(self, x: Any, y: Any) -> Callable[[Any, Any], None]:
        """Return a step with tensors of the host that replays one CUDA graph.

        The weights are restored after the warm-up and the capture.
        """
        static = [one.to(self.device) for one in (x, y)]
        initial = [one.detach().clone() for one in (*self._parameters, *self._buffers)]
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
            for one, value in zip((*self._parameters, *self._buffers), initial, strict=True):
                one.copy_(value)
            for state in self._optimizer.state.values():
                state["momentum_buffer"].zero_()

        def step(x: Any, y: Any) -> None:
            for target, source in zip(static, (x, y), strict=True):
                target.copy_(source, non_blocking=True)
            graph.replay()

        return step


def host_batches(work: Work, batch: int, pinned: bool) -> Hosts:
    """Return batches as tensors of the host, labels as cross-entropy takes them."""
    hosts = [
        (torch.from_numpy(x), torch.from_numpy(y).to(torch.int64)) for x, y in batches(work, batch)
    ]
    return [(x.pin_memory(), y.pin_memory()) for x, y in hosts] if pinned else hosts


def measure(work: Work, batch: int, device: str, request: TrainingRequest, graph: bool) -> Row:
    """Return losses of the first steps, and times of later ones; `reason` where it fails."""
    try:
        hosts = host_batches(work, batch, request.pinned and device == "cuda")
        training = Training(work, device)
        step = training.capture_step(*hosts[0]) if graph else training.step
        losses = []
        for i in range(CHECKED):
            step(*hosts[i % len(hosts)])
            losses.append(float(training.loss.detach()))
        steps: list[Any] = [lambda host=host: step(*host) for host in hosts]
        return {"losses": losses, **time_steps(steps, _wait(device), request.seconds)}
    except RuntimeError as error:
        return {"reason": str(error)}


def _wait(device: str) -> Callable[[], object]:
    if device == "cuda":
        return lambda: torch.cuda.synchronize()
    return lambda: None


def main(request: TrainingRequest) -> Row:
    """Measure all works, eagerly and as a CUDA graph, and return their rows."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    modes = {"PyTorch eager": False} | ({"PyTorch CUDA graph": True} if device == "cuda" else {})
    rows = [
        {
            "work": work.name,
            "batch": batch,
            "name": name,
            **measure(work, batch, device, request, graph),
        }
        for work, batch in request.each()
        for name, graph in modes.items()
    ]
    return {"rows": rows, "pytorch": f"{torch.__version__} on {device}"}


if __name__ == "__main__":
    answer(main(TrainingRequest.from_arguments()))

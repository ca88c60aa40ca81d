"""Other libraries that run the same model: PyTorch, ONNX Runtime and CLBlast.

What is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import glnn
from benchmarks.clblast import Clblast
from benchmarks.clblast_network import ClblastNetwork
from glnn.core.tensor_info import BATCH
from glnn.errors import GlnnError
from glnn.layers import Add, MultiheadAttention
from glnn.model.onnx_format import message

Array = NDArray[np.float32]
REMOTE = "AzureExecutionProvider"  # a web service


@dataclass(frozen=True)
class Contender:
    """A way to run the model.

    run: from host array to host array. resident: the same on data that is there already, without
    the result's way back, but waiting for it. layers: median seconds of each layer in so many runs.
    """

    name: str
    run: Callable[[], Array]
    resident: Callable[[], object] | None = None
    layers: Callable[[int], dict[str, float]] | None = None


def installed(model: glnn.Model, x: Array, onnx: Path | None = None) -> Iterator[Contender]:
    """Every peer that can run `model` on `x`; the file `onnx` is taken where it is given.

    Take the next only when done with the last: some free what they hold.
    """
    yield from torch_peers(model, x)
    yield from onnx_peers(model, x, onnx)
    yield from clblast_peer(model, x)


def torch_peers(model: glnn.Model, x: Array) -> Iterator[Contender]:
    """PyTorch eagerly and as a CUDA graph, FP32 without TF32; on the CPU where there is no CUDA."""
    try:
        import torch
    except ImportError:
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    where = "cuda" if torch.cuda.is_available() else "cpu"
    layers = torch_layers(torch, model, where)
    for layer in layers:
        if isinstance(layer, torch.nn.Module):
            layer.eval().requires_grad_(False)
    net = torch_network(model, layers)
    host = torch.from_numpy(x)
    static = host.to(where)

    def eager() -> Array:
        result: Array = net(host.to(where)).cpu().numpy()
        return result

    def resident() -> None:
        net(static)
        if where == "cuda":
            torch.cuda.synchronize()

    yield Contender(f"PyTorch {torch.__version__} {where}", eager, resident)
    if where != "cuda":
        return
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # cuDNN picks its algorithms before anything is captured
        for _ in range(3):
            net(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(static)

    def replay() -> Array:
        static.copy_(host)
        graph.replay()
        result: Array = output.cpu().numpy()
        return result

    def resident_replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    yield Contender(f"PyTorch {torch.__version__} CUDA graph", replay, resident_replay)


def torch_layers(torch: Any, model: glnn.Model, where: str) -> list[Any]:
    """The layers of `model` in PyTorch on the device `where`, in training mode, in their order.

    They have the names and arguments of glnn's.
    """
    layers: list[Any] = []
    for node in model.nodes:
        if isinstance(node.layer, Add):
            layers.append(torch.add)
            continue
        same = getattr(torch.nn, type(node.layer).__name__)(**node.layer.config())
        dotted = getattr(node.layer, "dotted", {})
        for name, array in node.layer.parameters.items():
            attrgetter(dotted.get(name, name))(same).data = torch.from_numpy(array.copy())
        layers.append(same.to(where))
    return layers


def torch_network(model: glnn.Model, layers: list[Any]) -> Callable[[Any], Any]:
    """`model`, which has one input and one output, of what `torch_layers` gave."""
    (given,), (out,) = model.inputs, model.outputs
    last = {name: node for node in model.nodes for name in node.inputs}  # that reads it

    def net(x: Any) -> Any:
        tensors = {given.name: x}
        for node, layer in zip(model.nodes, layers, strict=True):
            operands = [tensors[name] for name in node.inputs]
            if isinstance(node.layer, MultiheadAttention):
                result, _ = layer(*operands, need_weights=False)
            else:
                result = layer(*operands)
            for name in node.inputs:
                if last[name] is node and name != out:
                    tensors.pop(name, None)
            tensors[node.output] = result
        return tensors[out]

    return net


def onnx_peers(model: glnn.Model, x: Array, path: Path | None = None) -> Iterator[Contender]:
    """ONNX Runtime by each provider that it has."""
    try:
        import onnxruntime

        given = str(path) if path else message(model.content, model.name).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.add_free_dimension_override_by_name(BATCH, len(x))
    except (ImportError, GlnnError):
        return
    for provider in onnxruntime.get_available_providers():
        try:
            session = onnxruntime.InferenceSession(given, options, providers=[provider])
        except Exception:  # a provider may be listed and have no driver
            continue
        if provider != session.get_providers()[0] or provider == REMOTE:  # the CPU would run it
            continue
        short = provider.removesuffix("ExecutionProvider")
        feed = {session.get_inputs()[0].name: x}
        yield Contender(
            f"ONNX Runtime {onnxruntime.__version__} {short}",
            lambda session=session, feed=feed: session.run(None, feed)[0],  # type: ignore[misc]
        )


def clblast_peer(model: glnn.Model, x: Array) -> Iterator[Contender]:
    """CLBlast's im2col and GEMM, as Rovder 2019 ran it."""
    try:
        blast = Clblast()
    except GlnnError:
        return
    with blast:
        network = ClblastNetwork(blast, model, x.shape)
        yield Contender(
            f"CLBlast on {blast.device}",
            lambda: network.run(x),
            network.perform,
            network.layer_seconds,
        )

"""Checks of layers in a graph: ModelError says what does not hold together."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.errors import ModelError, shown
from glnn.layers import Layer
from glnn.model.node import Node
from glnn.tensor_info import TensorInfo


def check_graph(
    called: str, nodes: Sequence[Node], inputs: Sequence[TensorInfo], outputs: Sequence[str]
) -> None:
    """Raise ModelError unless names are unique and every tensor is made before it is read."""
    if not isinstance(called, str):
        raise ModelError(f"a model's name must be a text, got {shown(called)}")
    for what, kind, values in (("nodes", Node, nodes), ("inputs", TensorInfo, inputs)):
        if not isinstance(values, (tuple, list)) or not all(isinstance(v, kind) for v in values):
            raise ModelError(f"{called}: {what} must be a tuple of {kind.__name__}s")
    if not are_texts(outputs):
        raise ModelError(f"{called}: outputs must be a tuple of names")
    if not inputs or not outputs:
        raise ModelError(f"{called}: a model needs an input and an output")
    tensors: set[str] = set()
    for info in inputs:
        if info.name in tensors:
            raise ModelError(f"{called}: two inputs are called {info.name!r}")
        tensors.add(info.name)
    names: set[str] = set()
    for node in nodes:
        if not isinstance(node.name, str) or not node.name or node.name in names:
            got = shown(node.name)
            raise ModelError(f"{called}: a layer needs a name of its own, got {got}")
        names.add(node.name)
        _check_node(node, tensors)
        tensors.update(node.outputs)
    for name in outputs:
        if name not in tensors:
            raise ModelError(f"{called}: no layer makes the output {name!r}")


def _check_node(node: Node, tensors: set[str]) -> None:
    """Raise ModelError unless `node` reads only `tensors` and makes a new one."""
    check_layer(f"layer {node.name!r}", node.layer)
    if not are_texts(node.inputs) or not isinstance(node.output, str):
        raise ModelError(f"layer {node.name!r}: inputs must be a tuple of names, output a name")
    if len(node.inputs) not in node.layer.counts:
        needed = " or ".join(map(str, node.layer.counts))
        raise ModelError(f"layer {node.name!r} takes {needed} inputs, got {len(node.inputs)}")
    for name in node.inputs:
        if name not in tensors:
            raise ModelError(
                f"layer {node.name!r}: no input and no earlier layer makes the tensor {name!r}"
            )
    for name in node.outputs:
        if name in tensors:
            raise ModelError(f"layer {node.name!r}: the tensor {name!r} is already there")


def check_layer(what: str, layer: object) -> None:
    """Raise ModelError unless `layer` is a layer."""
    if isinstance(layer, type) and issubclass(layer, Layer):
        name = layer.__name__
        raise ModelError(f"{what} must be a layer, got the class {name}: make one, {name}(...)")
    if type(layer).__module__.startswith("torch.nn."):
        kind = type(layer).__name__
        raise ModelError(
            f"{what} must be a layer of glnn.layers, got torch.nn's {kind}: "
            "Model.from_torch takes modules"
        )
    if not isinstance(layer, Layer):
        raise ModelError(f"{what} must be a layer, got {shown(layer)}")


def are_texts(names: object) -> bool:
    """Return True for a tuple or list of texts."""
    return isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)

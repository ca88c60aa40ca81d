"""The nodes of a model of layers: chains of them, checks, and the content of a model file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array
from glnn.errors import ModelError, shown
from glnn.layers import Layer


@dataclass(frozen=True)
class Node:
    """A layer in a graph: the tensors that it reads and those that it makes."""

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    output: str
    """The first of its results."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of all its results: `lstm1`, `lstm1.h_n`, `lstm1.c_n`."""
        return (self.output, *(f"{self.output}.{name}" for name in self.layer.more))


def parameters(nodes: Iterable[Node]) -> dict[str, Array]:
    """Return every parameter by its layer's name and its own name: `c1.weight`."""
    return {
        f"{node.name}.{name}": array
        for node in nodes
        for name, array in node.layer.parameters.items()
    }


def check_graph(
    model: str, nodes: Sequence[Node], inputs: Sequence[TensorInfo], outputs: Sequence[str]
) -> None:
    """Raise ModelError unless names are unique and every tensor is made before it is read."""
    if not isinstance(model, str):
        raise ModelError(f"a model's name must be a text, got {shown(model)}")
    for what, kind, values in (("nodes", Node, nodes), ("inputs", TensorInfo, inputs)):
        if not isinstance(values, (tuple, list)) or not all(isinstance(v, kind) for v in values):
            raise ModelError(f"{model}: {what} must be a tuple of {kind.__name__}s")
    if not are_texts(outputs):
        raise ModelError(f"{model}: outputs must be a tuple of names")
    if not inputs or not outputs:
        raise ModelError(f"{model}: a model needs an input and an output")
    tensors: set[str] = set()
    for info in inputs:
        if info.name in tensors:
            raise ModelError(f"{model}: two inputs are called {info.name!r}")
        tensors.add(info.name)
    names: set[str] = set()
    for node in nodes:
        if not isinstance(node.name, str) or not node.name or node.name in names:
            got = shown(node.name)
            raise ModelError(f"{model}: a layer needs a name of its own, got {got}")
        names.add(node.name)
        _check_node(node, tensors)
        tensors.update(node.outputs)
    for name in outputs:
        if name not in tensors:
            raise ModelError(f"{model}: no layer makes the output {name!r}")


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


T = TypeVar("T")


def chain(
    layers: Sequence[Layer] | Mapping[str, Layer], names: Sequence[str] | None, first: str
) -> tuple[Node, ...]:
    """Return the nodes of `layers` one after another, the first of which reads the tensor `first`.

    names: of the layers; None takes the mapping's keys, or numbers the layers of each class, as
    `conv2d1`, `relu1`, `conv2d2`. Raises ModelError where something is no layer or no name.
    """
    if isinstance(layers, Mapping):
        names = list(layers) if names is None else names
        layers = list(layers.values())
    layers = to_list("layers", layers, "layers")
    for number, layer in enumerate(layers, start=1):
        check_layer(f"layer {number}", layer)
    names = _names(layers) if names is None else to_list("names", names, "names")
    if not are_texts(names):
        raise ModelError(f"layers are called by texts, got {shown(names)}")
    if len(names) != len(layers):
        raise ModelError(f"{len(layers)} layers need as many names, got {len(names)}")
    tensors = [first, *names]
    return tuple(
        Node(name, layer, (tensor,), name)
        for name, layer, tensor in zip(names, layers, tensors, strict=False)
    )


def to_list(what: str, values: Iterable[T], kind: str) -> list[T]:
    """Return `values` as a list. kind: the values' kind, for errors. Raises ModelError for what is
    not iterable.
    """
    try:
        return list(values)
    except TypeError:
        raise ModelError(f"{what} must be a list of {kind}, got {shown(values)}") from None


def _names(layers: Sequence[Layer]) -> list[str]:
    counts: Counter[str] = Counter()
    names = []
    for layer in layers:
        kind = type(layer).__name__.lower()
        counts[kind] += 1
        names.append(f"{kind}{counts[kind]}")
    return names


@dataclass(frozen=True)
class Content:
    """The content of a model's file."""

    name: str
    nodes: tuple[Node, ...]
    """The nodes, in an order in which they can run."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    """The names of the tensors that a run returns."""
    tensors: Mapping[str, TensorInfo]
    """Every tensor by its name."""
    metadata: Mapping[str, str]
    """The file's metadata by name."""

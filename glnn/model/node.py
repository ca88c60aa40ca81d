"""A layer in a model's graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from glnn.errors import ShapeError
from glnn.layers import Layer
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Node:
    """A layer in a graph: the tensors that it reads and the one that it makes."""

    name: str
    layer: Layer
    inputs: tuple[str, ...]
    output: str

    def infer(self, tensors: Mapping[str, Shape]) -> Shape:
        """The output's shape. Raises ShapeError that names this layer."""
        try:
            return self.layer.infer(*(tensors[name] for name in self.inputs))
        except ShapeError as error:
            raise ShapeError(f"layer {self.name!r}: {error}") from None


def parameters(nodes: Iterable[Node]) -> dict[str, Array]:
    """Every parameter by its layer's name and its own: `c1.weight`."""
    return {
        f"{node.name}.{name}": array
        for node in nodes
        for name, array in node.layer.parameters.items()
    }

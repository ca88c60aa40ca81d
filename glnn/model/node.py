"""A layer in a model's graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glnn.layers import Layer
from glnn.types import Array


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
    """Return every parameter by its layer's name and its own: `c1.weight`."""
    return {
        f"{node.name}.{name}": array
        for node in nodes
        for name, array in node.layer.parameters.items()
    }

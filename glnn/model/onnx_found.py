"""Nodes of ONNX as the functions see them that make layers of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glnn.errors import UnsupportedOpError
from glnn.layers import Layer
from glnn.onnx.node import OnnxOperator
from glnn.types import Array, Dim, TensorType


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node that becomes a layer."""

    operator: OnnxOperator
    types: tuple[TensorType, ...]
    """Types of the operands that change in each run."""
    arrays: tuple[Array | None, ...]
    """Arrays of the operands; None where an operand changes in each run or is left out."""
    result: TensorType

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.operator.attributes.get(name, default)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the first operand that a run changes."""
        return self.types[0].dims

    def array(self, place: int) -> Array:
        """Return the array of operand `place`. Raises UnsupportedOpError where it changes in each
        run.
        """
        array = self.arrays[place] if place < len(self.arrays) else None
        if array is None:
            raise UnsupportedOpError(f"a layer's parameter, operand {place}, must be constant")
        return array

    def optional(self, place: int) -> Array | None:
        """Return the array of operand `place`, or None where the operand is left out."""
        return self.array(place) if place < len(self.arrays) else None

    def only(self, **attributes: Any) -> None:
        """Raise UnsupportedOpError unless the attributes are these, or missing."""
        for name, value in attributes.items():
            if (given := self.get(name, value)) != value:
                raise UnsupportedOpError(f"its {name} must be {value}, got {given}")


Row = Callable[[OnnxNode], Layer]


def with_parameters(layer: Layer, **arrays: Array | None) -> Layer:
    """Assign the arrays that are not None to parameters of `layer`, and return it."""
    for name, array in arrays.items():
        if array is not None:
            setattr(layer, name, array)
    return layer

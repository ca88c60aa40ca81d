"""A node of ONNX's as the rows see it that say which layer computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from glnn.errors import UnsupportedOpError
from glnn.layers import Layer
from glnn.onnx.node import OnnxOperator
from glnn.types import Array, Dim, TensorType


@dataclass(frozen=True)
class Found:
    """A node as rows see it."""

    operator: OnnxOperator
    types: tuple[TensorType, ...]
    """Of the operands that a run changes."""
    arrays: tuple[Array | None, ...]
    """For each operand its numbers, None where a run changes them or there is none."""
    result: TensorType

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.operator.attributes.get(name, default)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the first operand that a run changes."""
        return self.types[0].dims

    def array(self, place: int) -> Array:
        """The numbers of an operand. Raises UnsupportedOpError where a run changes them."""
        array = self.arrays[place] if place < len(self.arrays) else None
        if array is None:
            raise UnsupportedOpError(f"a layer's parameter, operand {place}, must be constant")
        return array

    def optional(self, place: int) -> Array | None:
        """`array`, or None where the operand is left out."""
        return self.array(place) if place < len(self.arrays) else None

    def only(self, **attributes: Any) -> None:
        """Raise UnsupportedOpError unless the attributes are these, or missing."""
        for name, value in attributes.items():
            if (given := self.get(name, value)) != value:
                raise UnsupportedOpError(f"its {name} must be {value}, got {given}")


Row = Callable[[Found], Layer]


def with_parameters(layer: Layer, **arrays: Array | None) -> Layer:
    """`layer`, its parameters assigned; those that are None it does not have."""
    for name, array in arrays.items():
        if array is not None:
            setattr(layer, name, array)
    return layer

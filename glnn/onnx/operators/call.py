"""A node of an ONNX graph that is put into a graph of glnn's operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from glnn.errors import ShapeError
from glnn.graph.compose.maker import Maker
from glnn.graph.graph import Kind, Value
from glnn.onnx.operators.conversion import CONVERTED, HostCast, converted
from glnn.onnx.operators.dtypes import HALVES
from glnn.symint import as_integer
from glnn.types import Array, DType

T = TypeVar("T")


@dataclass(frozen=True)
class Call(Maker):
    """A node that is converted, and the builder that takes its operators.

    Its name is the ONNX operator's.
    """

    version: int
    """The version of its domain's operator set that the model asks for."""
    attributes: Mapping[str, Any]
    """Attributes by name: int, float, str, tuples of these, and arrays for tensors."""
    outputs: int = 1
    """The number of the node's results."""
    used_outputs: tuple[bool, ...] = (True,)
    """Flags, one for each result: True where something may read it."""

    def cast(self, value: Value, dtype: DType) -> Value:
        """`value` as `dtype`, by a step of the host's where no function knows one of the types."""
        if value.type.dtype is dtype or {value.type.dtype, dtype} <= CONVERTED:
            return super().cast(value, dtype)
        if value.kind is Kind.CONSTANT:
            return self.constant(converted(self.array(value), dtype))
        return self(HostCast(value.type.dtype, dtype), value)

    @overload
    def widened(self, value: Value) -> Value: ...
    @overload
    def widened(self, value: Value | None) -> Value | None: ...
    def widened(self, value: Value | None) -> Value | None:
        """Return `value` as float32 where it is float16 or bfloat16."""
        return self.cast(value, DType.float32) if value and value.type.dtype in HALVES else value

    def get(self, attribute: str, default: T) -> T:
        """An attribute, `default` where the node has none."""
        return self.attributes.get(attribute, default)  # type: ignore[no-any-return]

    def need(self, attribute: str) -> Any:
        """An attribute that must be there. Raises ShapeError where it is not."""
        if attribute not in self.attributes:
            raise ShapeError(f"{self.name}: the attribute {attribute!r} is missing")
        return self.attributes[attribute]

    def array(self, value: Value, what: str = "operand") -> Array:
        """The numbers of a value that are known before a run. Raises ShapeError for others."""
        if value.kind is not Kind.CONSTANT:
            raise ShapeError(f"{self.name}: {what} must be known before a run")
        return value.data  # type: ignore[return-value]

    def integers(self, value: Value, what: str = "operand") -> tuple[int, ...]:
        """The same of integers, as a tuple."""
        return tuple(as_integer(n) for n in self.array(value, what).ravel())

    def axis(self, axis: int, value: Value, extra: int = 0) -> int:
        """`axis` from 0 on. Raises ShapeError where `value`, with `extra` more, has it not."""
        rank = len(value.type.dims) + extra
        if not -rank <= axis < max(rank, 1):
            raise ShapeError(f"{self.name}: axis must be from {-rank} to {rank - 1}, got {axis}")
        return axis % rank if rank else 0

"""Conversions between types of which only the host has one, as of bfloat16 to float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.graph.operator import Cost, Known, Types
from glnn.graph.operators.host import HostOperator
from glnn.numeric import cast
from glnn.types import ON_GPU, Array, DType, TensorType

CONVERTED = ON_GPU | {DType.int64, DType.float64}
"""Dtypes that glnn's operators take; nodes of others are computed by the `onnx` package."""


@dataclass(frozen=True)
class HostCast(HostOperator):
    """x0 as `to`. Floats become the nearest integer towards 0 that there is, NaN becomes 0."""

    given: DType
    to: DType

    name: ClassVar[str] = "host_cast"

    @property
    def called(self) -> str:
        return f"cast_{self.to.value}"

    @property
    def reason(self) -> str:
        others = (one.value for one in (self.given, self.to) if one not in CONVERTED)
        return f"{' and '.join(others)} is the host's"

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        (given,) = self.named(types).values()
        return (TensorType(given.dims, self.to),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        return (converted(x, self.to),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def converted(x: Array, dtype: DType) -> Array:
    """x as `dtype`. Floats become the nearest integer towards 0 that there is, NaN becomes 0."""
    if DType.of(x).kind == "float" and x.dtype.kind != "f":  # ml_dtypes'
        x = x.astype(DType.float32.numpy)
    return cast(dtype.numpy)(x)

"""Operators that only the host computes, among them tables that follow from sizes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from glnn.core.array_functions import make_cast
from glnn.core.types import ON_GPU, Array, DType, TensorType
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Types

CONVERTED = ON_GPU | {DType.int64, DType.float64}
"""Dtypes that operators take; the host computes what has others."""


class HostOperator(Operator):
    """An operator that no GPU computes, of any number of operands x0, x1, ..."""

    variadic: ClassVar[bool] = True

    @property
    def required(self) -> tuple[str, ...]:
        return ()  # it says itself what is missing

    @property
    @abstractmethod
    def display_name(self) -> str:
        """Name of the operator for people."""

    @property
    def label(self) -> str:
        return self.display_name

    @property
    @abstractmethod
    def reason(self) -> str:
        """Return the reason why the host computes the operator."""

    def __str__(self) -> str:
        return self.display_name


class ConstantTable(HostOperator):
    """An operator without operands, whose results are made of its attributes by NumPy."""

    table: ClassVar[bool] = True

    @property
    def reason(self) -> str:
        return "more numbers than a plan keeps of its own"

    def cost(self, types: Types) -> Cost:
        return Cost(0, sum(type.nbytes for type in self.infer(types)))


@dataclass(frozen=True)
class Arange(HostOperator):
    """0, 1, 2, ... in one dimension. NumPy: arange."""

    name: ClassVar[str] = "arange"
    array_function: ClassVar[str] = "arange"
    count: int
    """Number of elements."""
    dtype: DType
    """Type of the numbers, int32 or int64."""

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def reason(self) -> str:
        return "more numbers than a plan keeps of its own"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType((self.count,), self.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (np.arange(self.count, dtype=self.dtype.numpy),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, self.count * self.dtype.numpy.itemsize)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (Interval(0, max(self.count - 1, 0)),)

    def narrow(self, intervals: Intervals, types: Types) -> Arange:
        return replace(self, dtype=DType.int32)


@dataclass(frozen=True)
class HostCast(HostOperator):
    """Conversion of x0 to `to` by the host. Floats are cut towards 0 and clamped, NaN becomes 0."""

    source: DType
    to: DType

    name: ClassVar[str] = "host_cast"

    @property
    def display_name(self) -> str:
        return f"cast_{self.to.value}"

    @property
    def reason(self) -> str:
        others = (one.value for one in (self.source, self.to) if one not in CONVERTED)
        return f"{' and '.join(others)} is the host's"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        (source,) = self.named(types).values()
        return (TensorType(source.dims, self.to),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        return (convert_array(x, self.to),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def convert_array(x: Array, dtype: DType) -> Array:
    """Return x as `dtype`. Floats are cut towards 0 and clamped, NaN becomes 0."""
    if DType.from_array(x).kind == "float" and x.dtype.kind != "f":  # ml_dtypes'
        x = x.astype(DType.float32.numpy)
    return make_cast(dtype.numpy)(x)

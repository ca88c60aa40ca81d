"""Tables by which tensors are resized that are others for other sizes.

They are weights that a plan of open sizes computes once it is bound to those of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.array_functions import inside_table, nearest_table, taps_table
from glnn.graph.operator import Known, Types
from glnn.graph.operators.table import Table
from glnn.resized_axis import Filter, ResizedAxis
from glnn.types import Array, DType, Shape, TensorType


@dataclass(frozen=True)
class ResizeTable(Table):
    """Numbers of which an axis of another size is made."""

    resized: ResizedAxis
    mode: str
    """The coordinate transformation mode."""

    @property
    def called(self) -> str:
        return "Resize"


@dataclass(frozen=True)
class NearestTable(ResizeTable):
    """The index of the place that is nearest to each wanted, int32."""

    name: ClassVar[str] = "nearest_table"
    array_function: ClassVar[str] = "nearest_table"
    nearest: str
    """The mode by which halves are rounded."""

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        return (TensorType((self.resized.count,), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (nearest_table(*self.array_attributes),)


@dataclass(frozen=True)
class TapsTable(ResizeTable):
    """Indices, int32, and weights, float32, of what each place is made of: (taps, places)."""

    name: ClassVar[str] = "taps_table"
    array_function: ClassVar[str] = "taps_table"
    filter: Filter

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        shape = self.resized.reach(self.filter), self.resized.count
        return TensorType(shape, DType.int32), TensorType(shape, DType.float32)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        found: tuple[Array, ...] = taps_table(*self.array_attributes)
        return found


@dataclass(frozen=True)
class InsideTable(ResizeTable):
    """Mask, in a shape, of the positions that lie within the cropped tensor."""

    name: ClassVar[str] = "inside_table"
    array_function: ClassVar[str] = "inside_table"
    shape: Shape

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.shape, DType.bool),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (inside_table(*self.array_attributes),)

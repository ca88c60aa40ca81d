"""The identity operator: dropout at inference, for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operator, Types
from glnn.types import Array, TensorType


@dataclass(frozen=True)
class Identity(Operator):
    """The identity: x, of any shape and dtype. A view: no kernel runs."""

    name: ClassVar[str] = "identity"
    view: ClassVar[bool] = True
    passes: ClassVar[tuple[str, ...]] = ("x",)
    moves: ClassVar[bool] = True

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (self.named(types)["x"],)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.named(arrays)["x"],)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return layout, layout


@dataclass(frozen=True)
class Within(Identity):
    """The identity on x with the assertion that its numbers lie within an interval."""

    lies: Interval

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (self.lies,)


@dataclass(frozen=True)
class Detached(Identity):
    """The identity on x that stops gradients: torch.Tensor.detach."""

"""All steps of a recurrent layer whose steps have two phases, as a GRU's that resets before."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Cost, Reference, Shapes, Types
from glnn.graph.operators.recurrent_step import FEW, RecurrentStep, StateOperator, Units
from glnn.types import Array, Shape


@dataclass(frozen=True)
class PhasedRecurrence(StateOperator):
    """The states of all units after each of t steps, each a `first` and a `second` RecurrentStep.

    Only the host computes it: a GPU has a launch for each phase. x: (d, t, b, i, h). first_weight
    and second_weight: (d, g, h, h) of their gates. state: (d, b, h / 4, s, 4), before the first
    step. Result: (t, d, b, h / 4, s, 4). All are float32. Cho et al. 2014, Learning Phrase
    Representations.
    """

    name: ClassVar[str] = "phased_recurrence"
    parameters: ClassVar[tuple[str, ...]] = ("first_weight", "second_weight")
    first: RecurrentStep
    """First phase: states of the second phase from those of the step before."""
    second: RecurrentStep
    """Second phase: states after the step from those of the first phase."""

    def shape_of(self, shapes: Shapes) -> Shape:
        """Return the result's shape. Raises ShapeError where the operands do not fit."""
        x, state = shapes["x"], shapes["state"]
        between = self.first.shape_of({"x": x, "weight": shapes["first_weight"], "state": state})
        after = self.second.shape_of({"x": x, "weight": shapes["second_weight"], "state": between})
        if after != state or self.first.step or self.second.step:
            raise ShapeError(f"{self.name}: {self} makes {after} of {state}")
        return x[1], *state

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        given = self.named(arrays)
        shapes = {name: array.shape for name, array in given.items()}
        with np.errstate(all="ignore"):
            return (self._perform(self._units(shapes, given["x"].dtype), **given),)

    def specialize(self, types: Types) -> Reference:
        shapes = {name: type.shape for name, type in self.named(types).items()}
        d, _, b, i, h = shapes["x"]
        gates = shapes["first_weight"][1] + shapes["second_weight"][1]
        if d * b * h * (gates + i + 2 * shapes["state"][3]) > FEW:
            return self.reference
        units = self._units(shapes, np.dtype(np.float32))

        def compute(
            x: Array, first_weight: Array, second_weight: Array, state: Array
        ) -> tuple[Array, ...]:
            return (self._perform(units, x, first_weight, second_weight, state),)

        return compute

    def _units(self, shapes: Shapes, dtype: np.dtype[np.float32]) -> tuple[Units, Units]:
        """Return the arrays of the units in both phases."""
        d, _, b, i, h = shapes["x"]
        counts = shapes["state"][3], len(self.first.exprs)
        first, second = (
            Units(op.exprs, (d, b, h), (shapes[weight][1], i, count), dtype)
            for op, weight, count in zip(
                (self.first, self.second), self.parameters, counts, strict=True
            )
        )
        return first, second

    def _perform(
        self,
        units: tuple[Units, Units],
        x: Array,
        first_weight: Array,
        second_weight: Array,
        state: Array,
    ) -> Array:
        result = np.empty((x.shape[1], *state.shape), x.dtype)
        first, second = units
        matrices = first.matrix(first_weight), second.matrix(second_weight)
        first.place(state)
        for now, made in zip(x.transpose(1, 3, 0, 2, 4), result, strict=True):
            first.step(now, matrices[0], self.first.summed, self.first.units)
            first.hand_to(second)
            second.step(now, matrices[1], self.second.summed, self.second.units)
            second.hand_to(first)
            second.write(made)
        return result

    def cost(self, types: Types) -> Cost:
        given = {name: one.shape for name, one in self.named(types).items()}
        d, t, b, _, h = given["x"]
        sums = t * b * (prod(given["first_weight"]) + prod(given["second_weight"]))
        each = sum(expr.flops for op in (self.first, self.second) for expr in op.exprs)
        moved = sum(map(prod, given.values())) + prod(self.shape_of(given))
        return Cost(2 * sums + t * d * b * h * each, 4 * moved)

"""A step of a recurrent layer: sums over the units, and new states from these at each unit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.operator import Constants, Cost, Operator, Reference, Shapes, Types
from glnn.graph.packed_program import packed_program
from glnn.types import Array, DType, Shape, TensorType

MOST_GATES = 4
FEW = 1 << 16
"""Numbers of a step for which arrays are kept from run to run."""


class StateOperator(Operator):
    """An operator of x, weights and a state, all float32, whose result is float32, too."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", *self.parameters, "state")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        given = self.named(types)
        for name, one in given.items():
            if one.dtype is not DType.float32:
                raise ShapeError(f"{self.name}: {name} must be float32, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in given.items()})),)


class Recurrent(StateOperator):
    """An operator of the units of a layer: x, one weight for all of its gates, and their states."""

    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    exprs: tuple[Expr, ...]

    def units_of(self, x: Shape, weight: Shape, state: Shape, dtype: np.dtype[Any]) -> Units:
        """Return the arrays of the units for operands of these shapes."""
        d, _, b, i, h = x
        return Units(self.exprs, (d, b, h), (weight[1], i, state[3]), dtype)

    @abstractmethod
    def perform(self, units: Units, x: Array, weight: Array, state: Array, result: Array) -> None:
        """Compute `result` with the arrays of `units`; called within `np.errstate`."""

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        given = self.named(arrays)
        x, weight, state = (given[name] for name in self.operands)
        result = np.empty(self.shape_of({name: one.shape for name, one in given.items()}), x.dtype)
        with np.errstate(all="ignore"):
            units = self.units_of(x.shape, weight.shape, state.shape, x.dtype)
            self.perform(units, x, weight, state, result)
        return (result,)

    def specialize(self, types: Types) -> Reference:
        x, weight, state = (self.named(types)[name].shape for name in self.operands)
        (d, _, b, i, h), g, s = x, weight[1], state[3]
        if d * b * h * (g + i + s) > FEW:
            return self.reference
        shape, dtype = self.infer(types)[0].shape, np.dtype(np.float32)
        units = self.units_of(x, weight, state, dtype)

        def compute(x: Array, weight: Array, state: Array) -> tuple[Array, ...]:
            result = np.empty(shape, dtype)
            self.perform(units, x, weight, state, result)
            return (result,)

        return compute

    @abstractmethod
    def shape_of(self, shapes: Shapes) -> Shape:
        """The result's shape. Raises ShapeError where the operands do not fit."""

    def ranked(self, shapes: Shapes) -> tuple[Shape, Shape, Shape]:
        """The shapes of x, weight and state. Raises ShapeError unless they have 5, 4 and 5
        dimensions.
        """
        x, weight, state = (shapes[name] for name in self.operands)
        if len(x) != 5 or len(weight) != 4 or len(state) != 5:
            raise ShapeError(
                f"{self.name}: x must be (d, t, b, i, h), weight (d, g, h, h) and state "
                f"(d, b, h / 4, s, 4), got {x}, {weight} and {state}"
            )
        return x, weight, state


class Units:
    """Arrays of the units of a layer, which every step of it writes to again.

    exprs: see `RecurrentStep`. sizes: d directions, b samples and h units. gates: how many sums,
    inputs and states a unit has. Used within `np.errstate`, by one thread at a time.
    """

    def __init__(
        self,
        exprs: tuple[Expr, ...],
        sizes: tuple[int, int, int],
        gates: tuple[int, int, int],
        dtype: np.dtype[Any],
    ) -> None:
        (d, b, h), (g, i, s), r = sizes, gates, len(exprs)
        self._sums = np.empty((d, b, g * h), dtype)
        self._inputs, self._new = np.empty((i, d, b, h), dtype), np.empty((r, d, b, h), dtype)
        self._states = np.empty((s, d, b, h), dtype)
        self._given = self._states.reshape(s, d, b, h // 4, 4)
        self._placed = self._new.reshape(r, d, b, h // 4, 4).transpose(1, 2, 3, 0, 4)
        self._turned = d, g * h, h
        banks = self._sums.reshape(d, b, g, h).transpose(2, 0, 1, 3), self._inputs, self._states
        self._work = packed_program(exprs, gates, dtype).bind(banks, self._new)

    def run(
        self,
        inputs: Iterable[Array],
        weight: Array,
        state: Array,
        results: Iterable[Array],
        summed: int,
        units: int,
    ) -> None:
        """Perform a step for each of `inputs` (i, d, b, h), written to `results`, each
        (d, b, h / 4, r, 4).

        weight: (d, g, h, h). state: before the first step, (d, b, h / 4, s, 4). summed: the state
        that is summed. units: how many of the h there are, 0 for all.
        """
        matrix = self.matrix(weight)
        self.place(state)
        for now, result in zip(inputs, results, strict=True):
            self.step(now, matrix, summed, units)
            self.hand_to(self)
            self.write(result)

    def matrix(self, weight: Array) -> Array:
        """Return `weight` (d, g, h, h) as one matrix for the sums of all gates of a direction."""
        own = weight.astype(self._sums.dtype, copy=False).reshape(self._turned)
        return np.swapaxes(own, 1, 2)

    def place(self, state: Array) -> None:
        """Take the states before a step, (d, b, h / 4, s, 4)."""
        np.copyto(self._given, state.transpose(3, 0, 1, 2, 4))

    def step(self, inputs: Array, matrix: Array, summed: int, units: int) -> None:
        """Make new states of the states that are here and of `inputs` (i, d, b, h)."""
        np.matmul(self._states[summed], matrix, self._sums)
        np.copyto(self._inputs, inputs)
        for call in self._work:
            call()
        if 0 < units < self._new.shape[-1]:
            self._new[..., units:].fill(0)

    def hand_to(self, other: Units) -> None:
        """Copy the new states to `other` as those that its next step begins with, as many as both
        have.
        """
        count = min(len(self._new), len(other._states))
        np.copyto(other._states[:count], self._new[:count])

    def write(self, result: Array) -> None:
        """Write the new states to `result` (d, b, h / 4, r, 4)."""
        np.copyto(result, self._placed)


@dataclass(frozen=True)
class RecurrentStep(Recurrent):
    """The states of all units after a step, of those before it and of the step's inputs.

    x: (d, t, b, i, h), of each of d directions, t steps and b samples the i inputs of each of h
    units, of which there are a multiple of four. weight: (d, g, h, h), the g <= 4 sums of a unit
    over all units. state: (d, b, h / 4, s, 4), the s states of each unit, four units together.
    Result: (d, b, h / 4, r, 4). All are float32. Hochreiter and Schmidhuber 1997, Long Short-Term
    Memory; Cho et al. 2014, Learning Phrase Representations.
    """

    name: ClassVar[str] = "recurrent_step"
    exprs: tuple[Expr, ...]
    """Expression of each of the r new states, of the g sums, the i inputs and the s states of a
    unit.
    """
    step: int = 0
    """Index of the step among the t steps."""
    summed: int = 0
    """Index of the state that is summed."""
    units: int = 0
    """Number of units without padding units, which have states of 0. 0: there is no padding."""

    def __post_init__(self) -> None:
        if not self.exprs or min(self.step, self.summed, self.units) < 0:
            raise ShapeError(f"recurrent_step: no such attributes: {self}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight, state = self.ranked(shapes)
        d, t, b, i, h = x
        g, s = weight[1], state[3]
        whole = h % 4 == 0 and weight == (d, g, h, h) and state == (d, b, h // 4, s, 4)
        if not whole or not 1 <= g <= MOST_GATES:
            raise ShapeError(f"recurrent_step: x {x}, weight {weight} and state {state} differ")
        if self.step >= t or self.summed >= s or self.units > h:
            raise ShapeError(f"recurrent_step: x {x} and state {state} have too little for {self}")
        if max(expr.arity for expr in self.exprs) > g + i + s:
            raise ShapeError(f"recurrent_step: expressions of more than {g + i + s} arguments")
        return d, b, h // 4, len(self.exprs), 4

    def perform(self, units: Units, x: Array, weight: Array, state: Array, result: Array) -> None:
        now = x[:, self.step].transpose(2, 0, 1, 3)
        units.run((now,), weight, state, (result,), self.summed, self.units)

    def cost(self, types: Types) -> Cost:
        given = {name: one.shape for name, one in self.named(types).items()}
        d, _, b, i, h = given["x"]
        sums = b * prod(given["weight"])
        each = sum(expr.flops for expr in self.exprs)
        result = prod(self.shape_of(given))
        moved = prod(given["weight"]) + prod(given["state"]) + d * b * i * h + result
        return Cost(2 * sums + d * b * h * each, 4 * moved)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][-1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        d, t, b, _, h = shapes["x"]
        return {
            "directions": d,
            "steps": t,
            "batch": b,
            "quads": h // 4,
            "units": self.units or h,
            "now": self.step,
        }

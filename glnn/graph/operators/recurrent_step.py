"""One step of a recurrent layer: sums over the units, and what is made of them at each unit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.operator import Cost, Known, Operator, Shapes, Types
from glnn.graph.packed_program import Work, packed_program
from glnn.types import Array, DType, Shape, TensorType

MOST_GATES = 4


class Recurrent(Operator):
    """An operator of x, weight and state, all float32, whose result is float32, too."""

    parameters: ClassVar[tuple[str, ...]] = ("weight",)

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "weight", "state")

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        given = self.named(types)
        for name, one in given.items():
            if one.dtype is not DType.float32:
                raise ShapeError(f"{self.name}: {name} must be float32, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in given.items()})),)

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


@dataclass(frozen=True)
class Units:
    """Arrays of the units of a layer, which every step of it writes to again."""

    weight: Array
    """(d, h, g h): the sums of all gates are one product for each direction."""
    sums: Array
    """(d, b, g h): that product."""
    inputs: Array
    """(i, d, b, h) of the step."""
    states: Array
    """(s, d, b, h) before the step."""
    new: Array
    """(r, d, b, h) after it."""
    work: Sequence[Work]
    """Calls that compute these from sums, inputs and states."""

    @classmethod
    def before_steps(
        cls, exprs: tuple[Expr, ...], inputs: Array, weight: Array, state: Array
    ) -> Units:
        """Return the units before the first step. inputs: (i, d, b, h). weight: (d, g, h, h).

        state: (d, b, h / 4, s, 4).
        """
        (i, d, b, h), g, s = inputs.shape, weight.shape[1], state.shape[3]
        dtype = inputs.dtype
        turned = weight.astype(dtype, copy=False).reshape(d, g * h, h).swapaxes(1, 2)
        states = np.empty((s, d, b, h), dtype)
        states.reshape(s, d, b, h // 4, 4)[...] = state.transpose(3, 0, 1, 2, 4)
        sums, now = np.empty((d, b, g * h), dtype), np.empty((i, d, b, h), dtype)
        new = np.empty((len(exprs), d, b, h), dtype)
        banks = sums.reshape(d, b, g, h).transpose(2, 0, 1, 3), now, states
        work = packed_program(exprs, (g, i, s), dtype).bind(banks, new)
        return cls(turned, sums, now, states, new, work)

    def run(
        self, inputs: Iterable[Array], results: Iterable[Array], summed: int, units: int
    ) -> None:
        """Perform a step for each of `inputs` (i, d, b, h), written to `results`, each
        (d, b, h / 4, r, 4).

        summed: the state that is summed. units: how many of the h are there, 0 for all.
        """
        r, d, b, h = self.new.shape
        before = self.states[summed]
        kept, new = self.states[:r], self.new[: len(self.states)]
        placed = self.new.reshape(r, d, b, h // 4, 4).transpose(1, 2, 3, 0, 4)
        rest = self.new[..., units:] if units else self.new[..., h:]
        for now, result in zip(inputs, results, strict=True):
            np.matmul(before, self.weight, self.sums)
            np.copyto(self.inputs, now)
            for call in self.work:
                call()
            if rest.size:
                rest.fill(0)
            np.copyto(kept, new)
            np.copyto(result, placed)


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
    """Each of the r new states: of the g sums, the i inputs and the s states of a unit."""
    step: int = 0
    """Which of the t steps it is."""
    summed: int = 0
    """Which state is summed."""
    units: int = 0
    """How many units there are but for those that fill up; these have states of 0. 0: all are."""

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

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        given = self.named(arrays)
        x, weight, state = given["x"], given["weight"], given["state"]
        result = np.empty(
            self.shape_of({name: array.shape for name, array in given.items()}), x.dtype
        )
        now = x[:, self.step].transpose(2, 0, 1, 3)
        with np.errstate(all="ignore"):
            units = Units.before_steps(self.exprs, now, weight, state)
            units.run((now,), (result,), self.summed, self.units)
        return (result,)

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

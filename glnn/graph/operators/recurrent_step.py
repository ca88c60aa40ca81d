"""One step of a recurrent layer: sums over the units, and what is made of them at each unit."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.operator import Cost, Known, Operator, Shapes, Types
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
        shape = self.shape_of({name: array.shape for name, array in given.items()})
        d, _, b, _, h = x.shape
        before = [state[..., s, :].reshape(d, b, h) for s in range(state.shape[3])]
        with np.errstate(all="ignore"):
            turned = weight.swapaxes(-1, -2).astype(x.dtype, copy=False)
            sums = before[self.summed][:, None] @ turned
        now = x[:, self.step]
        arguments = [*sums.swapaxes(0, 1), *np.moveaxis(now, 2, 0), *before]
        found = [expr.evaluate(*arguments) for expr in self.exprs]
        result = np.empty(shape, x.dtype)
        for r, new in enumerate(found):
            kept = np.array(np.broadcast_to(new, (d, b, h)))
            kept[..., self.units or h :] = 0
            result[..., r, :] = kept.reshape(d, b, h // 4, 4)
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

"""All steps of recurrent layers: of directions side by side, or of layers one on another."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.operator import Cost, Shapes, Types
from glnn.graph.operators.recurrent_step import MOST_GATES, Recurrent, Units
from glnn.types import Array, Shape

MOST_STATES = 5
"""Most states of a unit that may change."""
MOST_SUMS = 512
"""Most sums that a workgroup that computes a layer by itself keeps in shared memory."""
MOST_UNITS = 256
"""Most units whose states such a workgroup keeps."""
MOST_WEIGHTS = 1 << 16
"""Most weights that such a workgroup reads in every step, which caches are to hold."""


@dataclass(frozen=True)
class Recurrence(Recurrent):
    """The states of all units after each of t steps: many a `RecurrentStep`, one after the other.

    x: (d, t, b, i, h), of each of d directions, t steps and b samples the i inputs of each of h
    units, a multiple of four. weight: (d, g, h, h), the g <= 4 sums of a unit over all units.
    state: (d, b, h / 4, s, 4), the s states of each unit before the first step, four units
    together; those behind the r that the expressions give never change.
    Result: (t, d, b, h / 4, r, 4). All are float32.

    Of l > 1 `layers` d is 1, and the inputs of an upper layer's units are their sums over the
    units of the layer below, i = g of them. The weight is (2 l - 1, g, h, h) then: each layer's
    own, and those of each upper layer for the layer below. States are (l, b, h / 4, s, 4), and the
    result is (t, l, b, h / 4, r, 4). Hochreiter and Schmidhuber 1997, Long Short-Term Memory;
    Appleyard et al. 2016, Optimizing Performance of Recurrent Neural Networks on GPUs.
    """

    name: ClassVar[str] = "recurrence"
    exprs: tuple[Expr, ...]
    """Expression of each of the r new states, of the g sums, the i inputs and the s states of a
    unit.
    """
    summed: int = 0
    """Index of the state that is summed."""
    units: int = 0
    """Number of units without padding units, which have states of 0. 0: there is no padding."""
    layers: int = 1
    """Number of stacked layers."""

    def __post_init__(self) -> None:
        few = 1 <= len(self.exprs) <= MOST_STATES
        if not few or not 0 <= self.summed < len(self.exprs) or self.units < 0 or self.layers < 1:
            raise ShapeError(f"recurrence: no such attributes: {self}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight, state = self.ranked(shapes)
        d, t, b, i, h = x
        chains, g, s = d * self.layers, weight[1], state[3]
        stacked = self.layers > 1
        matrices = 2 * self.layers - 1 if stacked else d
        whole = weight == (matrices, g, h, h) and state == (chains, b, h // 4, s, 4)
        if h % 4 or not whole or not 1 <= g <= MOST_GATES or (stacked and (d != 1 or i != g)):
            raise ShapeError(f"recurrence: x {x}, weight {weight} and state {state} differ")
        if len(self.exprs) > s or self.units > h:
            raise ShapeError(f"recurrence: x {x} and state {state} have too little for {self}")
        if max(expr.arity for expr in self.exprs) > g + i + s:
            raise ShapeError(f"recurrence: expressions of more than {g + i + s} arguments")
        return t, chains, b, h // 4, len(self.exprs), 4

    def perform(self, units: Units, x: Array, weight: Array, state: Array, result: Array) -> None:
        """Compute all steps, of one layer after another, with the arrays of `units`, and write the
        states to `result`.
        """
        d, t, b, i, h = x.shape
        inputs = x.transpose(1, 3, 0, 2, 4)
        for layer in range(self.layers):
            own = slice(layer * d, (layer + 1) * d)
            if layer:
                below = result[:, layer - 1, ..., self.summed, :].reshape(t * b, h)
                across = weight[self.layers + layer - 1].astype(x.dtype, copy=False)
                inputs = (below @ across.reshape(i * h, h).T).reshape(t, 1, b, i, h)
                inputs = inputs.transpose(0, 3, 1, 2, 4)
            units.run(inputs, weight[own], state[own], result[:, own], self.summed, self.units)

    def cost(self, types: Types) -> Cost:
        given = {name: one.shape for name, one in self.named(types).items()}
        _, t, b, _, h = given["x"]
        chains, each = given["state"][0], sum(expr.flops for expr in self.exprs)
        sums = t * b * prod(given["weight"])
        moved = sum(map(prod, given.values())) + prod(self.shape_of(given))
        return Cost(2 * sums + t * chains * b * h * each, 4 * moved)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][-1]

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Weights small enough that rounding dies away from step to step."""
        return numbers / np.float32(shapes["x"][-1] ** 0.5) if name == "weight" else numbers

    def defines(self, shapes: Shapes) -> dict[str, int]:
        alone = self.layers == 1 and one_holds(shapes["weight"][1], shapes["x"][-1])
        return {"STACKED": int(self.layers > 1), "ALONE": int(alone)}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        d, t, b, _, h = shapes["x"]
        return {
            "chains": d * self.layers,
            "layers": self.layers,
            "steps": t,
            "batch": b,
            "quads": h // 4,
            "units": self.units or h,
        }


def one_holds(gates: int, units: int) -> bool:
    """Return True where one workgroup is to compute all units of a layer in all of its steps."""
    few = units <= MOST_UNITS and gates * units <= MOST_SUMS
    return few and gates * units * units <= MOST_WEIGHTS

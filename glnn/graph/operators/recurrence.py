"""Recurrent layers: a step, all steps of one or several layers, and all steps in phases."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.expression import Expr
from glnn.graph.expression_evaluation import packed_program
from glnn.graph.operator import Constants, Cost, Operator, Reference, Shapes, Types

MOST_GATES = 4
FEW = 1 << 16
"""The most numbers of a step whose scratch arrays are reused from run to run."""


class StateOperator(Operator):
    """An operator of x, weights and a state, all float32, whose result is float32, too."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", *self.parameters, "state")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, one in operands.items():
            if one.dtype is not DType.float32:
                raise ShapeError(f"{self.name}: {name} must be float32, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)


class RecurrentOperator(StateOperator):
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
        operands = self.named(arrays)
        x, weight, state = (operands[name] for name in self.operands)
        result = np.empty(
            self.shape_of({name: one.shape for name, one in operands.items()}), x.dtype
        )
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
        """Return the result's shape. Raises ShapeError where the operands do not fit."""

    def check_ranks(self, shapes: Shapes) -> tuple[Shape, Shape, Shape]:
        """Return the shapes of x, weight and state. Raises ShapeError unless they have 5, 4 and 5
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
    """Scratch arrays of the units of a layer, which each step overwrites.

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
        self._inputs, self._states = np.empty((i, d, b, h), dtype), np.empty((s, d, b, h), dtype)
        self._new_states = np.empty((r, d, b, h), dtype)
        self._states_in_quads = self._states.reshape(s, d, b, h // 4, 4)
        self._packed_states = self._new_states.reshape(r, d, b, h // 4, 4).transpose(1, 2, 3, 0, 4)
        self._weight_shape = d, g * h, h
        banks = self._sums.reshape(d, b, g, h).transpose(2, 0, 1, 3), self._inputs, self._states
        self._calls = packed_program(exprs, gates, dtype).bind(banks, self._new_states)

    def run(
        self,
        inputs: Iterable[Array],
        weight: Array,
        state: Array,
        results: Iterable[Array],
        summed: int,
        units: int,
    ) -> None:
        """Compute a step for each of `inputs` (i, d, b, h), and write its states to `results`, each
        (d, b, h / 4, r, 4).

        weight: (d, g, h, h). state: before the first step, (d, b, h / 4, s, 4). summed: the index
        of the state that is summed. units: the number of units without padding; 0: no padding.
        """
        matrix = self.matrix(weight)
        self.set_states(state)
        for step_inputs, result in zip(inputs, results, strict=True):
            self.step(step_inputs, matrix, summed, units)
            self.copy_states(self)
            self.write(result)

    def matrix(self, weight: Array) -> Array:
        """Return `weight` (d, g, h, h) as one matrix for the sums of all gates of a direction."""
        matrix = weight.astype(self._sums.dtype, copy=False).reshape(self._weight_shape)
        return np.swapaxes(matrix, 1, 2)

    def set_states(self, state: Array) -> None:
        """Copy the states before a step, (d, b, h / 4, s, 4)."""
        np.copyto(self._states_in_quads, state.transpose(3, 0, 1, 2, 4))

    def step(self, inputs: Array, matrix: Array, summed: int, units: int) -> None:
        """Compute the new states of the states and of `inputs` (i, d, b, h)."""
        np.matmul(self._states[summed], matrix, self._sums)
        np.copyto(self._inputs, inputs)
        for call in self._calls:
            call()
        if 0 < units < self._new_states.shape[-1]:
            self._new_states[..., units:].fill(0)

    def copy_states(self, target: Units) -> None:
        """Copy the new states to the states of `target`, as many as both have."""
        count = min(len(self._new_states), len(target._states))
        np.copyto(target._states[:count], self._new_states[:count])

    def write(self, result: Array) -> None:
        """Write the new states to `result` (d, b, h / 4, r, 4)."""
        np.copyto(result, self._packed_states)


@dataclass(frozen=True)
class RecurrentStep(RecurrentOperator):
    """The states of all units after a step, from those before it and the step's inputs.

    x: (d, t, b, i, h), the i inputs of each of h units, a multiple of four, for d directions, t
    steps and b samples. weight: (d, g, h, h), for the g <= 4 sums of a unit over all units.
    state: (d, b, h / 4, s, 4), the s states of each unit, four units together.
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
        x, weight, state = self.check_ranks(shapes)
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
        inputs = x[:, self.step].transpose(2, 0, 1, 3)
        units.run((inputs,), weight, state, (result,), self.summed, self.units)

    def multiply_adds(self, shapes: Shapes) -> int:
        return shapes["x"][2] * prod(shapes["weight"])

    def cost(self, types: Types) -> Cost:
        operands = {name: one.shape for name, one in self.named(types).items()}
        d, _, b, i, h = operands["x"]
        sums = self.multiply_adds(operands)
        each = sum(expr.flops for expr in self.exprs)
        result = prod(self.shape_of(operands))
        moved = prod(operands["weight"]) + prod(operands["state"]) + d * b * i * h + result
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


MOST_STATES = 5
"""Most states of a unit that may change."""
MOST_SUMS = 512
"""Most sums in shared memory of a workgroup that computes a layer alone."""
MOST_UNITS = 256
"""Most units of such a workgroup."""
MOST_WEIGHTS = 1 << 16
"""Most weights that such a workgroup reads in every step: they should fit the caches."""


@dataclass(frozen=True)
class Recurrence(RecurrentOperator):
    """The states of all units after each of t steps: a `RecurrentStep` for each, in one operator.

    x: (d, t, b, i, h), the i inputs of each of h units, a multiple of four, for d directions, t
    steps and b samples. weight: (d, g, h, h), for the g <= 4 sums of a unit over all units.
    state: (d, b, h / 4, s, 4), the s states of each unit before the first step, four units
    together; the states after the first r, which have expressions, never change.
    Result: (t, d, b, h / 4, r, 4). All are float32.

    With l > 1 `layers` d is 1, and the i = g inputs of an upper layer's units are sums over the
    units of the layer below. The weight is then (2 l - 1, g, h, h): of each layer for its own
    units, then of each upper layer for the layer below. States are (l, b, h / 4, s, 4), and the
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
        x, weight, state = self.check_ranks(shapes)
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
            rows = slice(layer * d, (layer + 1) * d)
            if layer:
                lower_states = result[:, layer - 1, ..., self.summed, :].reshape(t * b, h)
                lower_weight = weight[self.layers + layer - 1].astype(x.dtype, copy=False)
                inputs = (lower_states @ lower_weight.reshape(i * h, h).T).reshape(t, 1, b, i, h)
                inputs = inputs.transpose(0, 3, 1, 2, 4)
            units.run(inputs, weight[rows], state[rows], result[:, rows], self.summed, self.units)

    def multiply_adds(self, shapes: Shapes) -> int:
        _, t, b, *_ = shapes["x"]
        return t * b * prod(shapes["weight"])

    def cost(self, types: Types) -> Cost:
        operands = {name: one.shape for name, one in self.named(types).items()}
        _, t, b, _, h = operands["x"]
        chains, each = operands["state"][0], sum(expr.flops for expr in self.exprs)
        sums = self.multiply_adds(operands)
        moved = sum(map(prod, operands.values())) + prod(self.shape_of(operands))
        return Cost(2 * sums + t * chains * b * h * each, 4 * moved)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][-1]

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return weights so small that rounding errors decay from step to step."""
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
        operands = self.named(arrays)
        shapes = {name: array.shape for name, array in operands.items()}
        with np.errstate(all="ignore"):
            return (self._perform(self._units(shapes, operands["x"].dtype), **operands),)

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
        first.set_states(state)
        for inputs, states in zip(x.transpose(1, 3, 0, 2, 4), result, strict=True):
            first.step(inputs, matrices[0], self.first.summed, self.first.units)
            first.copy_states(second)
            second.step(inputs, matrices[1], self.second.summed, self.second.units)
            second.copy_states(first)
            second.write(states)
        return result

    def multiply_adds(self, shapes: Shapes) -> int:
        _, t, b, *_ = shapes["x"]
        return t * b * (prod(shapes["first_weight"]) + prod(shapes["second_weight"]))

    def cost(self, types: Types) -> Cost:
        operands = {name: one.shape for name, one in self.named(types).items()}
        d, t, b, _, h = operands["x"]
        sums = self.multiply_adds(operands)
        each = sum(expr.flops for op in (self.first, self.second) for expr in op.exprs)
        moved = sum(map(prod, operands.values())) + prod(self.shape_of(operands))
        return Cost(2 * sums + t * d * b * h * each, 4 * moved)

"""Operators that run graphs, their bodies: branches and loops, and their base class.

A body reads no input or computed value of the graph around it: such values are operands of the
node and inputs of the body, so that passes, memory and placement see all that a node needs. A body
reads constants and variables directly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.symint import as_integer
from glnn.core.types import ANYTHING, UNKNOWN, UNRANKED, Array, Dim, DType, TensorType
from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.constant import constant_value
from glnn.graph.graph import Graph
from glnn.graph.operator import Constants, Cost, Operator, Types

FLAG = TensorType((), DType.bool)
"""Type of the flag that a loop passes to its body: whether to continue."""
InputTypes = Mapping[str, TensorType]
Run = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Function that runs the body with a given index on arrays of its inputs, and returns its outputs.
"""


class Control(Operator):
    """An operator that runs graphs. Its results are those of the bodies, in order."""

    control: ClassVar[bool] = True
    variadic: ClassVar[bool] = True

    @property
    @abstractmethod
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs that it runs."""

    @property
    @abstractmethod
    def captures(self) -> tuple[tuple[int, int], ...]:
        """For each body the index of the first operand that it reads directly, and the index of
        its input for that operand.

        All further inputs of that body are the operands after that one.
        """

    @abstractmethod
    def with_bodies(self, bodies: Sequence[Graph]) -> Control:
        """Return the operator with other bodies."""

    @abstractmethod
    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        """Return the types of each body's inputs, by name, for operands of `types`."""

    def body_constants(self, constants: Constants) -> tuple[Mapping[str, Array], ...]:
        """Return the known arrays of each body's inputs, by name, given those of the operands."""
        result = []
        for body, (operand, first) in zip(self.bodies, self.captures, strict=True):
            pairs = zip(body.inputs[first:], constants[operand:], strict=False)
            result.append({value.name: array for value, array in pairs if array is not None})
        return tuple(result)

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of results."""

    @abstractmethod
    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """Return the types of results for operands that do not fit, or of which too little is
        known: dtypes without sizes.
        """

    def infer_open_sizes(
        self, types: Types, constants: Constants, *, strict: bool
    ) -> tuple[tuple[TensorType, ...], Constants]:
        try:
            return self.infer(types, constants), self.propagate_constants(types, constants)
        except (ShapeError, UnsupportedOpError):
            if strict:
                raise
            return self.unknown(types), (None,) * self.count

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        return (None,) * self.count

    @abstractmethod
    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        """Return the results for arrays of the operands; `run` runs the bodies. Sizes of results
        may depend on the operands' numbers.
        """

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return self.perform(lambda body, inputs: self.bodies[body].reference(*inputs), *arrays)

    def _input_types(self, body: Graph, types: Types) -> InputTypes:
        """Return the type of each input of `body` by its name. Raises ShapeError where some do not
        fit.
        """
        if len(types) != len(body.inputs):
            raise ShapeError(
                f"{self.name}: {body.name!r} takes {len(body.inputs)} values, got {len(types)}"
            )
        result: dict[str, TensorType] = {}
        for value, type in zip(body.inputs, types, strict=True):
            is_unknown = ANYTHING in (type, value.type)
            if type is None or (type.dtype is not value.type.dtype and not is_unknown):
                raise ShapeError(
                    f"{self.name}: {value.name!r} of {body.name!r} must be "
                    f"{value.type.dtype.value}, got {type or 'nothing'}"
                )
            result[value.name] = type
        return result

    def _single(self, operand: str, type: TensorType, *dtypes: DType) -> None:
        """Raise ShapeError unless `type` is a single number of one of `dtypes`."""
        if type.dtype not in dtypes or (not type.symbols and prod(type.shape) != 1):
            names = " or ".join(dtype.value for dtype in dtypes)
            raise ShapeError(f"{self.name}: {operand} must be one {names}, got {type}")


def results(body: Graph, types: InputTypes, numbers: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """Return the types of the outputs of `body`.

    types: of its inputs, by name. numbers: those of inputs that are known, by name.
    """
    inferred, _ = body.propagate_constants(types, numbers)
    return tuple(inferred.get(value, value.type) for value in body.outputs)


def cost(body: Graph, input_types: InputTypes) -> Cost:
    """Return the cost of the nodes of `body` that are computed in each run."""
    types, flops, nbytes = body.infer_types(input_types), 0, 0
    for node in body.nodes:
        if node.outputs[0] not in body.fixed:
            node_cost = node.operator.cost([None if v is None else types[v] for v in node.inputs])
            flops, nbytes = flops + node_cost.flops, nbytes + node_cost.bytes
    return Cost(flops, nbytes)


@dataclass(frozen=True)
class If(Control):
    """The results of `then` where the condition is true, else those of `otherwise`.

    condition: one bool. x0, x1, ...: the inputs of `then`, then those of `otherwise`. Results have
    the same dtype in both branches; a size or rank in which they differ is not known before a run.
    ONNX: If.
    """

    then: Graph
    """Graph that is run where the condition is true."""
    otherwise: Graph
    """Graph that is run where the condition is false."""

    name: ClassVar[str] = "if"
    host: ClassVar[tuple[str, ...]] = ("condition",)

    def __post_init__(self) -> None:
        then, otherwise = (len(body.outputs) for body in self.bodies)
        if then != otherwise or not then:
            raise ModelError(f"if: branches have as many outputs, got {then} and {otherwise}")

    @property
    def operands(self) -> tuple[str, ...]:
        return "condition", "x"

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return self.then, self.otherwise

    @property
    def count(self) -> int:
        return len(self.then.outputs)

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        return (1, 0), (1 + len(self.then.inputs), 0)

    def with_bodies(self, bodies: Sequence[Graph]) -> If:
        return If(*bodies)

    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        count = 1 + len(self.then.inputs)
        return self._input_types(self.then, types[1:count]), self._input_types(
            self.otherwise, types[count:]
        )

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        self._single("condition", self.named(types)["condition"], DType.bool)
        bodies = zip(
            self.bodies, self.body_types(types), self.body_constants(constants), strict=True
        )
        branches = [results(body, operands, numbers) for body, operands, numbers in bodies]
        merged = [self._merge(i, a, b) for i, (a, b) in enumerate(zip(*branches, strict=True))]
        condition = constants[0] if constants else None
        return tuple(merged) if condition is None else branches[0 if condition.item() else 1]

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        pairs = zip(self.then.outputs, self.otherwise.outputs, strict=True)
        types_of = ((then.type, otherwise.type) for then, otherwise in pairs)
        return tuple((then if then != ANYTHING else other).unranked for then, other in types_of)

    def _merge(self, number: int, then: TensorType, otherwise: TensorType) -> TensorType:
        """Return the type of result `number` that holds for both branches."""
        if ANYTHING in (then, otherwise):
            return (then if then != ANYTHING else otherwise).unranked
        if then.dtype is not otherwise.dtype:
            raise ShapeError(
                f"if: result {number} must have one dtype in both branches, "
                f"got {then} and {otherwise}"
            )
        if len(then.dims) != len(otherwise.dims):
            return TensorType((UNRANKED,), then.dtype)
        sizes = zip(then.dims, otherwise.dims, strict=True)
        dims = tuple(a if a == b else UNKNOWN for a, b in sizes)
        return TensorType(dims, then.dtype, max(then.holds, otherwise.holds, key=len))

    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        condition, *operands = (array for array in arrays if array is not None)
        count = len(self.then.inputs)
        return tuple(run(0, operands[:count]) if condition.item() else run(1, operands[count:]))

    def cost(self, types: Types) -> Cost:
        """Return the cost of the more expensive branch."""
        pairs = zip(self.bodies, self.body_types(types), strict=True)
        return max(
            (cost(body, operands) for body, operands in pairs), key=lambda c: (c.flops, c.bytes)
        )


INFERRED = 3  # iterations whose types are inferred, after the first, where shapes change


@dataclass(frozen=True)
class Loop(Control):
    """A loop that runs `body` repeatedly, on its results of the previous iteration. ONNX: Loop and
    Scan.

    trips: one int32 or int64, the greatest number of iterations. condition: one bool, whether to
    begin; with a condition the body also decides whether to continue. There must be one of these or
    a scanned value. x0, x1, ...: the initial carried values, the scanned values, then further
    inputs of the body.

    Inputs of the body: the number of the iteration, from 0, an int32 or int64; whether to continue,
    a bool; the carried values; the scanned values, of which the body itself slices the part of the
    iteration; the further inputs. Outputs of the body: whether to continue; the carried values, of
    the same dtypes; any number of others. Results: the carried values after the last iteration, and
    each other output of all iterations, stacked along a new first dimension. Sizes and the rank of
    a carried value may change.
    """

    body: Graph
    """Graph that is run in each iteration."""
    carried: int = 0
    """Number of values carried from one iteration to the next."""
    scanned: tuple[int, ...] = ()
    """The axis of each scanned value that iterations run along."""

    name: ClassVar[str] = "loop"
    optional: ClassVar[tuple[str, ...]] = ("trips", "condition")
    host: ClassVar[tuple[str, ...]] = ("trips", "condition")

    def __post_init__(self) -> None:
        least = 2 + self.carried + len(self.scanned), 1 + self.carried
        got = len(self.body.inputs), len(self.body.outputs)
        if self.carried < 0 or got[0] < least[0] or got[1] < least[1] or got[1] < 2:
            raise ModelError(
                f"loop: {self.body.name!r} must have at least {least[0]} inputs and "
                f"{max(least[1], 2)} outputs, got {got[0]} and {got[1]}"
            )

    @property
    def operands(self) -> tuple[str, ...]:
        return "trips", "condition", "x"

    @property
    def required(self) -> tuple[str, ...]:
        return ()

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def count(self) -> int:
        return len(self.body.outputs) - 1

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        first = 2 + self.carried + len(self.scanned)
        return ((first, first),)

    def with_bodies(self, bodies: Sequence[Graph]) -> Loop:
        return replace(self, body=bodies[0])

    @property
    def endless(self) -> bool:
        """True where the body always decides to continue."""
        flag = self.body.outputs[0]
        if flag is self.body.inputs[1]:
            return True
        condition = constant_value(self.body, flag)
        return condition is not None and bool(condition.item())

    @property
    def counts(self) -> bool:
        """True where the body reads the number of the iteration."""
        number = self.body.inputs[0]
        return number in self.body.readers or number in self.body.outputs

    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        number = TensorType((), self.body.inputs[0].type.dtype)
        return (self._input_types(self.body, (number, FLAG, *types[2:])),)

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        named = self.named(types)
        if "trips" in named:
            self._single("trips", named["trips"], DType.int32, DType.int64)
        if "condition" in named:
            self._single("condition", named["condition"], DType.bool)
        elif "trips" not in named and not self.scanned:
            raise ShapeError("loop: trips or a condition must be there, or a scanned value")
        (numbers,), count = self.body_constants(constants), self._count(types, constants)
        try:
            flag, *outputs = results(self.body, self.body_types(types)[0], numbers)
        except ShapeError:  # raised when the body runs, if it does
            if count != UNKNOWN or not any(t and t.ranked and 0 in t.dims for t in types):
                raise
            return self.unknown(types)
        self._single(f"the first output of {self.body.name!r}", flag, DType.bool)
        initial = list(types[2 : 2 + self.carried])
        for number, first in enumerate(initial):
            if first is not None and outputs[number] == ANYTHING:
                outputs[number] = first.unranked
        carried, stacked = outputs[: self.carried], outputs[self.carried :]
        for number, (first, last) in enumerate(zip(initial, carried, strict=True)):
            if first is None or first.dtype is not last.dtype:
                raise ShapeError(
                    f"loop: value {number} must keep its dtype, got {first}, and {last} "
                    f"from {self.body.name!r}"
                )
        if any(first and first.dims != last.dims for first, last in zip(initial, carried)):
            outputs = self._changing_types(types, outputs, numbers)
            carried, stacked = outputs[: self.carried], outputs[self.carried :]
        return (*carried, *(_stacked_type(count, type) for type in stacked))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        carried = (type for type in types[2 : 2 + self.carried] if type is not None)
        stacked = (value.type for value in self.body.outputs[1 + self.carried :])
        return tuple(type.unranked for type in (*carried, *stacked))

    def _changing_types(
        self, types: Types, first_types: list[TensorType], numbers: Mapping[str, Array]
    ) -> list[TensorType]:
        """Return the types of the body's outputs, but the first, where the shapes of carried values
        change: a size that is the same in the first few iterations is known.

        first_types: the types in the first iteration.
        """
        initial = [type for type in types[2 : 2 + self.carried] if type is not None]
        iterations = [[*initial, *first_types[self.carried :]], first_types]
        for _ in range(INFERRED):
            pairs = zip(initial, iterations[-1], strict=False)
            carried = [first if first.holds else last for first, last in pairs]
            operands = (None, None, *carried, *types[2 + self.carried :])
            outputs = results(self.body, self.body_types(operands)[0], numbers)[1:]
            iterations.append(list(outputs))
        merged = []
        for output_types in zip(*iterations, strict=True):
            last = output_types[-1]
            if len({len(type.dims) for type in output_types}) > 1:
                merged.append(TensorType((UNRANKED,), output_types[0].dtype))
                continue
            sizes = zip(*(type.dims for type in output_types), strict=True)
            dims = tuple(n[0] if len(set(n)) == 1 else UNKNOWN for n in sizes)
            merged.append(TensorType(dims, last.dtype, last.holds))
        return merged

    def length(self, types: Types) -> int | None:
        """Return the length of the scanned values; None where there are none."""
        scanned = types[2 + self.carried :]
        sizes = [type.shape[a] for type, a in zip(scanned, self.scanned, strict=False) if type]
        if any(size != sizes[0] for size in sizes):
            lengths = sorted(set(map(int, sizes)))
            raise ShapeError(f"loop: scanned values must be of one length, got {lengths}")
        return sizes[0] if sizes else None

    def _count(self, types: Types, constants: Constants) -> Dim:
        """Return the number of iterations; UNKNOWN where it depends on numbers of a run."""
        trips, condition = (*constants, None, None)[:2]
        if condition is not None and not condition.item():
            return 0
        has_condition = len(types) > 1 and types[1] is not None
        if has_condition and (condition is None or not self.endless):
            return UNKNOWN
        bounds = [length] if (length := self.length(types)) is not None else []
        if types[0] is not None:
            if trips is None:
                return UNKNOWN
            bounds.append(max(as_integer(trips.item()), 0))
        return min(bounds, default=UNKNOWN)

    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        trips, condition, *xs = (*arrays, None, None)[: max(len(arrays), 2)]
        operands = [array for array in xs if array is not None]
        carried, others = operands[: self.carried], operands[self.carried :]
        bounds = [x.shape[axis] for x, axis in zip(others, self.scanned, strict=False)]
        bounds += [] if trips is None else [int(trips.item())]
        continues = condition is None or bool(condition.item())
        number, rows = 0, []
        while continues and (not bounds or number < min(bounds)):
            iteration = np.array(number, self.body.inputs[0].type.dtype.numpy)
            flag, *outputs = run(0, (iteration, np.array(True), *carried, *others))
            carried, number = outputs[: self.carried], number + 1
            rows.append(outputs[self.carried :])
            continues = condition is None or bool(flag.item())
        if not rows:
            return (*carried, *self._empty_stacks(operands))
        return (*carried, *map(_stack, zip(*rows, strict=True)))

    def _empty_stacks(self, operands: Sequence[Array]) -> list[Array]:
        """Return the stacked results where there are no iterations.

        Their sizes are those that the first iterations would have, if these agree, else those that
        the body declares, else 0.
        """
        pairs = zip(operands, self.body.inputs[2:], strict=True)
        types = (None, None, *(value.type.of_shape(x.shape) for x, value in pairs))
        number = self.body.inputs[0]
        iterations = []
        for i in range(INFERRED):
            numbers = {number.name: np.array(i, number.type.dtype.numpy)}
            with suppress(ShapeError, UnsupportedOpError):  # an iteration that is never run
                outputs = list(results(self.body, self.body_types(types)[0], numbers)[1:])
                iterations.append(self._changing_types(types, outputs, numbers)[self.carried :])
        stacked = [value.type for value in self.body.outputs[1 + self.carried :]]
        return [
            np.empty((0, *_agreed_sizes(inferred, declared)), declared.dtype.numpy)
            for declared, *inferred in zip(stacked, *iterations, strict=True)
        ]

    def cost(self, types: Types) -> Cost:
        """Return the cost of an iteration times the length of scanned values; of one iteration
        where there are none.
        """
        iteration, length = cost(self.body, self.body_types(types)[0]), self.length(types)
        count = 1 if length is None else length
        return Cost(count * iteration.flops, count * iteration.bytes)


def _agreed_sizes(inferred: Sequence[TensorType], declared: TensorType) -> tuple[int, ...]:
    """Return the sizes that all types in `inferred` have, else those of `declared`, else 0."""
    ranked = [type for type in (declared, *inferred) if type.ranked]
    if not ranked or len({len(type.dims) for type in ranked}) > 1:
        return ()
    agreed = []
    for i in range(len(ranked[0].dims)):
        sizes = {type.dims[i] for type in inferred if type.ranked}
        candidates = [*(sizes if len(sizes) == 1 else ()), *(declared.dims[i : i + 1])]
        agreed.append(next((n for n in candidates if isinstance(n, int)), 0))
    return tuple(agreed)


def _stacked_type(count: Dim, type: TensorType) -> TensorType:
    """Return the type of `count` tensors of `type`, stacked along a new first dimension."""
    return TensorType((count, *type.dims), type.dtype) if type.ranked else type


def _stack(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) > 1:
        shapes = f"{rows[0].shape} and {next(r.shape for r in rows if r.shape != rows[0].shape)}"
        raise ShapeError(f"loop: what is stacked must be of one shape throughout, got {shapes}")
    return np.stack(rows)

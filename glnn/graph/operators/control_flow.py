"""Base class of operators that run graphs, their bodies: branches and loops.

A body reads no value that the graph around it is given or computes: what it takes from there is an
operand of the node, and an input of the body, so that passes, memory and placement see all that a
node needs. Constants and variables it reads as any graph does.
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
"""Type of the flag by which a loop tells its body that it goes on."""
InputTypes = Mapping[str, TensorType]
Run = Callable[[int, Sequence[Array]], Sequence[Array]]
"""Function that runs the body of a number on arrays of its inputs, and returns its outputs."""


class Control(Operator):
    """An operator that runs graphs. Results are those of the bodies, in order."""

    control: ClassVar[bool] = True
    variadic: ClassVar[bool] = True

    @property
    @abstractmethod
    def bodies(self) -> tuple[Graph, ...]:
        """The graphs that it runs."""

    @property
    @abstractmethod
    def captures(self) -> tuple[tuple[int, int], ...]:
        """For each body the first operand that is an input of it as it is, and which input that is.

        All further inputs of that body are the operands behind that one.
        """

    @abstractmethod
    def with_bodies(self, bodies: Sequence[Graph]) -> Control:
        """The same with other bodies."""

    @abstractmethod
    def body_types(self, types: Types) -> tuple[InputTypes, ...]:
        """The types of each body's inputs, by name, for operands of `types`."""

    def body_constants(self, constants: Constants) -> tuple[Mapping[str, Array], ...]:
        """Return the known arrays of each body's inputs, by name, given those of the operands."""
        known = []
        for body, (operand, first) in zip(self.bodies, self.captures, strict=True):
            pairs = zip(body.inputs[first:], constants[operand:], strict=False)
            known.append({value.name: array for value, array in pairs if array is not None})
        return tuple(known)

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of results."""

    @abstractmethod
    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """The results' types where operands do not fit, or too little is known of them: dtypes
        without sizes.
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
        """The results for arrays of the operands, of whatever sizes come of them by `run`."""

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return self.perform(lambda body, inputs: self.bodies[body].reference(*inputs), *arrays)

    def _input_types(self, body: Graph, types: Types) -> InputTypes:
        """The type of each input of `body` by its name. Raises ShapeError where some do not fit."""
        if len(types) != len(body.inputs):
            raise ShapeError(
                f"{self.name}: {body.name!r} takes {len(body.inputs)} values, got {len(types)}"
            )
        result: dict[str, TensorType] = {}
        for value, type in zip(body.inputs, types, strict=True):
            loose = ANYTHING in (type, value.type)
            if type is None or (type.dtype is not value.type.dtype and not loose):
                raise ShapeError(
                    f"{self.name}: {value.name!r} of {body.name!r} must be "
                    f"{value.type.dtype.value}, got {type or 'nothing'}"
                )
            result[value.name] = type
        return result

    def _single(self, operand: str, type: TensorType, *dtypes: DType) -> None:
        """Raise ShapeError unless `type` is one number of one of `dtypes`."""
        if type.dtype not in dtypes or (not type.symbols and prod(type.shape) != 1):
            names = " or ".join(dtype.value for dtype in dtypes)
            raise ShapeError(f"{self.name}: {operand} must be one {names}, got {type}")


def results(body: Graph, types: InputTypes, numbers: Mapping[str, Array]) -> tuple[TensorType, ...]:
    """The types of the outputs of `body` for inputs of such types, and of such numbers, by name."""
    inferred, _ = body.propagate_constants(types, numbers)
    return tuple(inferred.get(value, value.type) for value in body.outputs)


def cost(body: Graph, input_types: InputTypes) -> Cost:
    """Return the cost of the nodes of `body` that are computed in each run."""
    types, flops, nbytes = body.infer_types(input_types), 0, 0
    for node in body.nodes:
        if node.outputs[0] not in body.fixed:
            one = node.operator.cost([None if v is None else types[v] for v in node.inputs])
            flops, nbytes = flops + one.flops, nbytes + one.bytes
    return Cost(flops, nbytes)


@dataclass(frozen=True)
class If(Control):
    """The results of `then` where the condition is true, else those of `otherwise`.

    condition: one bool. x0, x1, ...: the inputs of `then`, then those of `otherwise`. Results have
    the same dtype in both; a size or rank in which they differ is not known before a run.
    ONNX: If.
    """

    then: Graph
    """Graph that is computed where the condition is true."""
    otherwise: Graph
    """Graph that is computed where the condition is false."""

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
        each = zip(self.bodies, self.body_types(types), self.body_constants(constants), strict=True)
        both = [results(body, operands, numbers) for body, operands, numbers in each]
        types_either = [self._either(i, a, b) for i, (a, b) in enumerate(zip(*both, strict=True))]
        condition = constants[0] if constants else None
        return tuple(types_either) if condition is None else both[0 if condition.item() else 1]

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        pairs = zip(self.then.outputs, self.otherwise.outputs, strict=True)
        both = ((one.type, other.type) for one, other in pairs)
        return tuple((then if then != ANYTHING else other).unranked for then, other in both)

    def _either(self, number: int, then: TensorType, otherwise: TensorType) -> TensorType:
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


SEEN = 3  # further iterations that are looked at where shapes change


@dataclass(frozen=True)
class Loop(Control):
    """A loop that runs `body` repeatedly, on its own results of the iteration before. ONNX: Loop,
    and Scan.

    trips: one int32 or int64, how often at the most. condition: one bool, whether to begin; then
    the body says whether to go on, but is asked only where there is a condition. At least one of
    these is there, or a scanned value. x0, x1, ...: the first of the values that are carried from
    one iteration to the next, then the scanned values, then what the body takes besides.

    Inputs of the body: the number of the iteration, from 0, an int32 or int64; whether it goes on,
    a bool; the carried values; the scanned ones, whole: it takes its place of them itself; what it
    takes besides. Its outputs: whether to go on; the carried values, of the dtypes that
    they had; any number of others. Results: the carried values as they are at the end, and of each
    other output those of all iterations, stacked along a new first dimension. Sizes and the rank
    of a carried value may change.
    """

    body: Graph
    """Graph that is computed in each iteration."""
    carried: int = 0
    """Number of values carried from one iteration to the next."""
    scanned: tuple[int, ...] = ()
    """Axis of each scanned value along which it is walked, one place in each iteration."""

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
        """True where the body always says to go on."""
        going = self.body.outputs[0]
        if going is self.body.inputs[1]:
            return True
        condition = constant_value(self.body, going)
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
            going, *outputs = results(self.body, self.body_types(types)[0], numbers)
        except ShapeError:  # refused where it runs, if it does
            if count != UNKNOWN or not any(one and one.ranked and 0 in one.dims for one in types):
                raise
            return self.unknown(types)
        self._single(f"the first output of {self.body.name!r}", going, DType.bool)
        states = list(types[2 : 2 + self.carried])
        for number, first in enumerate(states):
            if first is not None and outputs[number] == ANYTHING:
                outputs[number] = first.unranked
        carried, stacked = outputs[: self.carried], outputs[self.carried :]
        for number, (first, last) in enumerate(zip(states, carried, strict=True)):
            if first is None or first.dtype is not last.dtype:
                raise ShapeError(
                    f"loop: value {number} must keep its dtype, got {first}, and {last} "
                    f"from {self.body.name!r}"
                )
        if any(first and first.dims != last.dims for first, last in zip(states, carried)):
            outputs = self._changing_types(types, outputs, numbers)
            carried, stacked = outputs[: self.carried], outputs[self.carried :]
        return (*carried, *(_rows(count, one) for one in stacked))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        carried = (one for one in types[2 : 2 + self.carried] if one is not None)
        stacked = (value.type for value in self.body.outputs[1 + self.carried :])
        return tuple(one.unranked for one in (*carried, *stacked))

    def _changing_types(
        self, types: Types, first_types: list[TensorType], numbers: Mapping[str, Array]
    ) -> list[TensorType]:
        """The types of what the body gives where the shapes of carried values change.

        first_types: those of the first iteration. A size that a few iterations keep stays.
        """
        states = [type for type in types[2 : 2 + self.carried] if type is not None]
        seen = [[*states, *first_types[self.carried :]], first_types]
        for _ in range(SEEN):
            pairs = zip(states, seen[-1], strict=False)
            carried = [first if first.holds else last for first, last in pairs]
            now = (None, None, *carried, *types[2 + self.carried :])
            seen.append(list(results(self.body, self.body_types(now)[0], numbers)[1:]))
        joined = []
        for each in zip(*seen, strict=True):
            if len({len(one.dims) for one in each}) > 1:
                joined.append(TensorType((UNRANKED,), each[0].dtype))
                continue
            sizes = zip(*(one.dims for one in each), strict=True)
            dims = tuple(some[0] if len(set(some)) == 1 else UNKNOWN for some in sizes)
            joined.append(TensorType(dims, each[-1].dtype, each[-1].holds))
        return joined

    def length(self, types: Types) -> int | None:
        """Return the length of the scanned values, None where there are none."""
        scanned = types[2 + self.carried :]
        sizes = [type.shape[a] for type, a in zip(scanned, self.scanned, strict=False) if type]
        if any(size != sizes[0] for size in sizes):
            lengths = sorted(set(map(int, sizes)))
            raise ShapeError(f"loop: scanned values must be of one length, got {lengths}")
        return sizes[0] if sizes else None

    def _count(self, types: Types, constants: Constants) -> Dim:
        """Return the number of iterations, UNKNOWN where a run decides it."""
        trips, condition = (*constants, None, None)[:2]
        if condition is not None and not condition.item():
            return 0
        ends = len(types) > 1 and types[1] is not None
        if ends and (condition is None or not self.endless):
            return UNKNOWN
        bounds = [length] if (length := self.length(types)) is not None else []
        if types[0] is not None:
            if trips is None:
                return UNKNOWN
            bounds.append(max(as_integer(trips.item()), 0))
        return min(bounds, default=UNKNOWN)

    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        trips, condition, *rest = (*arrays, None, None)[: max(len(arrays), 2)]
        present = [array for array in rest if array is not None]
        carried, others = present[: self.carried], present[self.carried :]
        bounds = [x.shape[axis] for x, axis in zip(others, self.scanned, strict=False)]
        bounds += [] if trips is None else [int(trips.item())]
        going = condition is None or bool(condition.item())
        number, rows = 0, []
        while going and (not bounds or number < min(bounds)):
            at = np.array(number, self.body.inputs[0].type.dtype.numpy)
            last, *outputs = run(0, (at, np.array(True), *carried, *others))
            carried, number = outputs[: self.carried], number + 1
            rows.append(outputs[self.carried :])
            going = condition is None or bool(last.item())
        if not rows:
            return (*carried, *self._empty_stacks(present))
        return (*carried, *map(_stack, zip(*rows, strict=True)))

    def _empty_stacks(self, operands: Sequence[Array]) -> list[Array]:
        """Return what is stacked where there are no iterations.

        A size that the first iterations would all have is that one, else the size that the body
        says, else 0.
        """
        pairs = zip(operands, self.body.inputs[2:], strict=True)
        types = (None, None, *(value.type.of_shape(x.shape) for x, value in pairs))
        number = self.body.inputs[0]
        seen = []
        for i in range(SEEN):
            told = {number.name: np.array(i, number.type.dtype.numpy)}
            with suppress(ShapeError, UnsupportedOpError):  # an iteration that is never run
                outputs = list(results(self.body, self.body_types(types)[0], told)[1:])
                seen.append(self._changing_types(types, outputs, told)[self.carried :])
        stacked = [value.type for value in self.body.outputs[1 + self.carried :]]
        return [
            np.empty((0, *_sizes(each, type)), type.dtype.numpy)
            for type, *each in zip(stacked, *seen, strict=True)
        ]

    def cost(self, types: Types) -> Cost:
        """Return the cost of one iteration for each of the scanned values, or of one without
        these.
        """
        once, length = cost(self.body, self.body_types(types)[0]), self.length(types)
        times = 1 if length is None else length
        return Cost(times * once.flops, times * once.bytes)


def _sizes(seen: Sequence[TensorType], declared: TensorType) -> tuple[int, ...]:
    """Return the sizes that all of `seen` have, else those of `declared`, else 0."""
    ranked = [one for one in (declared, *seen) if one.ranked]
    if not ranked or len({len(one.dims) for one in ranked}) > 1:
        return ()
    agreed = []
    for i in range(len(ranked[0].dims)):
        sizes = {one.dims[i] for one in seen if one.ranked}
        candidates = [*(sizes if len(sizes) == 1 else ()), *(declared.dims[i : i + 1])]
        agreed.append(next((n for n in candidates if isinstance(n, int)), 0))
    return tuple(agreed)


def _rows(count: Dim, one: TensorType) -> TensorType:
    """The type of so many of `one`, stacked."""
    return TensorType((count, *one.dims), one.dtype) if one.ranked else one


def _stack(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) > 1:
        shapes = f"{rows[0].shape} and {next(r.shape for r in rows if r.shape != rows[0].shape)}"
        raise ShapeError(f"loop: what is stacked must be of one shape throughout, got {shapes}")
    return np.stack(rows)

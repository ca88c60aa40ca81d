"""A graph again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.constant import settled
from glnn.graph.graph import Graph
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators.control import FLAG, Control, InputTypes, Run, cost, results
from glnn.symint import as_integer
from glnn.types import ANYTHING, UNKNOWN, UNRANKED, Array, Dim, DType, TensorType

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
        found = settled(self.body, going)
        return found is not None and bool(found.item())

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
            going, *found = results(self.body, self.body_types(types)[0], numbers)
        except ShapeError:  # refused where it runs, if it does
            if count != UNKNOWN or not any(one and one.ranked and 0 in one.dims for one in types):
                raise
            return self.unknown(types)
        self._single(f"the first output of {self.body.name!r}", going, DType.bool)
        given = list(types[2 : 2 + self.carried])
        for number, first in enumerate(given):
            if first is not None and found[number] == ANYTHING:
                found[number] = first.unranked
        carried, stacked = found[: self.carried], found[self.carried :]
        for number, (first, last) in enumerate(zip(given, carried, strict=True)):
            if first is None or first.dtype is not last.dtype:
                raise ShapeError(
                    f"loop: value {number} must keep its dtype, got {first}, and {last} "
                    f"from {self.body.name!r}"
                )
        if any(first and first.dims != last.dims for first, last in zip(given, carried)):
            found = self._changing(types, found, numbers)
            carried, stacked = found[: self.carried], found[self.carried :]
        return (*carried, *(_rows(count, one) for one in stacked))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        carried = (one for one in types[2 : 2 + self.carried] if one is not None)
        stacked = (value.type for value in self.body.outputs[1 + self.carried :])
        return tuple(one.unranked for one in (*carried, *stacked))

    def _changing(
        self, types: Types, found: list[TensorType], numbers: Mapping[str, Array]
    ) -> list[TensorType]:
        """The types of what the body gives where the shapes of carried values change.

        found: those of the first iteration. A size that is the same after a few is one that stays.
        """
        given = [type for type in types[2 : 2 + self.carried] if type is not None]
        seen = [[*given, *found[self.carried :]], found]
        for _ in range(SEEN):
            pairs = zip(given, seen[-1], strict=False)
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
        given = [array for array in rest if array is not None]
        carried, others = given[: self.carried], given[self.carried :]
        bounds = [x.shape[axis] for x, axis in zip(others, self.scanned, strict=False)]
        bounds += [] if trips is None else [int(trips.item())]
        going = condition is None or bool(condition.item())
        number, rows = 0, []
        while going and (not bounds or number < min(bounds)):
            at = np.array(number, self.body.inputs[0].type.dtype.numpy)
            last, *found = run(0, (at, np.array(True), *carried, *others))
            carried, number = found[: self.carried], number + 1
            rows.append(found[self.carried :])
            going = condition is None or bool(last.item())
        if not rows:
            return (*carried, *self._nothing(given))
        return (*carried, *map(_stacked, zip(*rows, strict=True)))

    def _nothing(self, given: Sequence[Array]) -> list[Array]:
        """Return what is stacked where there are no iterations.

        A size that the first iterations would all have is that one, else the size that the body
        says, else 0.
        """
        pairs = zip(given, self.body.inputs[2:], strict=True)
        types = (None, None, *(value.type.of_shape(x.shape) for x, value in pairs))
        number = self.body.inputs[0]
        seen = []
        for i in range(SEEN):
            told = {number.name: np.array(i, number.type.dtype.numpy)}
            with suppress(ShapeError, UnsupportedOpError):  # an iteration that is never run
                found = list(results(self.body, self.body_types(types)[0], told)[1:])
                seen.append(self._changing(types, found, told)[self.carried :])
        stacked = [value.type for value in self.body.outputs[1 + self.carried :]]
        return [
            np.empty((0, *_sizes(each, own)), own.dtype.numpy)
            for own, *each in zip(stacked, *seen, strict=True)
        ]

    def cost(self, types: Types) -> Cost:
        """Return the cost of one iteration for each of the scanned values, or of one without
        these.
        """
        once, length = cost(self.body, self.body_types(types)[0]), self.length(types)
        times = 1 if length is None else length
        return Cost(times * once.flops, times * once.bytes)


def _sizes(seen: Sequence[TensorType], own: TensorType) -> tuple[int, ...]:
    """Return the sizes that all of `seen` have, else those of `own`, else 0."""
    ranked = [one for one in (own, *seen) if one.ranked]
    if not ranked or len({len(one.dims) for one in ranked}) > 1:
        return ()
    found = []
    for i in range(len(ranked[0].dims)):
        sizes = {one.dims[i] for one in seen if one.ranked}
        candidates = [*(sizes if len(sizes) == 1 else ()), *(own.dims[i : i + 1])]
        found.append(next((n for n in candidates if isinstance(n, int)), 0))
    return tuple(found)


def _rows(count: Dim, one: TensorType) -> TensorType:
    """The type of so many of `one`, stacked."""
    return TensorType((count, *one.dims), one.dtype) if one.ranked else one


def _stacked(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) > 1:
        shapes = f"{rows[0].shape} and {next(r.shape for r in rows if r.shape != rows[0].shape)}"
        raise ShapeError(f"loop: what is stacked must be of one shape throughout, got {shapes}")
    return np.stack(rows)

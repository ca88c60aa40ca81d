"""Operators that run graphs, their bodies: branches and loops.

A body reads no value that the graph around it is given or computes: what it takes from there is an
operand of the node, and an input of the body, so that passes, memory and placement see all that a
node needs. Constants and variables it reads as any graph does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ModelError, ShapeError
from glnn.graph.constant import settled
from glnn.graph.graph import Graph
from glnn.graph.operator import Cost, Known, Operator, Types
from glnn.types import UNKNOWN, Array, Dim, DType, TensorType

SEEN = 3  # further iterations that are looked at where shapes change
FLAG = TensorType((), DType.bool)
"""What a loop tells its body: that it goes on."""
Given = Mapping[str, TensorType]
Run = Callable[[int, Sequence[Array]], Sequence[Array]]
"""What gives the outputs of the body of that number for arrays of its inputs."""


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
    def given(self, types: Types) -> tuple[Given, ...]:
        """The types of each body's inputs, by name, for operands of `types`."""

    @abstractmethod
    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        """The results for arrays of the operands, of whatever sizes come of them by `run`."""

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return self.perform(lambda body, given: self.bodies[body].reference(*given), *arrays)

    def _given(self, body: Graph, types: Types) -> Given:
        """The type of each input of `body` by its name. Raises ShapeError where some do not fit."""
        if len(types) != len(body.inputs):
            raise ShapeError(
                f"{self.name}: {body.name!r} takes {len(body.inputs)} values, got {len(types)}"
            )
        found: dict[str, TensorType] = {}
        for value, type in zip(body.inputs, types, strict=True):
            if type is None or type.dtype is not value.type.dtype:
                raise ShapeError(
                    f"{self.name}: {value.name!r} of {body.name!r} must be "
                    f"{value.type.dtype.value}, got {type or 'nothing'}"
                )
            found[value.name] = type
        return found

    def _single(self, operand: str, type: TensorType, *dtypes: DType) -> None:
        """Raise ShapeError unless `type` is one number of one of `dtypes`."""
        if type.dtype not in dtypes or (not type.symbols and prod(type.shape) != 1):
            names = " or ".join(dtype.value for dtype in dtypes)
            raise ShapeError(f"{self.name}: {operand} must be one {names}, got {type}")


@dataclass(frozen=True)
class If(Control):
    """The results of `then` where the condition is true, else those of `otherwise`.

    condition: one bool. x0, x1, ...: the inputs of `then`, then those of `otherwise`. Results have
    the same dtype and rank in both; a size in which they differ is not known before a run.
    ONNX: If.
    """

    then: Graph
    """Computed where the condition is true."""
    otherwise: Graph
    """Computed where it is false."""

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
    def captures(self) -> tuple[tuple[int, int], ...]:
        return (1, 0), (1 + len(self.then.inputs), 0)

    def with_bodies(self, bodies: Sequence[Graph]) -> If:
        return If(*bodies)

    def given(self, types: Types) -> tuple[Given, ...]:
        count = 1 + len(self.then.inputs)
        return self._given(self.then, types[1:count]), self._given(self.otherwise, types[count:])

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        self._single("condition", self.named(types)["condition"], DType.bool)
        both = [results(b, given) for b, given in zip(self.bodies, self.given(types), strict=True)]
        found = [self._either(i, a, b) for i, (a, b) in enumerate(zip(*both, strict=True))]
        condition = known[0] if known else None
        return tuple(found) if condition is None else both[0 if condition.item() else 1]

    def _either(self, number: int, then: TensorType, otherwise: TensorType) -> TensorType:
        if then.dtype is not otherwise.dtype or len(then.dims) != len(otherwise.dims):
            raise ShapeError(
                f"if: result {number} must have one dtype and rank in both branches, "
                f"got {then} and {otherwise}"
            )
        sizes = zip(then.dims, otherwise.dims, strict=True)
        return TensorType(tuple(a if a == b else UNKNOWN for a, b in sizes), then.dtype)

    def perform(self, run: Run, *arrays: Array | None) -> tuple[Array, ...]:
        condition, *given = (array for array in arrays if array is not None)
        count = len(self.then.inputs)
        return tuple(run(0, given[:count]) if condition.item() else run(1, given[count:]))

    def cost(self, types: Types) -> Cost:
        """That of the branch that costs more."""
        pairs = zip(self.bodies, self.given(types), strict=True)
        return max((cost(body, given) for body, given in pairs), key=lambda c: (c.flops, c.bytes))


@dataclass(frozen=True)
class Loop(Control):
    """`body` again and again, on what it made of the values before. ONNX: Loop, and Scan.

    trips: one int32 or int64, how often at the most. condition: one bool, whether to begin; then
    the body says whether to go on, but is asked only where there is a condition. At least one of
    these is there, or a scanned value. x0, x1, ...: the first of the values that are carried from
    one iteration to the next, then the scanned values, then what the body takes besides.

    Inputs of the body: the number of the iteration, from 0, an int32 or int64; whether it goes on,
    a bool; the carried values; the scanned ones, whole: it takes its place of them itself; what it
    takes besides. Its outputs: whether to go on; the carried values, of the dtypes and ranks that
    they had; any number of others. Results: the carried values as they are at the end, and of each
    other output those of all iterations, stacked along a new first dimension.
    """

    body: Graph
    """Computed in each iteration."""
    carried: int = 0
    """How many values are carried."""
    scanned: tuple[int, ...] = ()
    """For each scanned value the axis along which it is walked, as often as it is long there."""

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
    def needed(self) -> tuple[str, ...]:
        return ()

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def captures(self) -> tuple[tuple[int, int], ...]:
        first = 2 + self.carried + len(self.scanned)
        return ((first, first),)

    def with_bodies(self, bodies: Sequence[Graph]) -> Loop:
        return replace(self, body=bodies[0])

    @property
    def endless(self) -> bool:
        """Whether its body always says to go on."""
        going = self.body.outputs[0]
        if going is self.body.inputs[1]:
            return True
        found = settled(self.body, going)
        return found is not None and bool(found.item())

    @property
    def counts(self) -> bool:
        """Whether its body looks at the number of the iteration."""
        number = self.body.inputs[0]
        return number in self.body.readers or number in self.body.outputs

    def given(self, types: Types) -> tuple[Given, ...]:
        number = TensorType((), self.body.inputs[0].type.dtype)
        return (self._given(self.body, (number, FLAG, *types[2:])),)

    def infer(self, types: Types, known: Known = ()) -> tuple[TensorType, ...]:
        named = self.named(types)
        if "trips" in named:
            self._single("trips", named["trips"], DType.int32, DType.int64)
        if "condition" in named:
            self._single("condition", named["condition"], DType.bool)
        elif "trips" not in named and not self.scanned:
            raise ShapeError("loop: trips or a condition must be there, or a scanned value")
        going, *found = results(self.body, self.given(types)[0])
        self._single(f"the first output of {self.body.name!r}", going, DType.bool)
        carried, stacked = found[: self.carried], found[self.carried :]
        given = list(types[2 : 2 + self.carried])
        for number, (first, last) in enumerate(zip(given, carried, strict=True)):
            if first is None or (first.dtype, len(first.dims)) != (last.dtype, len(last.dims)):
                raise ShapeError(
                    f"loop: value {number} must keep its dtype and rank, got {first}, and {last} "
                    f"from {self.body.name!r}"
                )
        if carried != given:
            found = self._changing(types, found)
            carried, stacked = found[: self.carried], found[self.carried :]
        count = self._count(types, known)
        return (*carried, *(TensorType((count, *one.dims), one.dtype) for one in stacked))

    def _changing(self, types: Types, found: list[TensorType]) -> list[TensorType]:
        """The types of what the body gives where the shapes of carried values change.

        found: those of the first iteration. A size that is the same after a few is one that stays.
        """
        given = [type for type in types[2 : 2 + self.carried] if type is not None]
        seen = [[*given, *found[self.carried :]], found]
        for _ in range(SEEN):
            now = (None, None, *seen[-1][: self.carried], *types[2 + self.carried :])
            seen.append(list(results(self.body, self.given(now)[0])[1:]))
        joined = []
        for each in zip(*seen, strict=True):
            sizes = zip(*(one.dims for one in each), strict=True)
            dims = tuple(some[0] if len(set(some)) == 1 else UNKNOWN for some in sizes)
            joined.append(TensorType(dims, each[0].dtype))
        return joined

    def length(self, types: Types) -> int | None:
        """How long the scanned values are, None where there are none."""
        scanned = types[2 + self.carried :]
        sizes = {type.shape[a] for type, a in zip(scanned, self.scanned, strict=False) if type}
        if len(sizes) > 1:
            raise ShapeError(f"loop: scanned values must be of one length, got {sorted(sizes)}")
        return sizes.pop() if sizes else None

    def _count(self, types: Types, known: Known) -> Dim:
        """How many iterations there are, where that is known before a run."""
        trips, condition = (*known, None, None)[:2]
        if condition is not None and not condition.item():
            return 0
        ends = len(types) > 1 and types[1] is not None
        if ends and (condition is None or not self.endless):
            return UNKNOWN
        bounds = [length] if (length := self.length(types)) is not None else []
        if types[0] is not None:
            if trips is None:
                return UNKNOWN
            bounds.append(max(int(trips.item()), 0))
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
        """What is stacked where there are no iterations."""
        pairs = zip(given, self.body.inputs[2:], strict=True)
        types = (None, None, *(TensorType(x.shape, value.type.dtype) for x, value in pairs))
        found = results(self.body, self.given(types)[0])[1 + self.carried :]
        sizes = [[0 if isinstance(dim, str) else dim for dim in one.dims] for one in found]
        return [
            np.empty((0, *size), one.dtype.numpy) for size, one in zip(sizes, found, strict=True)
        ]

    def cost(self, types: Types) -> Cost:
        """That of as many iterations as the scanned values are long, else of one."""
        once, length = cost(self.body, self.given(types)[0]), self.length(types)
        times = 1 if length is None else length
        return Cost(times * once.flops, times * once.bytes)


def _stacked(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) > 1:
        shapes = f"{rows[0].shape} and {next(r.shape for r in rows if r.shape != rows[0].shape)}"
        raise ShapeError(f"loop: what is stacked must be of one shape throughout, got {shapes}")
    return np.stack(rows)


def results(body: Graph, given: Given) -> tuple[TensorType, ...]:
    """The types of the outputs of `body` for inputs of such types, by name."""
    found = body.bind(given)
    return tuple(found.get(value, value.type) for value in body.outputs)


def cost(body: Graph, given: Given) -> Cost:
    """What the nodes of `body` cost together that are computed in each run."""
    types, flops, nbytes = body.bind(given), 0, 0
    for node in body.nodes:
        if node.outputs[0] not in body.fixed:
            one = node.operator.cost([None if v is None else types[v] for v in node.inputs])
            flops, nbytes = flops + one.flops, nbytes + one.bytes
    return Cost(flops, nbytes)

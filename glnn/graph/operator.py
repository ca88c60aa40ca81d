"""The base class of operators: attributes, type rule, cost and NumPy reference. Knows no OpenGL."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np

from glnn.core.symint import holds_symbols, plain
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval, hull

T = TypeVar("T")
SMALL = 4096  # numbers of a tensor that are looked at before a run, where sizes may depend on them
MANY, UNIT = 24, 16
"""Results along an axis, beyond which fewer do to see a kernel at work; what their number is
reduced by is a multiple of, so that it has the same powers of two as its factors."""
Types = Sequence[TensorType | None]
"""The type of each operand, in order; None where one is left out."""
Reference = Callable[..., tuple[Array, ...]]
"""Function from the operands' arrays, None for each that is left out, to an operator's results."""
Constants = Sequence[Array | None]
"""The array of each operand that is known before a run, else None; shorter where no more are."""
Intervals = Sequence[Interval | None]
"""Interval of each operand's numbers, in order; None where an operand is left out."""
Shapes = Mapping[str, Shape]
"""The shape of each operand, by the operand's name."""
Operands = Mapping[str, "TensorType | Shape"]
"""The type of each operand by its name, or the shape of what is float32."""


@dataclass(frozen=True)
class Cost:
    """The least work and memory traffic of one run of an op.

    flops: floating-point operations, a multiply-add counting two.
    bytes: float32 bytes, each operand read once and the result written once.
    """

    flops: int
    bytes: int


@dataclass(frozen=True)
class SampleSubset:
    """`op` on a few samples, whose results are those of any number of samples that repeat them.

    shapes: of the operands, with the few samples. stacks: of each operand that has samples, and of
    `out`, how many times its first dimension goes through all samples, one time after the other.
    """

    op: Operator
    shapes: Shapes
    stacks: Mapping[str, int]


class _Kind(ABCMeta):
    """Metaclass of operators, whose isinstance asks for inheritance alone."""

    __instancecheck__ = type.__instancecheck__  # that of ABCMeta takes ten times as long


class Operator(metaclass=_Kind):
    """Base class of operators. Subclasses are frozen dataclasses of the operator's attributes.

    `name` is the operator's name in every folder. `operands` names its operands in order.
    """

    name: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()
    """Operands that may be left out."""
    variadic: ClassVar[bool] = False
    """True where the last operand may be there any number of times."""
    host: ClassVar[tuple[str, ...]] = ()
    """Operands that the host reads, since their numbers decide about the results' types: they must
    be known before anything is planned."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Operands that are fixed with the model."""
    view: ClassVar[bool] = False
    """True where nothing moves: the result is the memory of the input."""
    updates: ClassVar[str | None] = None
    """The operand whose memory the result takes, on a backend that writes where it reads."""
    passes: ClassVar[tuple[str, ...]] = ()
    """Operands of whose numbers all the results' are some; empty where others may come."""
    moves: ClassVar[bool] = False
    """True where the results' numbers are those of the first operand, and no others."""
    samples: ClassVar[bool] = False
    """True where each sample, along the first dimension of operands and result, is computed alone.
    """
    nan_operands: ClassVar[tuple[str, ...]] = ()
    """Operands whose NaN and infinities show in every kernel's result where they do in the
    reference's."""
    compared_operands: ClassVar[tuple[str, ...]] = ()
    """Operands whose numbers are compared with each other."""
    has_depth: ClassVar[bool] = False
    """True where sums can be made longer (`of_depth`)."""
    has_epilogue: ClassVar[bool] = False
    """True where pointwise work may be done on the first result before that is stored."""
    control: ClassVar[bool] = False
    """True where it runs graphs, its bodies, between which the host decides (`Control`)."""
    composite: ClassVar[bool] = False
    """True where it is made of other operators once types are known (`Composite`)."""
    fp16_operands: ClassVar[tuple[str, ...]] = ()
    """Operands that may be float16, which are computed with as float32."""
    int8_operands: ClassVar[tuple[str, ...]] = ()
    """Operands that may be int8, of which a word stores four."""
    table: ClassVar[bool] = False
    """True where there are no operands: the results follow from attributes, among them sizes, and
    are kept as weights are."""
    array_function: ClassVar[str] = ""
    """The function of `glnn.core.array_functions` that makes the result of the operands and
    `array_attributes`, followed by the result's number where there are several; empty for none."""
    any_sizes: ClassVar[bool] = False
    """True where what `specialize` returns takes arrays of other sizes, of as many dimensions."""

    @property
    def array_attributes(self) -> tuple[Any, ...]:
        """Attributes, as plain data, that `array_function` takes after the operands."""
        return tuple(plain_values(self))

    @property
    def operands(self) -> tuple[str, ...]:
        """The operands' names, in order."""
        return ("x",)

    @abstractmethod
    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        """Return the results' types.

        types: of the operands, None for each that is left out. constants: the operands' arrays that
        are known before a run, None for others. Raises ShapeError where the operands do not fit.
        """

    @abstractmethod
    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        """The results by NumPy, of floats in the precision of the operands, 32 or 64 bits."""

    def reference_views(self, *arrays: Array | None) -> tuple[Array, ...]:
        """Compute `reference` of an operator that `moves`, in whatever order of memory takes
        least.
        """
        return self.reference(*arrays)

    def specialize(self, types: Types) -> Reference:
        """Return a function that does what `reference` does with arrays of `types`.

        Whatever follows from types alone is found here, once. The function may be called within
        `np.errstate` alone, by one thread at a time, and gives arrays that it does not write again.
        """
        return self.reference

    def specialize_with_bias(self, types: Types) -> Reference | None:
        """Return `specialize`'s function with an operand more, before the others: a bias (c,), of
        which each number is added to a channel of the first result. None where that saves nothing.
        """
        return None

    def reference_with_epilogue(
        self, finish: Callable[[Array], Array], *arrays: Array | None
    ) -> tuple[Array, ...]:
        """Return the results by NumPy, the first one after `finish`, an epilogue's function."""
        first, *rest = self.reference(*arrays)
        return (finish(first), *rest)

    @abstractmethod
    def cost(self, types: Types) -> Cost:
        """Return the least work and memory traffic of one run."""

    @property
    def label(self) -> str:
        """Name of the operator for people."""
        return self.name

    @property
    def shape_inputs(self) -> tuple[str, ...]:
        """The operands whose numbers the results' types follow from, as the shape of a Reshape."""
        return ()

    @property
    def all_shape_inputs(self) -> tuple[str, ...]:
        """The operands whose numbers sizes follow from, also sizes within the operator's bodies."""
        return self.shape_inputs

    @property
    def type_only(self) -> tuple[str, ...]:
        """The operands of which the results depend on the type alone, on none of the numbers."""
        return ()

    @property
    def random(self) -> bool:
        """True where each run gives other results for the same operands."""
        return False

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        """Return the array of each result that is known before a run, None for others.

        The arguments are those of `infer`. results: what that returned, where it was called before.
        """
        if results is None:
            results = self.infer(types, constants)
        is_known = [array is not None for array in constants]
        there = [type is not None for type in types]
        if self.control or is_known != there or not any(is_known):
            return (None,) * len(results)
        if holds_symbols(vars(self).values()):  # the numbers of the result differ from size to size
            return (None,) * len(results)
        few = not any(t.symbols for t in results) and sum(prod(t.shape) for t in results) <= SMALL
        return tuple(map(plain, self.reference(*constants))) if few else (None,) * len(results)

    def infer_open_sizes(
        self, types: Types, constants: Constants, *, strict: bool
    ) -> tuple[tuple[TensorType, ...], Constants]:
        """Return the results' types and constants where sample sizes stand for open ones.

        strict: True to raise an error where operands do not fit, since they would fit for no sizes.
        Else composites and control flow return results of unknown sizes.
        """
        results = self.infer(types, constants)
        return results, self.propagate_constants(types, constants, results)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        """Return the interval of each result's numbers for operands that lie within `intervals`.

        Empty where they are unknown.
        """
        last = len(self.operands) - 1
        named = ((self.operands[min(i, last)], interval) for i, interval in enumerate(intervals))
        taken = [
            interval for name, interval in named if name in self.passes and interval is not None
        ]
        return (hull(taken),) * len(self.infer(types)) if taken else ()

    def narrow(self, intervals: Intervals, types: Types) -> Operator | None:
        """Return the operator for int32 instead of int64, where operands and results fit it.

        None where a number on the way may not fit, or is unknown. intervals: of the operands.
        """
        return self if self.passes else None

    @property
    def required(self) -> tuple[str, ...]:
        """The operands that must be there."""
        return tuple(name for name in self.operands if name not in self.optional)

    @property
    def single_result_operators(self) -> tuple[Operator, ...]:
        """Return an operator of one result for each of several results, on the same operands; empty
        where there are none.
        """
        return ()

    def names(self, count: int) -> tuple[str, ...]:
        """The names of `count` operands: x, and x0, x1, ... of the variadic one."""
        names = list(self.operands)
        if self.variadic:
            last = names.pop()
            names += [f"{last}{i}" for i in range(count - len(names))]
        return tuple(names)

    def named(self, items: Sequence[T | None]) -> dict[str, T]:
        """Return the items of `items` by their operands' names."""
        names = self.names(len(items))
        if len(items) > len(names):
            raise ShapeError(f"{self.name}: expected operands {self.operands}, got {len(items)}")
        result = {n: one for n, one in zip(names, items, strict=False) if one is not None}
        left = [n for n in names if n not in result] if len(result) < len(names) else ()
        if left and (missing := [n for n in left if n in self.required]):
            raise ShapeError(f"{self.name}: the operand {missing[0]} is missing")
        return result

    def positional(self, items: Mapping[str, T]) -> list[T | None]:
        """Return the item of `items` for each operand, in order. Raises ShapeError for unknown
        names.
        """
        names = self.names(len(items) + sum(name not in items for name in self.optional))
        if unknown := [name for name in items if name not in names]:
            raise ShapeError(f"{self.name}: expected operands {names}, got {unknown[0]}")
        return [items.get(name) for name in names]

    def results(self, operands: Operands) -> tuple[TensorType, ...]:
        """The results' types for operands by name."""
        return self.infer(self.positional(typed(operands)))

    def shape_of(self, shapes: Shapes) -> Shape:
        """The first result's shape, of whatever dtypes. Raises ShapeError where they do not fit."""
        return self.results(shapes)[0].shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        """The first result by NumPy, of operands by name."""
        return self.reference(*self.positional(operands))[0]

    def cost_of(self, operands: Operands) -> Cost:
        """Return the least work and memory traffic of one run, for operands by name."""
        return self.cost(self.positional(typed(operands)))

    def flops(self, shapes: Shapes) -> int:
        """Return floating-point operations, a multiply-add counting two."""
        return self.cost_of(shapes).flops

    def multiply_adds(self, shapes: Shapes) -> int:
        """Return the multiply-adds of its products, for operands by name; 0 where it has none."""
        return 0

    def check_shapes_of(self, shapes: Shapes, expected: Shapes) -> None:
        """Raise ShapeError where an operand has another shape than the `expected` one."""
        for name, shape in expected.items():
            if (got := shapes.get(name, shape)) != shape:
                raise ShapeError(f"{self.name}: {name} must have shape {shape}, got {got}")

    def check_operands(self, shapes: Mapping[str, object]) -> None:
        """Raise ShapeError unless `shapes` names this op's operands and nothing else."""
        self.named(self.positional(dict(shapes)))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """The problem's sizes by name: uniforms, grids and restrictions of kernels use them."""
        return {}

    def product(self, shapes: Shapes) -> tuple[int, int] | None:
        """Return rows and columns of the matrix product that the op amounts to; None where it is
        none.
        """
        return None

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return integers that follow from sizes and attributes, where kernels need them.

        They are used as sizes are and, in capitals, as `#define`s.
        """
        return {}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        """Return the attributes that a kernel takes as `#define`s: a program is compiled for each
        set.
        """
        return {}

    def scalars(self) -> dict[str, float]:
        """Return the real-valued uniforms."""
        return {}

    def stacks(self, shapes: Shapes) -> tuple[str, ...]:
        """The operands that are stacks of matrices, where a kernel may expect one matrix."""
        return ()

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """The operands whose first dimension is the result's: each part by itself makes its own."""
        if not self.samples:
            return ()
        first = self.shape_of(shapes)[:1]
        return tuple(
            name
            for name, shape in shapes.items()
            if name not in self.parameters and shape[:1] == first != ()
        )

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        """Return an operator, and shapes, that do as much work as a whole by the same program,
        where this operator is a part of another computation.
        """
        return self, shapes

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        """The same of `count` samples; None where it has none, or they are not of themselves."""
        along = self.sample_operands(shapes)
        if not along:
            return None
        return self.reduce_samples_of(shapes, along, count)

    def reduce_samples_of(self, shapes: Shapes, names: Iterable[str], count: int) -> SampleSubset:
        """The same of so many of the samples that the operands `names` and the result have."""
        some = {name: (count, *shapes[name][1:]) for name in names}
        return SampleSubset(self, {**shapes, **some}, dict.fromkeys((*some, "out"), 1))

    def depth(self, shapes: Shapes) -> int:
        """Return the most iterations of a kernel's loop for one result, where no attribute limits
        them.
        """
        return 1

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        """Return operands' shapes of an op that `has_depth` for loops of at least `depth`, by the
        same program.

        few: of fewer results, where that program has them.
        """
        return shapes

    def shrink(self, shapes: Shapes) -> Shapes:
        """Return operands' shapes of fewer results along long axes, as a rule by the same program.

        Their sums are as long as they were.
        """
        return shapes

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return random `numbers`, changed so that they are valid for the operand `name`."""
        return numbers

    def fixed_layouts(self) -> Mapping[str, str]:
        """The layout of each operand and of `out` where the op itself says so."""
        return {}

    def view_layouts(self, layout: str) -> tuple[str, str]:
        """Return the layouts that a view needs of its input, now in `layout`, and of its result."""
        return "R", "R"


def plain_values(value: Any) -> Any:
    """Return a dataclass's values as plain data, also those of dataclasses within; SymInts stay."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain_values(getattr(value, one.name)) for one in fields(value))
    return tuple(map(plain_values, value)) if isinstance(value, (tuple, list)) else value


def typed(operands: Operands) -> dict[str, TensorType]:
    """The type of each of `operands`: float32 where only a shape is said."""
    return {
        name: one if isinstance(one, TensorType) else TensorType(one)
        for name, one in operands.items()
    }


def shrink_size(size: int) -> int:
    """Return a smaller number than `size`, where that is large, with its remainder by `UNIT`."""
    return min(size, MANY + (size - MANY) % UNIT)


def upper(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def rank(op: str, operand: str, shape: Shape, expected: int, dims: str) -> None:
    """Raise ShapeError unless `shape` has `expected` dimensions, described by `dims`."""
    if len(shape) != expected:
        raise ShapeError(f"{op}: {operand} must have shape {dims}, got {shape}")

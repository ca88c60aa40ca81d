"""The base class of operators: attributes, type rule, cost and NumPy reference; no OpenGL."""

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
SMALL = 4096  # most numbers of a tensor that are propagated before a run
MANY, UNIT = 24, 16
"""`shrink_size` reduces sizes above MANY by a multiple of UNIT: fewer results test a kernel as
well, and the size stays divisible by the same small powers of two."""
Types = Sequence[TensorType | None]
"""The type of each operand, in order; None where one is left out."""
Reference = Callable[..., tuple[Array, ...]]
"""Function from the operands' arrays, None for each that is left out, to an operator's results."""
Constants = Sequence[Array | None]
"""The array of each operand that is known before a run, else None; None at the end may be left
out."""
Intervals = Sequence[Interval | None]
"""Interval of each operand's numbers, in order; None where an operand is left out."""
Shapes = Mapping[str, Shape]
"""The shape of each operand, by the operand's name."""
Operands = Mapping[str, "TensorType | Shape"]
"""The type of each operand, by its name; a shape stands for float32."""


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
    """`op` on a few samples: more samples that repeat them have the same results, repeated.

    shapes: of the operands, with the few samples. stacks: for each operand that has samples, and
    for `out`, the number of times that its first dimension contains all samples in turn.
    """

    op: Operator
    shapes: Shapes
    stacks: Mapping[str, int]


class _Kind(ABCMeta):
    """Metaclass of operators, whose isinstance checks for inheritance alone."""

    __instancecheck__ = type.__instancecheck__  # ABCMeta's takes ten times as long


class Operator(metaclass=_Kind):
    """Base class of operators. Subclasses are frozen dataclasses of the operator's attributes.

    `name` is the operator's name in every folder. `operands` names its operands in order.
    """

    name: ClassVar[str]
    optional: ClassVar[tuple[str, ...]] = ()
    """Operands that may be left out."""
    variadic: ClassVar[bool] = False
    """True where the last operand may be repeated any number of times."""
    host: ClassVar[tuple[str, ...]] = ()
    """Operands that the host reads, since the results' types depend on their numbers: they must be
    known before planning."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Operands that are fixed with the model."""
    view: ClassVar[bool] = False
    """True where the result has the memory of the input."""
    updates: ClassVar[str | None] = None
    """The operand whose memory the result takes over, on a backend that writes in place."""
    passes: ClassVar[tuple[str, ...]] = ()
    """Operands that all numbers of the results come from, unchanged; empty where there may be other
    numbers."""
    moves: ClassVar[bool] = False
    """True where all numbers of the results come from the first operand, unchanged."""
    samples: ClassVar[bool] = False
    """True where each sample, along the first dimension of operands and result, is computed
    independently."""
    nan_operands: ClassVar[tuple[str, ...]] = ()
    """Operands whose NaN and infinities appear in every kernel's result where they do in the
    reference's."""
    compared_operands: ClassVar[tuple[str, ...]] = ()
    """Operands whose numbers are compared with each other."""
    has_depth: ClassVar[bool] = False
    """True where sums can be made longer (`of_depth`)."""
    has_epilogue: ClassVar[bool] = False
    """True where kernels may do pointwise work on the first result before it is stored."""
    control: ClassVar[bool] = False
    """True where it runs graphs, its bodies, and the host decides which and how often (`Control`).
    """
    composite: ClassVar[bool] = False
    """True where it is replaced by other operators once types are known (`Composite`)."""
    fp16_operands: ClassVar[tuple[str, ...]] = ()
    """Operands that may be stored as float16; they are computed with as float32."""
    int8_operands: ClassVar[tuple[str, ...]] = ()
    """Operands that may be int8, four to a word."""
    table: ClassVar[bool] = False
    """True where there are no operands: the results depend on attributes alone, among them sizes,
    and are cached as weights are."""
    array_function: ClassVar[str] = ""
    """The function of `glnn.core.array_functions` that computes the result from the operands,
    `array_attributes` and, where there are several results, the result's index; empty for none."""
    any_sizes: ClassVar[bool] = False
    """True where the function from `specialize` takes arrays of other sizes with as many
    dimensions."""

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
        """Return the results by NumPy; floats in the precision of the operands, 32 or 64 bits."""

    def reference_views(self, *arrays: Array | None) -> tuple[Array, ...]:
        """Compute `reference` of an operator that `moves`, in the memory order that is fastest."""
        return self.reference(*arrays)

    def specialize(self, types: Types) -> Reference:
        """Return a function that does the same as `reference` for arrays of `types`.

        What depends on types alone is computed here, once. The function must be called within
        `np.errstate`, by one thread at a time, and returns arrays that it does not write to again.
        """
        return self.reference

    def specialize_with_bias(self, types: Types) -> Reference | None:
        """Return the function of `specialize` with a further, first operand: a bias (c,), which is
        added to the channels of the first result. None where that saves nothing.
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
        """The operands whose numbers the results' types depend on, as the shape of a Reshape."""
        return ()

    @property
    def all_shape_inputs(self) -> tuple[str, ...]:
        """The operands whose numbers sizes depend on, also sizes within the operator's bodies."""
        return self.shape_inputs

    @property
    def type_only(self) -> tuple[str, ...]:
        """The operands whose type alone the results depend on, not their numbers."""
        return ()

    @property
    def random(self) -> bool:
        """True where runs have different results for the same operands."""
        return False

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        """Return the array of each result that is known before a run, None for others.

        The arguments are those of `infer`. results: the types that `infer` returned, if it was
        called before.
        """
        if results is None:
            results = self.infer(types, constants)
        is_known = [array is not None for array in constants]
        is_present = [type is not None for type in types]
        if self.control or is_known != is_present or not any(is_known):
            return (None,) * len(results)
        if holds_symbols(vars(self).values()):  # the result's numbers depend on open sizes
            return (None,) * len(results)
        few = not any(t.symbols for t in results) and sum(prod(t.shape) for t in results) <= SMALL
        return tuple(map(plain, self.reference(*constants))) if few else (None,) * len(results)

    def infer_open_sizes(
        self, types: Types, constants: Constants, *, strict: bool
    ) -> tuple[tuple[TensorType, ...], Constants]:
        """Return the results' types and constants where sample sizes stand for open ones.

        strict: whether to raise an error where operands do not fit, as they then fit for no sizes;
        else composites and control flow return results of unknown sizes.
        """
        results = self.infer(types, constants)
        return results, self.propagate_constants(types, constants, results)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        """Return the interval of each result's numbers for operands within `intervals`; empty where
        they are unknown.
        """
        last = len(self.operands) - 1
        named = ((self.operands[min(i, last)], interval) for i, interval in enumerate(intervals))
        passed = [
            interval for name, interval in named if name in self.passes and interval is not None
        ]
        return (hull(passed),) * len(self.infer(types)) if passed else ()

    def narrow(self, intervals: Intervals, types: Types) -> Operator | None:
        """Return the operator for int32 instead of int64, where operands and results fit int32.

        None where an intermediate number may not fit, or is unknown. intervals: of the operands.
        """
        return self if self.passes else None

    @property
    def required(self) -> tuple[str, ...]:
        """The operands that may not be left out."""
        return tuple(name for name in self.operands if name not in self.optional)

    @property
    def single_result_operators(self) -> tuple[Operator, ...]:
        """For each of several results an operator that computes it alone, from the same operands;
        empty where there are no such operators.
        """
        return ()

    def names(self, count: int) -> tuple[str, ...]:
        """Return the names of `count` operands: x0, x1, ... for a variadic one called x."""
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
        result = {name: item for name, item in zip(names, items, strict=False) if item is not None}
        absent = [n for n in names if n not in result] if len(result) < len(names) else ()
        if absent and (missing := [n for n in absent if n in self.required]):
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
        """Return the results' types for operands by name."""
        return self.infer(self.positional(typed(operands)))

    def shape_of(self, shapes: Shapes) -> Shape:
        """Return the first result's shape. Raises ShapeError where operands do not fit."""
        return self.results(shapes)[0].shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        """Return the first result by NumPy, for operands by name."""
        return self.reference(*self.positional(operands))[0]

    def cost_of(self, operands: Operands) -> Cost:
        """Return the least work and memory traffic of one run, for operands by name."""
        return self.cost(self.positional(typed(operands)))

    def flops(self, shapes: Shapes) -> int:
        """Return floating-point operations, a multiply-add counting two."""
        return self.cost_of(shapes).flops

    def multiply_adds(self, shapes: Shapes) -> int:
        """Return the number of multiply-adds in its products, for operands by name."""
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
        """Return sizes by name: uniforms, grids and requirements of kernels use them."""
        return {}

    def product(self, shapes: Shapes) -> tuple[int, int] | None:
        """Return rows and columns of the matrix product that the op is; None where it is none."""
        return None

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return integers computed from sizes and attributes that kernels need.

        They are used as sizes are and, in capitals, as `#define`s.
        """
        return {}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        """Return the attributes that kernels take as `#define`s; each set is another program."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Return the float uniforms."""
        return {}

    def stacks(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands that are stacks of matrices, where a kernel may expect one matrix."""
        return ()

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands whose first dimension is the samples, which the result has, too."""
        if not self.samples:
            return ()
        first = self.shape_of(shapes)[:1]
        return tuple(
            name
            for name, shape in shapes.items()
            if name not in self.parameters and shape[:1] == first != ()
        )

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        """Return an operator and shapes for the whole computation by the same program, where this
        operator is one part of it.
        """
        return self, shapes

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        """Return the operator on `count` samples; None where samples are not independent, or there
        are none.
        """
        names = self.sample_operands(shapes)
        if not names:
            return None
        return self.reduce_samples_of(shapes, names, count)

    def reduce_samples_of(self, shapes: Shapes, names: Iterable[str], count: int) -> SampleSubset:
        """Return the operator on `count` samples of the operands `names` and of the result."""
        reduced = {name: (count, *shapes[name][1:]) for name in names}
        return SampleSubset(self, {**shapes, **reduced}, dict.fromkeys((*reduced, "out"), 1))

    def depth(self, shapes: Shapes) -> int:
        """Return the most iterations of a kernel's loop for one result, where no attribute limits
        them: the length of its sums.
        """
        return 1

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        """Return shapes of operands with sums of at least `depth`, for an op that `has_depth`; the
        program is the same.

        few: whether to have fewer results, where the program allows that.
        """
        return shapes

    def shrink(self, shapes: Shapes) -> Shapes:
        """Return shapes of operands with fewer results along long axes, usually by the same
        program; sums keep their lengths.
        """
        return shapes

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return random `numbers`, changed so that they are valid for the operand `name`."""
        return numbers

    def fixed_layouts(self) -> Mapping[str, str]:
        """Return the layouts of operands and of `out` that the op itself determines, by name."""
        return {}

    def view_layouts(self, layout: str) -> tuple[str, str]:
        """Return the layouts that a view needs of its input, now in `layout`, and of its result."""
        return "R", "R"


def plain_values(value: Any) -> Any:
    """Return a dataclass's values as plain data, also of nested dataclasses; SymInts stay."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain_values(getattr(value, field.name)) for field in fields(value))
    return tuple(map(plain_values, value)) if isinstance(value, (tuple, list)) else value


def typed(operands: Operands) -> dict[str, TensorType]:
    """Return the type of each operand; a shape stands for float32."""
    return {
        name: type if isinstance(type, TensorType) else TensorType(type)
        for name, type in operands.items()
    }


def shrink_size(size: int) -> int:
    """Return a smaller size with the same remainder by UNIT; `size` itself up to MANY."""
    return min(size, MANY + (size - MANY) % UNIT)


def upper(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def rank(op: str, operand: str, shape: Shape, expected: int, dims: str) -> None:
    """Raise ShapeError unless `shape` has `expected` dimensions, described by `dims`."""
    if len(shape) != expected:
        raise ShapeError(f"{op}: {operand} must have shape {dims}, got {shape}")

"""ArrayWriter: writes weights that follow from sizes as an ArrayProgram."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from glnn.array_functions import FUNCTIONS
from glnn.compile.weights import Weight
from glnn.errors import UnsupportedOpError
from glnn.graph.constant import Constant, Leaf, Made, computed, of_sizes, without_operands
from glnn.graph.expression import Arg, Call, Expr, Scalar
from glnn.graph.expression import Constant as Number
from glnn.graph.function import NUMBERS, kind_of
from glnn.graph.operators import Concat, Identity, Pointwise
from glnn.graph.operators.reshape import View
from glnn.runtime.array_program import ArrayCall, ArrayProgram
from glnn.size_table import SizeTable
from glnn.symint import Substitution, SymInt, hint, is_symbolic, same
from glnn.types import Array, DType

WIDE = np.dtype(np.float64)
MOVES = "reshape", "transpose", "broadcast_to", "flip", "tile", "roll", "cut", "gather"
"""Functions that move numbers: of a large table they are given no wider copy."""


@dataclass(frozen=True)
class Computed:
    """What an operator that is no array function makes of arrays and, behind them, of sizes."""

    part: Made = field(compare=False)
    key: Hashable
    """What the part is but for its operands."""
    sizes: tuple[SymInt, ...]

    def __call__(self, *given: Any) -> Array:
        *arrays, numbers = given
        known = {one.expr: number for one, number in zip(self.sizes, numbers, strict=True)}
        part = of_sizes(self.part, Substitution(lambda one: known[one.expr]))
        return computed(part, range(len(arrays)), arrays)


class ArrayWriter:
    """Writes calls of array functions; what several weights have in common is called once.

    sizes: the table to which sizes are added. What NumPy computes is what
    `graph.constant.evaluated` computes for the sizes of a run.
    """

    def __init__(self, sizes: SizeTable) -> None:
        self._sizes = sizes
        self._constants: list[Array] = []
        self._numbers: dict[Hashable, int] = {}
        """The places of constants, by what they are."""
        self._calls: dict[Hashable, int] = {}
        self._written: list[ArrayCall] = []
        self._dtypes: list[np.dtype[Any]] = []
        """Of the results of calls."""
        self._widened: dict[int, int] = {}
        """By the place of a cast to WIDE that of the floats that it widens."""
        self._results: dict[str, int] = {}
        self._nbytes: Any = 0

    def add(self, name: str, weight: Weight, dtype: DType) -> None:
        """Write `weight` as the tensor `name`, of `dtype`."""
        of, shape = weight.constant, weight.shape
        place = self._place(of)
        known = isinstance(of, Made) and of.types and same(of.types[of.index].dims, shape)
        if not known:
            place = self._call("reshape", (place,), (shape,))
        if self._dtype(place).kind == "f":
            floats = weight.type.dtype if weight.type.dtype.kind == "float" else DType.float32
            if floats is DType.float16:
                place = self._call("halved", (place,), (weight.name,), floats.numpy)
            place = self._cast(place, floats.numpy)
        self._results[name] = self._cast(place, dtype.numpy)
        self._nbytes += WIDE.itemsize * prod(shape)

    def written(self) -> ArrayProgram:
        """Return the program."""
        calls, nbytes = tuple(self._written), self._sizes.size(self._nbytes)
        return ArrayProgram(tuple(self._constants), calls, self._results, nbytes)

    def _dtype(self, place: int) -> np.dtype[Any]:
        return self._dtypes[place] if place >= 0 else self._constants[~place].dtype

    def _call(
        self,
        function: str | Callable[..., Array],
        reads: tuple[int, ...],
        attributes: tuple[Any, ...] = (),
        dtype: np.dtype[Any] | None = None,
    ) -> int:
        """Return the place of a call.

        dtype: of the result; None for that of what it reads first.
        """
        if function in MOVES and reads[0] in self._widened:
            narrow = self._call(function, (self._widened[reads[0]], *reads[1:]), attributes)
            return self._cast(narrow, WIDE)
        known = self._sizes.size(attributes)
        key = function, reads, repr(known)
        if key not in self._calls:
            self._calls[key] = len(self._written)
            self._written.append(ArrayCall(function, reads, known))
            self._dtypes.append(self._dtype(reads[0]) if dtype is None else np.dtype(dtype))
        return self._calls[key]

    def _cast(self, place: int, dtype: Any) -> int:
        if self._dtype(place) == dtype:
            return place
        found = self._call("cast", (place,), (np.dtype(dtype).name,), dtype)
        if dtype == WIDE and self._dtype(place).kind == "f":
            self._widened[found] = place
        return found

    def _constant(self, key: Hashable, array: Array) -> int:
        if key not in self._numbers:
            self._numbers[key] = ~len(self._constants)
            self._constants.append(array)
        return self._numbers[key]

    def _place(self, constant: Constant) -> int:
        """Return the place of a constant, all parts of which are written."""
        parts = ((constant, ()),) if isinstance(constant, Leaf) else constant.parts
        found: list[int] = []
        for part, at in parts:
            reads = tuple(found[i] for i in at)
            place = self._leaf(part) if isinstance(part, Leaf) else self._made(part, reads)
            half = self._dtype(place) == np.float16
            found.append(self._cast(place, WIDE) if half else place)
        return found[-1]

    def _leaf(self, leaf: Leaf) -> int:
        array, dtype = leaf.value.data, leaf.value.type.dtype
        if isinstance(array, np.ndarray) and is_symbolic(array):  # integers that follow from sizes
            dtype = DType.int64 if dtype is DType.object else dtype
            attributes = tuple(array.reshape(-1).tolist()), array.shape, dtype.value
            return self._call("array", (), attributes, dtype.numpy)
        array = leaf.read()
        place = self._constant(leaf, array)
        return self._cast(place, WIDE) if DType.of(array).kind == "float" else place

    def _made(self, part: Made, reads: tuple[int, ...]) -> int:
        operator, types = part.operator, part.types
        if part.epilogue is None and None not in part.operands:
            if isinstance(operator, Identity):
                return reads[0]
            if isinstance(operator, Pointwise):
                place = self._pointwise(operator, reads)
                if place is not None:
                    return place
            if isinstance(operator, View) and types and not types[0].symbols:
                return self._call("reshape", reads, (types[0].shape,))
            if operator.array_function:
                if isinstance(operator, Concat):
                    widest = max(map(self._dtype, reads), key=lambda one: one.itemsize)
                    reads = tuple(self._cast(one, widest) for one in reads)
                results = () if reads else operator.infer(())
                dtype = results[part.index].dtype.numpy if results else None
                attributes = operator.array_attributes
                attributes += (part.index,) if len(results) > 1 else ()
                return self._call(operator.array_function, reads, attributes, dtype)
        return self._computed(part, reads)

    def _pointwise(self, operator: Pointwise, reads: tuple[int, ...]) -> int | None:
        """Return the place of an expression; None where not all operands are read by functions."""
        expr = operator.expr.expanded
        read = {part.index for part in expr.parts() if isinstance(part, Arg)}
        if not isinstance(expr, Call) or read != set(range(len(reads))):
            return None

        def written(part: Expr, given: tuple[int | Expr, ...]) -> int | Expr:
            if isinstance(part, Arg):
                return reads[part.index]
            return self._function(part, given) if isinstance(part, Call) else part

        place = expr.fold(written)[-1]
        assert isinstance(place, int)
        declared = operator.result_dtype([_declared(self._dtype(one)) for one in reads])
        return self._cast(place, declared.numpy)

    def _function(self, part: Call, given: tuple[int | Expr, ...]) -> int | Expr:
        """Return the place of a function of places and numbers; a number where it is of these."""
        row = part.row
        if not any(isinstance(one, int) for one in given):
            return Scalar(row.evaluate(*(_number(one) for one in given)))
        rest = given[row.condition :]
        dtypes = [self._dtype(one) for one in rest if isinstance(one, int)]
        if dtypes:
            dtype = max(dtypes, key=lambda one: one.itemsize)
        else:
            kind = kind_of(_number(rest[0]))
            dtype = WIDE if kind == "float" else NUMBERS[kind].numpy
        places = [self._typed(one, np.dtype(bool)) for one in given[: row.condition]]
        places += [self._typed(one, np.dtype(dtype)) for one in rest]
        assert row.numpy is not None
        with np.errstate(all="ignore"):
            empty = row.numpy(*(np.zeros(0, self._dtype(one)) for one in places))
        if row.name.startswith("cast_"):
            return self._call("cast", tuple(places), (row.gives,), empty.dtype)
        name = getattr(row.numpy, "__name__", "")
        function = name if FUNCTIONS.get(name) is row.numpy else row.numpy
        return self._call(function, tuple(places), (), empty.dtype)

    def _typed(self, one: int | Expr, dtype: np.dtype[Any]) -> int:
        """Return the place of an array or a number as `dtype`."""
        if isinstance(one, int):
            return self._cast(one, dtype)
        number = _number(one)
        return self._constant((dtype, repr(number)), np.asarray(number, dtype))

    def _computed(self, part: Made, reads: tuple[int, ...]) -> int:
        """Return the place of what an operator that is no array function makes."""
        if not part.types:
            raise UnsupportedOpError(f"{part.operator.label} of open sizes is of an unknown type")
        sizes: dict[Any, SymInt] = {}

        def number(one: SymInt) -> int:
            return hint(sizes.setdefault(one.expr, one))

        Substitution(number)((part.operator, part.epilogue, part.types))
        function = Computed(part, without_operands(part), tuple(sizes.values()))
        dtype = part.types[part.index].dtype
        wide = dtype.kind == "float" and any(self._dtype(one) == WIDE for one in reads)
        found = WIDE if wide or dtype is DType.float16 else dtype.numpy
        return self._call(function, reads, (tuple(sizes.values()),), found)


def _number(one: int | Expr) -> Any:
    assert isinstance(one, Scalar | Number)
    return one.value


def _declared(dtype: np.dtype[Any]) -> DType:
    return DType.of(np.zeros(0, dtype))

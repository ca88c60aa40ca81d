"""A row of the table of scalar functions: GLSL, NumPy, gradient, interval, layer, ONNX operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glnn.core.symint import is_symbolic
from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval, Rule

Number = float | int | bool
NUMBERS = {"float": DType.float32, "int": DType.int32, "bool": DType.bool}
"""The type of numbers of each kind where no tensor's is among them."""
ARRAYS = np.ndarray, np.generic
INTEGER_CASTS = "cast_int32", "cast_int64"


@dataclass(frozen=True)
class Accuracy:
    """The error that a function may have on a GPU, and the arguments at which that is checked."""

    ulps: float = 0.5
    """The greatest error in units in the last place of the result, or of `least` if it is larger.
    """
    domain: tuple[tuple[float, float], ...] = ()
    """The least and the greatest number of each argument; -20 to 20 where it is empty."""
    least: float = 0.0
    bounded: bool = False
    """True where only `domain` is checked, and not also all floats and special values."""


@dataclass(frozen=True)
class OnnxForm:
    """The ONNX operator that computes a function."""

    name: str
    attributes: Mapping[str, float] = field(default_factory=dict)
    """Attributes with their defaults: the numbers behind the operands, in order."""
    formula: str | None = None
    """The formula of operands and attributes that ONNX defines, where it is not this function of
    them: another result for NaN, or other arguments."""
    legacy_broadcast: bool = False
    """True where before version 7 only the second operand broadcasts."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function of scalars: either `numpy` and `glsl` define it, or `body`.

    In texts the arguments are a, b, c and d, and their derivatives da, db, dc and dd. Layers, the
    import and export of ONNX, gradients, intervals and the doctor's check all read this row.
    """

    name: str
    arity: int
    numpy: Callable[..., Any] | None = None
    """The function in NumPy, computed in the type of its arguments."""
    glsl: str | Mapping[str, str] | None = None
    """An expression of GLSL's scalars; by kind ("float", "int", "bool") where it takes others than
    floats."""
    source: str | None = None
    """The file of `shaders/functions` that has what `glsl` calls and GLSL has not."""
    same: str | None = None
    """`glsl` for floats where both arguments are one: compilers fold it, and forget NaN."""
    body: str | None = None
    """The formula of other functions that it is (see `expression.formula`)."""
    gives: str | None = None
    """The kind or the type of the result, where that is not the arguments'."""
    condition: bool = False
    """True where the first argument is a bool, whatever the others are."""
    gradient: str | None = None
    """The formula of the result's derivative; None where that is 0, or the body says it."""
    by_result: str | None = None
    """The formula of the same where a is the result instead, by the first argument alone, where
    the others are numbers above 0; None where there is none."""
    flops: int = 1
    """Floating-point operations, approximately."""
    interval: Rule | None = None
    """Rule for the interval of the value, as unbounded integers; None where any number may come."""
    accuracy: Accuracy | None = Accuracy()
    """The error allowed on GPUs; None where the function is not checked there."""
    layer: str | None = None
    """The class of `glnn.layers` that computes it; it has PyTorch's name."""
    onnx: OnnxForm | None = None
    """The ONNX operator; None where ONNX has none."""
    onnx_formula: str | None = None
    """The formula that is exported where `onnx` is None, or where its attributes would be tensors.
    """

    def __post_init__(self) -> None:
        if (self.body is None) == (self.numpy is None or self.glsl is None):
            raise ShapeError(f"{self.name}: expected numpy and glsl, or else a body")
        if not 1 <= self.arity <= 4:
            raise ShapeError(f"{self.name}: expected 1 to 4 arguments, got {self.arity}")

    @property
    def attributes(self) -> Mapping[str, float]:
        """ONNX attributes that are the arguments after the first, with defaults; empty for none."""
        if self.onnx is None or self.arity != 1 + len(self.onnx.attributes):
            return {}
        return self.onnx.attributes

    @property
    def onnx_import(self) -> str:
        """The formula of the ONNX operator's operands and attributes."""
        assert self.onnx is not None
        return self.onnx.formula or self.call

    @property
    def is_step(self) -> bool:
        """True where the result does not change with the arguments but at steps, as rounded."""
        return self.body is None and self.gradient is None

    @property
    def call(self) -> str:
        """The formula that calls the function: `clip(a, b, c)`."""
        return f"{self.name}({', '.join('abcd'[: self.arity])})"

    @property
    def forms(self) -> Mapping[str, str]:
        """GLSL of the function for each kind of arguments that it takes."""
        return {"float": self.glsl} if isinstance(self.glsl, str) else self.glsl or {}

    def infer(self, dtypes: tuple[DType | str, ...]) -> DType | str:
        """The type of the result for arguments of these types, or kinds where they are numbers.

        Raises ShapeError where it does not take such.
        """
        if self.condition:
            if NUMBERS.get(str(dtypes[0]), dtypes[0]) is not DType.bool:
                raise ShapeError(f"{self.name}: expected a bool first, got {_name(dtypes[0])}")
            dtypes = dtypes[1:]
        types = [one for one in dtypes if isinstance(one, DType)]
        common: DType | str = types[0] if types else dtypes[0]
        kind = common.kind if isinstance(common, DType) else common
        for one in dtypes:
            if one is not common and one != kind:
                pair = f"{_name(common)} and {_name(one)}"
                raise ShapeError(f"{self.name}: expected arguments of one type, got {pair}")
        if kind not in self.forms:
            takes = " or ".join(self.forms)
            raise ShapeError(f"{self.name}: expected arguments of {takes}, got {_name(common)}")
        return common if self.gives is None else DType(self.gives)

    def check_numbers(self, dtypes: Sequence[DType | str], numbers: Iterable[Number]) -> None:
        """Raise ShapeError where one of `numbers`, among arguments of these types, is not a number
        of its type.
        """
        dtype = next((one for one in dtypes if isinstance(one, DType)), DType.int32)
        if dtype.kind != "int":
            return
        bounds = np.iinfo(dtype.numpy)
        for number in numbers:
            if kind_of(number) == "int" and not bounds.min <= number <= bounds.max:
                raise ShapeError(f"{self.name}: {number} is no {dtype.value}")

    def value_range(self, arguments: Sequence[Interval], dtype: DType) -> Interval:
        """Return the interval of the value, of type `dtype`, for arguments that lie within
        `arguments`.
        """
        interval = None if self.interval is None else self.interval(*arguments)
        return Interval.of_type(dtype) if interval is None else interval.stored(dtype)

    def evaluate(self, *arguments: Any) -> Any:
        """The value by NumPy of arrays and Python's numbers, which take the arrays' type.

        What overflows or is not defined is inf or NaN, of which NumPy warns unless it is told not
        to. Of numbers alone, a number.
        """
        assert self.numpy is not None, self.name
        rest = arguments[self.condition :]
        arrays = [a for a in rest if isinstance(a, ARRAYS)]
        dtype: Any
        if any(map(is_symbolic, arrays)):
            if self.name in INTEGER_CASTS:
                return rest[0]
            dtype = object
        elif arrays:  # a cast to float32 stands beside what a precise reference has as float64
            dtype = max([a.dtype for a in arrays], key=_width)
        else:
            dtype = np.float64 if isinstance(rest[0], float) else NUMBERS[kind_of(rest[0])].value
        typed = [np.asarray(a, dtype) for a in rest]
        result = np.asarray(self.numpy(*arguments[: self.condition], *typed))
        return result if arrays or isinstance(arguments[0], ARRAYS) else result.item()


def kind_of(number: Number) -> str:
    """Return the kind of a type: "float", "int" or "bool"."""
    return "bool" if isinstance(number, bool) else "int" if isinstance(number, int) else "float"


def _width(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize


def _name(one: DType | str) -> str:
    return one.value if isinstance(one, DType) else f"a number of {one}"

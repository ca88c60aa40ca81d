"""Products with weights that stay quantized in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.handwritten_operator import FLOATS, HandwrittenOperator
from glnn.graph.operator import Constants, Shapes, Types, rank, shrink_size
from glnn.graph.quantization import FORMATS, QUAD, QuantizedFormat

GATES = ("silu", "gelu_tanh")
"""Functions of gates, which kernels have by their numbers from 1 on."""
ROWS_BYTES = 4 << 20  # of rows that NumPy unpacks at a time


def row_chunks(n: int, k: int) -> Iterator[slice]:
    """Yield slices of the rows of a weight of (n, k) numbers, of some megabytes as float32."""
    step = max(ROWS_BYTES // (4 * max(k, 1)), 1)
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def random_weight(format: QuantizedFormat, numbers: Array, n: int, k: int) -> Array:
    """Return a packed weight of finite numbers made of as many random int32 `numbers`."""
    generator = np.random.default_rng(abs(int(numbers.sum())))
    raw = generator.integers(0, 256, 4 * numbers.size, np.uint8)
    units = format.units(n, k)
    places = format.first_quads(units)
    for section in format.sections:
        begin = QUAD * places[section.name]
        section.randomize_floats(raw[begin : begin + section.nbytes(units)])
    return raw.view(np.int32).reshape(numbers.shape)


def gated(gate: str) -> Expr:
    """Return the function `gate` of the first argument, times the second."""
    return call("mul", call(gate, Arg(0)), Arg(1))


class WithPackedWeight(HandwrittenOperator):
    """Base of operators whose `weight` of (rows, k) numbers stays packed."""

    format: str
    n: int
    k: int

    @property
    def rows(self) -> int:
        """The rows of the weight."""
        return self.n

    @property
    def packing(self) -> QuantizedFormat:
        """The weight's format."""
        return FORMATS[self.format]

    def check(self) -> None:
        """Raise ShapeError unless a weight of (n, k) numbers can be of the format."""
        if not isinstance(self.format, str) or self.format not in FORMATS:
            names = ", ".join(FORMATS)
            raise ShapeError(f"{self.name}: format must be one of {names}, got {self.format!r:.60}")
        if self.n < 0 or self.k < 0:
            raise ShapeError(f"{self.name}: n and k must be at least 0, got {self.n} and {self.k}")

    def check_weight(self, weight: Shape) -> None:
        """Raise ShapeError unless `weight` is the shape of the packed weight."""
        words = self.packing.words(self.rows, self.k)
        if weight != (words,):
            raise ShapeError(
                f"{self.name}: {self.packing} weights ({self.rows}, {self.k}) are ({words},) "
                f"int32, got {weight}"
            )

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self.reference(*(operands.get(name) for name in self.operands))[0]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        places = self.packing.first_quads(self.packing.units(self.rows, self.k))
        return {
            "n": self.n,
            "k": self.k,
            "units": self.packing.units(1, self.k),
            "high_first": places.get("high", 0),
            "scales_first": places.get("scales", 0),
            "zeros_first": places.get("zeros", 0),
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"FORMAT": self.packing.code, **dict(self.packing.macros)}

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name != "weight":
            return numbers
        return random_weight(self.packing, numbers, self.rows, self.k)


@dataclass(frozen=True)
class QuantizedMatmul(WithPackedWeight):
    """x weight^T for a weight that stays packed: see `glnn.graph.quantization`.

    x: (m, k) floats. weight: (words,) int32, the packed weight of (n, k) numbers. norm: (k,), if
    any: x is divided by the root of the mean of its rows' squares plus eps, and multiplied by it,
    before (RMS normalisation, Zhang and Sennrich 2019). Result: (m, n).
    """

    name: ClassVar[str] = "quantized_matmul"
    samples: ClassVar[bool] = True
    has_epilogue: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight", "norm")
    optional: ClassVar[tuple[str, ...]] = ("norm",)
    fp16_operands: ClassVar[tuple[str, ...]] = ("x",)
    format: str
    """The weight's format, a name of `FORMATS`."""
    n: int
    k: int
    eps: float = 0.0
    """Number that is added to the mean of squares, where there is `norm`."""
    gate: str = ""
    """Function of the first half of the products, a name of `GATES`; empty for a plain product."""

    def __post_init__(self) -> None:
        self.check()
        if self.gate and self.gate not in GATES:
            raise ShapeError(
                f"{self.name}: gate must be one of {GATES} or empty, got {self.gate!r}"
            )
        if not 0 <= self.eps < float("inf"):
            raise ShapeError(f"{self.name}: eps must be a number of at least 0, got {self.eps!r}")

    @property
    def rows(self) -> int:
        """The rows of the weight."""
        return 2 * self.n if self.gate else self.n

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, weight = operands["x"], operands["weight"]
        if x.dtype not in FLOATS:
            raise ShapeError(f"{self.name}: x must be float32 or float16, got {x}")
        if weight.dtype is not DType.int32:
            raise ShapeError(f"{self.name}: weight must be int32, got {weight}")
        if (norm := operands.get("norm")) is not None and norm.dtype is not DType.float32:
            raise ShapeError(f"{self.name}: norm must be float32, got {norm}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        if shapes.get("norm", (self.k,)) != (self.k,):
            raise ShapeError(f"{self.name}: norm must be ({self.k},), got {shapes['norm']}")
        rank(self.name, "x", x, 2, "(m, k)")
        if x[1] != self.k:
            raise ShapeError(f"{self.name}: x must be (m, {self.k}), got {x}")
        self.check_weight(weight)
        return x[0], self.n

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, weight = operands["x"], operands["weight"]
        x = x.astype(np.float32) if x.dtype == np.float16 else x
        if "norm" in operands:
            mean = (x * x).mean(axis=1, keepdims=True)
            x = x / np.sqrt(mean + x.dtype.type(self.eps)) * operands["norm"]
        result = np.empty((len(x), self.rows), x.dtype)
        for rows in row_chunks(self.rows, self.k):
            some = self.packing.unpack(weight, self.rows, self.k, rows)
            np.matmul(x, some.astype(x.dtype, copy=False).T, out=result[:, rows])
        if not self.gate:
            return (result,)
        gated_result = gated(self.gate).evaluate(result[:, : self.n], result[:, self.n :])
        return (np.asarray(gated_result, x.dtype),)

    def multiply_adds(self, shapes: Shapes) -> int:
        return shapes["x"][0] * self.rows * self.k

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes)

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}

    def fixed_layouts(self) -> Mapping[str, str]:
        return {"weight": "R", "norm": "R"}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {**super().sizes(shapes), "m": shapes["x"][0], "weight_n": self.rows, "batch": 1}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        return shapes["x"][0], self.n

    def defines(self, shapes: Shapes) -> dict[str, int]:
        gate = GATES.index(self.gate) + 1 if self.gate else 0
        return {**super().defines(shapes), "QUANTIZED": 1, "GATE": gate}

    def depth(self, shapes: Shapes) -> int:
        return self.k

    def shrink(self, shapes: Shapes) -> Shapes:
        return {**shapes, "x": (shrink_size(shapes["x"][0]), self.k)}

"""Products with weights that stay quantized in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.contraction import FLOATS, Contraction
from glnn.graph.operator import Constants, Shapes, Types, rank, shrink_size
from glnn.graph.quantization import FORMATS, QuantizedFormat

GATES = ("silu", "gelu_tanh")
"""Functions of gates, which kernels have by their numbers from 1 on."""
ROWS_BYTES = 4 << 20  # of rows that NumPy unpacks at a time


def format_named(op: str, name: object) -> QuantizedFormat:
    """Return the format called `name`. Raises ShapeError, which names `op`, for an unknown one."""
    if not isinstance(name, str) or name not in FORMATS:
        raise ShapeError(f"{op}: format must be one of {', '.join(FORMATS)}, got {name!r:.60}")
    return FORMATS[name]


def check_sizes(op: str, format: QuantizedFormat, n: int, k: int) -> None:
    """Raise ShapeError unless a weight of (n, k) numbers can be of `format`."""
    if n < 0 or k < 0:
        raise ShapeError(f"{op}: n and k must be at least 0, got {n} and {k}")
    if k % format.block:
        raise ShapeError(f"{op}: {format} needs k in whole blocks of {format.block}, got {k}")


def check_words(op: str, format: QuantizedFormat, n: int, k: int, weight: Shape) -> None:
    """Raise ShapeError unless `weight` is the shape of a packed weight of (n, k) numbers."""
    words = format.words(n, k)
    if weight != (words,):
        raise ShapeError(f"{op}: {format} weights ({n}, {k}) are ({words},) int32, got {weight}")


def row_chunks(n: int, k: int) -> Iterator[slice]:
    """Yield slices of the rows of a weight of (n, k) numbers, of some megabytes as float32."""
    step = max(ROWS_BYTES // (4 * max(k, 1)), 1)
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def random_weight(format: QuantizedFormat, numbers: Array, n: int, k: int) -> Array:
    """Return a packed weight of finite numbers made of as many random int32 `numbers`."""
    generator = np.random.default_rng(abs(int(numbers.sum())))
    raw = generator.integers(0, 256, 4 * numbers.size, np.uint8)
    places, units = format.first_quads(format.units(n, k)), format.units(n, k)
    for section in format.sections:
        begin = 16 * places[section.name]
        section.randomize_floats(raw[begin : begin + section.nbytes * units])
    return raw.view(np.int32).reshape(numbers.shape)


@dataclass(frozen=True)
class QuantizedMatmul(Contraction):
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
        check_sizes(self.name, format_named(self.name, self.format), self.n, self.k)
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

    @property
    def packing(self) -> QuantizedFormat:
        """The weight's format."""
        return FORMATS[self.format]

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
        check_words(self.name, self.packing, self.rows, self.k, weight)
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
        first, second = result[:, : self.n], result[:, self.n :]
        inner = first
        if self.gate == "gelu_tanh":  # by tanh(x) = 2 / (1 + exp(-2 x)) - 1
            inner = 2 * (2 / np.pi) ** 0.5 * (first + 0.044715 * first**3)
        with np.errstate(over="ignore"):
            gate = first / (1 + np.exp(-inner))
        return (np.asarray(gate * second, x.dtype),)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self.reference(*(operands.get(name) for name in self.operands))[0]

    def flops(self, shapes: Shapes) -> int:
        return 2 * shapes["x"][0] * self.rows * self.k

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}

    def fixed_layouts(self) -> Mapping[str, str]:
        return {"weight": "R", "norm": "R"}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        places = self.packing.first_quads(self.packing.units(self.rows, self.k))
        return {
            "m": shapes["x"][0],
            "n": self.n,
            "k": self.k,
            "batch": 1,
            "units": self.packing.units(1, self.k),
            "high_first": places.get("high", 0),
            "scales_first": places.get("scales", 0),
        }

    def product(self, shapes: Shapes) -> tuple[int, int]:
        return shapes["x"][0], self.n

    def defines(self, shapes: Shapes) -> dict[str, int]:
        gate = GATES.index(self.gate) + 1 if self.gate else 0
        return {"QUANTIZED": 1, "FORMAT": self.packing.code, "GATE": gate}

    def depth(self, shapes: Shapes) -> int:
        return self.k

    def shrink(self, shapes: Shapes) -> Shapes:
        return {**shapes, "x": (shrink_size(shapes["x"][0]), self.k)}

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        if name != "weight":
            return numbers
        return random_weight(self.packing, numbers, self.rows, self.k)

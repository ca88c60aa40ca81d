"""Integers as the numbers that they stand for, and such weights packed for `QuantizedMatmul`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import FLOATS
from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.quantization import FORMATS, IntegerBlocks

SIGNED = {2: DType.int2, 4: DType.int4, 8: DType.int8}
UNSIGNED = {2: DType.uint2, 4: DType.uint4, 8: DType.uint8}
"""The integers that can be packed, by their bits."""
BITS = {dtype: bits for table in (UNSIGNED, SIGNED) for bits, dtype in table.items()}
OFFSETS = {dtype: 1 << bits - 1 if SIGNED[bits] is dtype else 0 for dtype, bits in BITS.items()}
"""What makes them begin at 0."""


@dataclass(frozen=True)
class UnpackBits(Operator):
    """Integers of few bits, of which a byte has several, the first in its lowest bits.

    x: (..., bytes) uint8. Result: (..., count) of `dtype`, of `OFFSETS`, whose least number is 0 in
    the bytes.
    """

    name: ClassVar[str] = "unpack_bits"
    bits: int
    """Bits of an integer: 2, 4 or 8."""
    count: int
    """Integers of a row; what is behind them in its bytes is left out."""
    dtype: DType

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if x.dtype is not DType.uint8 or not x.shape or x.shape[-1] * 8 < self.count * self.bits:
            what = f"{self.count} integers of {self.bits} bits a row"
            raise ShapeError(f"{self.name}: x must be uint8 of {what}, got {x}")
        return (TensorType((*x.dims[:-1], self.count), self.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        each = 8 // self.bits
        result = np.empty((*x.shape[:-1], x.shape[-1] * each), np.uint8)
        for i in range(each):
            np.bitwise_and(x >> self.bits * i, (1 << self.bits) - 1, out=result[..., i::each])
        # The bits of a signed integer are those of what begins at 0, but for the highest.
        result = result[..., : self.count] ^ np.uint8(OFFSETS[self.dtype])
        return (result.view(self.dtype.numpy),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class Dequantize(Operator):
    """(x - zero) scale, ONNX's DequantizeLinear of weights.

    x: integers of any shape. scale: float32 or float16: one number, or one for each place of
    `axis`, or of x's shape with one for each `block` of places of it, the last of which may be
    short. zero: integers, if any, as many as scales, or one number for all or for each place of
    `axis` where there is no block. Result: x's shape, of `dtype`.
    """

    name: ClassVar[str] = "dequantize"
    optional: ClassVar[tuple[str, ...]] = ("zero",)
    axis: int
    """The axis along which scales differ, from 0 on."""
    block: int
    """The places of the axis that share a scale; 0 where the scale has no block."""
    dtype: DType = DType.float32
    """The result's, float32 or float16, to which a product is rounded."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "scale", "zero")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        x, scale = operands["x"], operands["scale"]
        if scale.dtype not in FLOATS or self.dtype not in FLOATS:
            raise ShapeError(f"{self.name}: scales and result must be floats, got {scale}")
        shape = x.shape
        for name in ("scale", "zero"):
            if name not in operands:
                continue
            expected = shape[self.axis : self.axis + 1]
            if self.block:
                count = -(-shape[self.axis] // self.block)
                expected = (*shape[: self.axis], count, *shape[self.axis + 1 :])
            elif prod(operands[name].shape) == 1:
                continue
            if operands[name].shape != expected:
                raise ShapeError(f"{self.name}: {name} of {x} is {expected}, got {operands[name]}")
        return (TensorType(x.dims, self.dtype),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, scale = operands["x"], operands["scale"]
        wide = np.promote_types(scale.dtype, np.float32)
        found = x.astype(wide)
        if "zero" in operands:
            found -= self._spread(operands["zero"], x).astype(wide)
        found *= self._spread(scale, x)
        return (found.astype(np.float16) if self.dtype is DType.float16 else found,)

    def _spread(self, numbers: Array, x: Array) -> Array:
        """Return scales or zero points as they broadcast to x."""
        if self.block:
            return np.take(numbers, np.arange(x.shape[self.axis]) // self.block, self.axis)
        if numbers.size == 1:
            return numbers.reshape(())
        return numbers.reshape(-1, *(1,) * (x.ndim - 1 - self.axis))

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class PackedWeight(Operator):
    """A matrix of integers, with the scales and zero points of `Dequantize`, as a packed weight.

    x: (n, k), or (k, n) where `transposed`. Result: (words,) int32 of `format`, one of
    `glnn.graph.quantization.INTEGER_FORMATS`.
    """

    name: ClassVar[str] = "packed_weight"
    optional: ClassVar[tuple[str, ...]] = ("zero",)
    format: str
    block: int
    """The weights of a row that share a scale; 0 where all of them do."""
    transposed: bool

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "scale", "zero")

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if len(x.shape) != 2 or x.dtype not in OFFSETS:
            raise ShapeError(f"{self.name}: x must be a matrix of small integers, got {x}")
        n, k = x.shape[::-1] if self.transposed else x.shape
        return (TensorType((FORMATS[self.format].words(n, k),), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        x, format = operands["x"], FORMATS[self.format]
        offset = OFFSETS[DType.from_array(x)]
        x = x.T if self.transposed else x
        n, k = x.shape
        scales, zeros = self._by_row(operands["scale"], n), None
        if format.has_zeros:
            zero = operands.get("zero", np.zeros(operands["scale"].shape, x.dtype))
            zeros = self._by_row(zero, n)
        blocks = IntegerBlocks(format, x, offset, self.block or max(k, 1), scales, zeros)
        return (format.pack(blocks, n, k),)

    def _by_row(self, numbers: Array, n: int) -> Array:
        """Return scales or zero points as (n, those of a row)."""
        if not self.block:
            return np.broadcast_to(numbers.reshape(-1, 1), (n, 1))
        return numbers.T if self.transposed else numbers

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)

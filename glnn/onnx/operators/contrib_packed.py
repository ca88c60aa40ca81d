"""Products and lookups of ONNX Runtime's operator set with weights of 2, 4 or 8 bits.

A weight becomes a `Dequantize` of constant integers, as DequantizeLinear's does: kernels read it in
its packed form.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Expand, Gather, Pad, Reduce, Slice
from glnn.graph.operators.dequantize import SIGNED, UNSIGNED, Dequantize, UnpackBits
from glnn.onnx.operators.call import (
    MICROSOFT,
    REQUIRED_INT,
    Converter,
    OperatorCall,
    Signature,
)

LEAST_BLOCK = 16


def _layout(call: OperatorCall) -> tuple[int, int]:
    """Return the bits of an integer, and the integers of a block. Raises ShapeError."""
    bits = call.need("bits")
    if bits not in SIGNED:
        raise ShapeError(f"{call.name}: bits must be 2, 4 or 8, got {bits}")
    return bits, _block_size(call)


def _block_size(call: OperatorCall) -> int:
    """Return the numbers of a block, which share a scale. Raises ShapeError."""
    block: int = call.need("block_size")
    if block < LEAST_BLOCK or block & (block - 1):
        raise ShapeError(
            f"{call.name}: block_size must be a power of two from {LEAST_BLOCK} on, got {block}"
        )
    return block


def _rows(call: OperatorCall, value: Value, rows: int, count: int, what: str) -> Value:
    """Return `value` as (rows, count). Raises ShapeError for another number of elements."""
    if prod(value.type.shape) != rows * count:
        raise ShapeError(f"{call.name}: {what} must be ({rows}, {count}), got {value.type}")
    return call.reshape(value, (rows, count))


def _scales(call: OperatorCall, scales: Value) -> Value:
    """Return scales as `Dequantize` takes them: bfloat16 as float32."""
    return call.widened(scales) if scales.type.dtype is DType.bfloat16 else scales


def _matmul_nbits(
    call: OperatorCall,
    a: Value,
    b: Value,
    scales: Value,
    zero: Value | None = None,
    groups: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """Multiply a (..., K) by the transpose of the weight (N, K).

    b: (N, blocks, bytes of a block). scales: (N, blocks). zero: (N, blocks) floats, or packed
    integers (N, bytes). groups: `g_idx`, (K,), the block whose scale each column takes.
    """
    n, k, dtype = call.need("N"), call.need("K"), a.type.dtype
    if call.need("weight_prepacked"):
        raise UnsupportedOpError(f"{call.name}: weights that were packed for another device")
    if a.type.dims[-1:] != (k,):
        raise ShapeError(f"{call.name}: A must be (..., {k}), got {a.type}")
    if 0 in b.type.shape:  # no product
        zeros = call.constant(0.0, np.float32)
        y = call(Expand((*a.type.shape[:-1], n)), zeros)
    else:
        y = _product(call, call.widened(a), b, _scales(call, scales), zero, groups)
    if bias is not None:
        y = call.add_bias(y, call.widened(bias))
    return call.cast(y, dtype)


def _product(
    call: OperatorCall,
    x: Value,
    b: Value,
    scales: Value,
    zero: Value | None,
    groups: Value | None,
) -> Value:
    """Return float32 x times the weight, which is not empty."""
    (bits, block), n, k = _layout(call), call.need("N"), call.need("K")
    blocks, middle = -(-k // block), 1 << bits - 1
    packed = _rows(call, b, n, blocks * block * bits // 8, "B")
    scales = _rows(call, scales, n, blocks, "scales")
    floats = None
    if zero is not None and zero.type.dtype is not DType.uint8:
        floats, zero = _rows(call, call.widened(zero), n, blocks, "zero_points"), None
    if zero is not None:
        row = _rows(call, zero, n, -(-blocks * bits // 8), "zero_points")
        zero = call(UnpackBits(bits, blocks, UNSIGNED[bits]), row)
    # Signed integers have the default zero point, the middle of the range, at 0: it is left out.
    dtype = SIGNED[bits] if zero is None else UNSIGNED[bits]
    integers = call(UnpackBits(bits, k, dtype), packed)
    order = None if groups is None else _column_order(call, groups, block)
    if order is not None and groups is not None:
        x, integers = (call(Gather(-1), one, order) for one in (x, integers))
    elif groups is not None and not _is_natural(call, groups, block):
        # Each column gets its own scale, so the weight is read as floats.
        index, block, blocks = call.cast(groups, DType.int32), 1, k
        scales = call(Gather(1), scales, index)
        zero, floats = (
            None if one is None else call(Gather(1), one, index) for one in (zero, floats)
        )
    operands = [integers, scales] if zero is None else [integers, scales, zero]
    y = matmul(call, x, call(Dequantize(1, block), *operands), transposed=True)
    if floats is None:
        return y
    # scale (q - zero) = scale (q - middle) - scale (zero - middle). The second term is constant in
    # a block: its product with x is a small product with the sums of x over blocks.
    correction = call.pointwise("(a - b) * c", floats, float(middle), call.widened(scales))
    return call.pointwise(
        "a - b", y, matmul(call, _block_sums(call, x, block), correction, transposed=True)
    )


def _block_sums(call: OperatorCall, x: Value, block: int) -> Value:
    """Return the sums of blocks of `block` numbers along the last dimension of x."""
    if block == 1:
        return x
    *outer, k = x.type.shape
    blocks = -(-k // block)
    if (padding := blocks * block - k) > 0:
        zeros = (0,) * len(outer)
        x = call(Pad((*zeros, 0), (*zeros, padding)), x)
    return call(Reduce("sum", (-1,)), call.reshape(x, (*outer, blocks, block)))


def _is_natural(call: OperatorCall, groups: Value, block: int) -> bool:
    """Return True where blocks have their columns in order. Raises ShapeError for others."""
    k = call.need("K")
    index = call.array(groups, "g_idx")
    if index.shape != (k,) or not ((index >= 0) & (index < -(-k // block))).all():
        raise ShapeError(
            f"{call.name}: g_idx must be ({k},) blocks from 0 to {-(-k // block) - 1}, "
            f"got {groups.type}"
        )
    return bool((index == np.arange(k) // block).all())


def _column_order(call: OperatorCall, groups: Value, block: int) -> Value | None:
    """Return a permutation of the columns that puts them in order of blocks.

    None where they are in order already, or where blocks have unequal numbers of columns.
    """
    if _is_natural(call, groups, block):
        return None
    index = call.array(groups)
    order = np.argsort(index, kind="stable")
    if (index[order] != np.arange(len(order)) // block).any():
        return None
    return call.constant(order, np.int32)


def _gather_block_quantized(
    call: OperatorCall, data: Value, index: Value, scales: Value, zero: Value | None = None
) -> Value:
    """Gather from a table of integers with a scale for each block; 0 where an index is out of
    range.

    data: int4 or uint4, or uint8 with several integers packed along the last dimension.
    """
    integers, points = data, zero
    bits, block = _layout(call)
    if data.type.dtype is DType.uint8:
        last = data.type.shape[-1] * 8 // bits
        kind = SIGNED[bits] if zero is None else UNSIGNED[bits]
        integers = call(UnpackBits(bits, last, kind), data)
        if zero is not None:
            points = call(UnpackBits(bits, scales.type.shape[-1], kind), zero)
    shape = integers.type.shape
    gathered, quantized = (
        call.axis(call.need(name), integers) for name in ("gather_axis", "quantize_axis")
    )
    count = -(-shape[quantized] // block)
    expected = (*shape[:quantized], count, *shape[quantized + 1 :])
    for name, one in (("scales", scales), ("zero_points", points)):
        if one is not None and one.type.shape != expected:
            raise ShapeError(
                f"{call.name}: {name} of {shape} must be {expected}, got {one.type.shape}"
            )
    operands = [integers, _scales(call, scales)] + ([] if points is None else [points])
    axis = quantized
    if gathered == 0 and len(shape) > 2 and quantized == len(shape) - 1 and not shape[-1] % block:
        # Rows of whole blocks: these can stay packed.
        operands = [call.reshape(one, (shape[0], prod(one.type.shape[1:]))) for one in operands]
        axis = 1
    table = call(Dequantize(axis, block), *operands)
    clipped, in_range = _clip_index(call, index, shape[gathered])
    y = call(Gather(gathered), table, clipped)
    y = call.reshape(y, (*shape[:gathered], *index.type.shape, *shape[gathered + 1 :]))
    if not in_range:
        broadcast_shape = (*index.type.shape, *(1,) * (len(shape) - 1 - gathered))
        masked = "where(logical_and(b >= c, b < d), a, 0.0)"
        size = shape[gathered]
        y = call.pointwise(masked, y, call.reshape(index, broadcast_shape), -size, size)
    return call.cast(y, scales.type.dtype)


def _clip_index(call: OperatorCall, index: Value, size: int) -> tuple[Value, bool]:
    """Return `index` clipped to an axis of `size`, and True where it is known to be in range."""
    if index.kind is Kind.CONSTANT:
        indices = call.array(index)
        if ((indices >= -size) & (indices < size)).all():
            return index, True
    return call.cast(call.pointwise("clip(a, b, c)", index, -size, size - 1), DType.int32), False


FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""The magnitudes of bitsandbytes' floats of 4 bits; the highest bit is the sign."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The numbers of NormalFloat (Dettmers et al. 2023, "QLoRA", appendix E)."""
TABLES = ((*FP4, *(-one for one in FP4)), NF4)
"""For each `quant_type` the numbers by their 4 bits."""


def _matmul_bnb4(call: OperatorCall, a: Value, b: Value, scales: Value) -> Value:
    """Multiply a by a weight (N, K) of 4-bit floats, transposed if `transB`.

    The weight is converted to float32. b: (bytes,), two numbers in each, the first in the upper
    half. scales: one for each `block_size` numbers in row-major order, across rows.
    """
    n, k, kind, dtype = call.need("N"), call.need("K"), call.need("quant_type"), a.type.dtype
    if not 0 <= kind < len(TABLES):
        raise ShapeError(f"{call.name}: quant_type must be 0 or 1, got {kind}")
    block, count = _block_size(call), n * k
    blocks = -(-count // block)
    packed = _rows(call, b, 1, -(-count // 2), "B")
    pairs = call(UnpackBits(4, 2 * -(-count // 2), DType.uint4), packed)
    order = call.constant([1, 0], np.int32)
    bits = call.reshape(call(Gather(1), call.reshape(pairs, (-(-count // 2), 2)), order), (-1,))
    table = call.constant(np.array(TABLES[kind]), np.float32)
    numbers = call(Gather(0), table, call.cast(bits, DType.int32))
    block_scales = call.reshape(call.widened(scales), (-1,))
    if block_scales.type.shape != (blocks,):
        raise ShapeError(f"{call.name}: absmax must be ({blocks},), got {scales.type}")
    scale = call(Gather(0), block_scales, call.constant(np.arange(count) // block, np.int32))
    numbers = call(Slice((0,), (count,), (0,), (1,)), numbers)
    weight = call.reshape(call.pointwise("a * b", numbers, scale), (n, k))
    y = matmul(call, call.widened(a), weight, transposed=bool(call.need("transB")))
    return call.cast(y, dtype)


_row = partial(Converter, since=1, domain=MICROSOFT, halves=True)
ENTRIES = (
    _row(
        "MatMulNBits",
        convert=_matmul_nbits,
        dtypes=frozenset({DType.bfloat16}),
        signature=Signature(
            (3, 6),
            attributes={
                "K": REQUIRED_INT,
                "N": REQUIRED_INT,
                "accuracy_level": 0,
                "bits": 4,
                "block_size": REQUIRED_INT,
                "weight_prepacked": 0,
            },
        ),
    ),
    _row(
        "GatherBlockQuantized",
        convert=_gather_block_quantized,
        dtypes=frozenset({DType.bfloat16, DType.int4, DType.uint4}),
        signature=Signature(
            (3, 4),
            attributes={"bits": 4, "block_size": 128, "gather_axis": 0, "quantize_axis": 1},
            dtypes=(2,),
        ),
    ),
    _row(
        "MatMulBnb4",
        convert=_matmul_bnb4,
        dtypes=frozenset({DType.bfloat16}),
        signature=Signature(
            (3, 3),
            attributes={
                "K": REQUIRED_INT,
                "N": REQUIRED_INT,
                "block_size": REQUIRED_INT,
                "quant_type": REQUIRED_INT,
                "training_mode": 0,
                "transB": 1,
            },
        ),
    ),
)

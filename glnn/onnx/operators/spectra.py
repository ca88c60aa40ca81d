"""Fourier transforms of up to some thousand numbers, as matrix products on a GPU."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import constant
from glnn.graph.graph import Value
from glnn.graph.index_map import Axis
from glnn.graph.operators import Fourier, Pad, Rearrange, Slice, Transpose
from glnn.graph.operators.fourier import Kind
from glnn.onnx.operators.call import Converter, OperatorCall

MOST_FACTORS = 1 << 23
"""The most elements of a transform's matrix; the host computes larger transforms."""


@lru_cache(maxsize=8)
def _factors(transform: Fourier) -> Value:
    """Return the matrix of a transform, one constant for all nodes and shapes."""
    return constant(transform.factors())


def _transform(call: OperatorCall, rows: Value, transform: Fourier) -> Value:
    """Return the transforms of `rows`. Raises UnsupportedOpError where the matrix is too large."""
    count = transform.terms * transform.columns
    if count > MOST_FACTORS:
        raise UnsupportedOpError(
            f"{call.name} of {transform.size} numbers has {count} factors, a product takes at most "
            f"{MOST_FACTORS}"
        )
    return call(transform, rows, _factors(transform))


def _parts(call: OperatorCall, x: Value) -> int:
    """Return 1 for real x (..., 1), 2 for complex x (..., 2)."""
    if len(x.type.dims) < 2 or x.type.dims[-1] not in (1, 2):
        raise ShapeError(f"{call.name}: the last of the dimensions must be 1 or 2, got {x.type}")
    return int(x.type.shape[-1])


def _kind(parts: int) -> Kind:
    return "real" if parts == 1 else "complex"


def _dft(
    call: OperatorCall, x: Value, length: Value | None = None, axis: Value | None = None
) -> Value:
    """Convert DFT. Before version 20 the axis is an attribute."""
    default = call.get("axis", 1) if call.version < 20 else -2
    along = call.axis(default if axis is None else call.integers(axis, "axis")[0], x)
    parts, rank = _parts(call, x), len(x.type.dims)
    if along == rank - 1:
        raise ShapeError(f"DFT: axis must name one of {rank} dimensions but the last, got {along}")
    onesided, inverse = bool(call.get("onesided", 0)), bool(call.get("inverse", 0))
    count = int(x.type.shape[along])
    size = 2 * (count - 1) if onesided and inverse else count
    if length is not None:
        size = int(call.integers(length, "dft_length")[0])
    if size < 1:
        raise ShapeError(f"DFT: dft_length must be at least 1, got {size}")
    if onesided and inverse != (parts == 2):
        raise ShapeError(
            f"DFT: onesided takes real numbers (..., 1), its inverse complex ones, got {x.type}"
        )
    if parts == 1 and inverse:
        x = call(Pad((0,) * rank, (*(0,) * (rank - 1), 1)), x)  # imaginary parts
    used = size // 2 + 1 if onesided and inverse else size
    if inverse:
        transform = Fourier("real inverse" if onesided else "inverse", size, size)
    else:
        transform = Fourier(_kind(parts), size, size // 2 + 1 if onesided else size)
    order = (*(i for i in range(rank - 1) if i != along), along, rank - 1)
    rows = x if along == rank - 2 else call(Transpose(order), x)
    if count > used:
        rows = call(Slice((0,), (used,), (rank - 2,), (1,)), rows)
    if count < used:
        zeros = (0,) * rank
        rows = call(Pad(zeros, (*zeros[:-2], used - count, 0)), rows)
    dims = rows.type.shape[:-2]
    y = _transform(call, call.reshape(rows, (prod(dims), transform.terms)), transform)
    y = call.reshape(y, (*dims, transform.bins, transform.columns // transform.bins))
    back = tuple(order.index(i) for i in range(rank))
    return y if along == rank - 2 else call(Transpose(back), y)


def _stft(
    call: OperatorCall,
    x: Value,
    step: Value,
    window: Value | None = None,
    length: Value | None = None,
) -> Value:
    """Return the transforms of overlapping frames times the window."""
    parts = 1 if len(x.type.dims) == 2 else _parts(call, x)
    if len(x.type.dims) not in (2, 3):
        raise ShapeError(f"STFT: the signal must be (batch, n, 1) or (batch, n, 2), got {x.type}")
    batch, n = x.type.shape[:2]
    hop = int(call.integers(step, "frame_step")[0])
    size = n if window is None else window.type.shape[0]
    size = int(size if length is None else call.integers(length, "frame_length")[0])
    if window is not None and window.type.shape != (size,):
        raise ShapeError(f"STFT: frames of {size} numbers need such a window, got {window.type}")
    if hop < 1 or not 1 <= size <= n:
        raise ShapeError(
            f"STFT: frame_step must be at least 1, got {hop}; frame_length must be from 1 to {n}, "
            f"got {size}"
        )
    onesided = bool(call.get("onesided", 1))
    if onesided and parts == 2:
        raise ShapeError(f"STFT: only real numbers have one half, got {x.type}")
    transform = Fourier(_kind(parts), size, size // 2 + 1 if onesided else size)
    signal, count = call.reshape(x, (batch, n, parts)), (n - size) // hop + 1
    axes = (Axis(batch, 0),), (Axis(count, 1, 0, hop),), (Axis(size, 1),), (Axis(parts, 2),)
    frames = call(Rearrange((batch, n, parts), axes), signal)
    if window is not None:
        frames = call.pointwise("a * b", frames, call.reshape(window, (size, 1)))
    rows = call.reshape(frames, (batch * count, size * parts))
    y = _transform(call, rows, transform)
    return call.reshape(y, (batch, count, transform.bins, 2))


ENTRIES = (
    Converter("DFT", 17, _dft, shape_inputs=(1, 2)),
    Converter("STFT", 17, _stft, shape_inputs=(1, 3)),
)

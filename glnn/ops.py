"""`matmul` and `conv2d` as plain functions: NumPy arrays in and out."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend
from glnn.compiler import evaluate
from glnn.core.types import Dim, TensorType, as_float32
from glnn.errors import ShapeError, shown
from glnn.graph.compose.matmul import Product
from glnn.graph.epilogue import BIASED, gemm
from glnn.graph.operator import rank
from glnn.graph.operators import Conv2d, Matmul, windows

__all__ = ["conv2d", "matmul"]

Array = NDArray[Any]


def matmul(
    a: Array,
    b: Array,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    backend: str | Backend = "auto",
    kernel: str | None = None,
) -> Array:
    """Compute alpha op(a) op(b) + beta c: BLAS's GEMM with the shapes of numpy.matmul.

    a: (..., m, k), or (..., k, m) with `transpose_a`. b: (..., k, n), or (..., n, k) with
    `transpose_b`. Batches of matrices broadcast. Either may be a vector (k,); the result then has
    no m or no n. c: (..., m, n), the result's shape; it is read only if `beta` is not 0, and a and
    b only if `alpha` is not 0. All are float32. Returns a new float32 array. Raises ShapeError
    where shapes or types do not fit.
    """
    a, b = as_float32("matmul: a", a), as_float32("matmul: b", b)
    alpha, beta = _scalar("alpha", alpha), _scalar("beta", beta)
    for name, flag in (("transpose_a", transpose_a), ("transpose_b", transpose_b)):
        if not isinstance(flag, (bool, int, np.bool_)):
            raise ShapeError(f"matmul: {name} must be true or false, got {shown(flag)}")
    left = a.swapaxes(-1, -2) if transpose_a and a.ndim > 1 else a
    right = b if transpose_b or b.ndim < 2 else b.swapaxes(-1, -2)
    product = Product.from_operands(left.shape, right.shape)
    shape, k = TensorType(product.result).shape, left.shape[-1]
    if c is None:
        if beta != 0.0:
            raise ShapeError(f"matmul: beta is {beta:g}, so c is needed")
    else:
        c = as_float32("matmul: c", c)
        if c.shape != shape:
            raise ShapeError(f"matmul: c must have shape {shape}, got {c.shape}")
    if alpha == 0.0 or k == 0 or 0 in shape:  # the product is 0, or the result is empty
        return np.float32(beta) * c if c is not None and beta else np.zeros(shape, np.float32)
    x, weight = _broadcast(left, product.a), _broadcast(right, product.b)
    if product.swapped:
        x, weight = weight, x
    (*batch, m, _), (*weight_batch, n, _) = x.shape, weight.shape
    matrices = weight.reshape(-1, n, k) if weight_batch else weight
    operands = {"x": x.reshape(-1, k), "weight": matrices}
    if c is not None and beta:
        operands["e1"] = (_transpose(c, batch, n, m) if product.swapped else c).reshape(-1, n)
    epilogue = gemm(alpha, beta if "e1" in operands else None)
    result = evaluate(Matmul(), operands, backend, kernel, epilogue)
    if product.swapped:
        result = np.ascontiguousarray(_transpose(result, batch, m, n))
    return result.reshape(shape)


def _broadcast(array: Array, dims: tuple[Dim, ...]) -> Array:
    """Broadcast `array` to `dims`, without leading dimensions of size 1 that exceed `dims`."""
    shape = TensorType(dims).shape
    return np.broadcast_to(array.reshape(array.shape[-len(shape) :]), shape)


def _transpose(array: Array, batch: Sequence[int], rows: int, columns: int) -> Array:
    """Transpose each matrix of a batch."""
    return np.asarray(array.reshape(*batch, rows, columns).swapaxes(-1, -2))


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, ...] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    backend: str | Backend = "auto",
    kernel: str | None = None,
) -> Array:
    """Convolve images as PyTorch's `conv2d`, and return a new float32 array (n, o, oh, ow).

    x: (n, c, h, w). weight: (o, c / groups, kh, kw). bias: (o,). All are float32. padding: one
    number, (vertical, horizontal), (top, left, bottom, right), "valid" or "same" (stride 1 only).
    Raises ShapeError where shapes or types do not fit.
    """
    operands = {"x": as_float32("conv2d: x", x), "weight": as_float32("conv2d: weight", weight)}
    if bias is not None:
        operands["e1"] = as_float32("conv2d: bias", bias)
    rank("conv2d", "weight", weight.shape, 4, "(o, c / groups, kh, kw)")
    strides, dilations = _pair(stride), _pair(dilation)
    windows.check("conv2d", dilation=(dilations, 2, 1))
    sides = _sides(padding, weight.shape[2:], strides, dilations)
    op = Conv2d(strides, sides, dilations, _plain(groups))
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"conv2d: bias must have shape {weight.shape[:1]}, got {bias.shape}")
    return evaluate(op, operands, backend, kernel, None if bias is None else BIASED)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    # Conv2d checks their number and types.
    values = value if isinstance(value, (tuple, list)) else (value, value)
    return tuple(map(_plain, values))


def _plain(value: Any) -> Any:
    """Return `value` as an int where it is an integer of NumPy's; unchanged otherwise."""
    return operator.index(value) if isinstance(value, np.integer) else value


def _scalar(name: str, value: object) -> float:
    """Return `value` as a float. Raises ShapeError unless it is real and in float32's range."""
    largest = float(np.finfo(np.float32).max)
    real = isinstance(value, (int, float, np.integer, np.floating))
    if not real or largest < abs(value) < inf:  # type: ignore[arg-type]
        raise ShapeError(f"matmul: {name} must be a number that float32 holds, got {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def _sides(
    padding: int | tuple[int, ...] | str,
    kernel: tuple[int, ...],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[int, int, int, int]:
    """Return the padding at the top, left, bottom and right."""
    if isinstance(padding, str) and padding == "valid":
        return 0, 0, 0, 0
    if isinstance(padding, str) and padding == "same":
        if stride != (1, 1):
            raise ShapeError(f"conv2d: padding 'same' needs stride 1, got {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2
    if isinstance(padding, (int, np.integer)):
        return (int(padding),) * 4
    if isinstance(padding, (tuple, list)) and len(padding) in (2, 4):
        top, left, *rest = map(_plain, padding)
        bottom, right = rest or (top, left)
        return top, left, bottom, right
    raise ShapeError(
        "conv2d: padding must be an integer, 2 or 4 integers, 'same' or 'valid', "
        f"got {shown(padding)}"
    )

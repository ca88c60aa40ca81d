"""The pointwise functions that an op may apply to its result before storing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError

FUNCTIONS = ("identity", "sigmoid", "relu", "tanh")
"""In the order of the codes in `shaders/common/activation.glsl`."""


def check(op: str, function: str) -> None:
    """Raise ShapeError unless `function` is one of FUNCTIONS."""
    if function not in FUNCTIONS:
        raise ShapeError(
            f"{op}: activation must be one of {', '.join(FUNCTIONS)}, got {function!r}"
        )


def code(function: str) -> int:
    """The value of the shaders' ACTIVATION for `function`."""
    return FUNCTIONS.index(function)


def apply(function: str, x: NDArray[Any]) -> NDArray[Any]:
    """`function` of every element, in the dtype of `x`; NaN stays NaN."""
    if function == "identity":
        return x
    if function == "relu":
        return np.asarray(np.maximum(x, 0))
    if function == "tanh":
        return np.asarray(np.tanh(x))
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, 0
        return np.asarray(1 / (1 + np.exp(-x)))


def check_addends(
    op: str, shapes: Mapping[str, tuple[int, ...]], **expected: tuple[int, ...]
) -> None:
    """Raise ShapeError unless the operands so called, where they are there, have these shapes."""
    for name, shape in expected.items():
        if shapes.get(name, shape) != shape:
            raise ShapeError(f"{op}: {name} must have shape {shape}, got {shapes[name]}")


def finish(
    function: str, images: NDArray[Any], operands: Mapping[str, NDArray[Any]]
) -> NDArray[Any]:
    """`function` of `images`, to which bias and residual, where there are some, are added."""
    if "bias" in operands:
        images += operands["bias"].reshape(1, -1, 1, 1)
    if "residual" in operands:
        images += operands["residual"]
    return apply(function, images)


def gemm(
    product: NDArray[Any],
    operands: Mapping[str, NDArray[Any]],
    alpha: float,
    beta: float,
    function: str,
) -> NDArray[Any]:
    """`function` of alpha `product` + bias + beta c, where there are such; overwrites `product`."""
    if alpha != 1.0:
        product *= product.dtype.type(alpha)
    if "bias" in operands:
        product += operands["bias"]
    if "c" in operands:
        product += product.dtype.type(beta) * operands["c"]
    return apply(function, product)

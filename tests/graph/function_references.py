"""References of scalar functions, written independently of the rows of FUNCTIONS.

A ufunc that NumPy or SciPy has under the same name needs none here: `float_reference` finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special


def _half(x: Any) -> Any:
    return np.asarray(x, np.float32).astype(np.float16)


def _saturate(low: int, high: int) -> Callable[[Any], Any]:
    return lambda x: np.clip(np.trunc(np.where(np.isnan(x), 0, x)), low, high)


def _log_sigmoid(x: Any) -> Any:
    return np.where(np.isnan(x), x, -np.logaddexp(0, -x))


FLOATS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "quotient": lambda a, b: a / b,
    "neg": lambda a: -a,
    "reciprocal": lambda a: 1 / a,
    "square": lambda a: a * a,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "pow": np.power,
    "clip": lambda a, b, c: np.minimum(np.maximum(a, b), c),
    "round": np.round,
    "lerp": lambda a, b, c: a + c * (b - a),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": scipy.special.erf,
    "normal_cdf": scipy.special.ndtr,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "cast_float32": lambda a: a,
    "cast_float16": _half,
    "cast_int32": _saturate(-(2**31), 2**31 - 1),
    "cast_int8": _saturate(-128, 127),
    "cast_uint8": _saturate(0, 255),
    "cast_bool": lambda a: a != 0,
    "relu": lambda a: np.maximum(a, 0),
    "leaky_relu": lambda a, b: np.where(a > 0, a, a * b),
    "relu6": lambda a: np.minimum(np.maximum(a, 0), 6),
    "hardtanh": lambda a, b, c: np.minimum(np.maximum(a, b), c),
    "thresholded_relu": lambda a, b: np.where(a <= b, 0, a),
    "elu": lambda a, b: np.where(a > 0, a, b * np.expm1(a)),
    "celu": lambda a, b: np.where(a > 0, a, b * np.expm1(a / b)),
    "selu": lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
    "gelu": lambda a: a * (1 + scipy.special.erf(a / 2**0.5)) / 2,
    "gelu_tanh": lambda a: a / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (a + 0.044715 * a**3))),
    "silu": lambda a: a / (1 + np.exp(-a)),
    "mish": lambda a: a * np.tanh(np.logaddexp(0, a)),
    "softplus": lambda a, b, c: np.where(a * b > c, a, np.log1p(np.exp(a * b)) / b),
    "softsign": lambda a: a / (1 + np.abs(a)),
    "log_sigmoid": _log_sigmoid,
    "hardsigmoid": lambda a, b, c: np.clip(a * b + c, 0, 1),
    "hardswish": lambda a: a * np.clip(a / 6 + 0.5, 0, 1),
    "tanhshrink": lambda a: a - np.tanh(a),
    "hardshrink": lambda a, b: np.where(np.abs(a) <= b, 0, a),
    "softshrink": lambda a, b: a - np.clip(a, -b, b),
}
"""Functions of float64 arguments."""
INTEGERS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: np.where(b == 0, 0, np.sign(a * b) * (abs(a) // np.maximum(abs(b), 1))),
    "fmod": lambda a, b: np.where(b == 0, 0, np.sign(a) * (abs(a) % np.maximum(abs(b), 1))),
    "remainder": lambda a, b: np.where(
        b == 0, 0, a - b * np.floor(a / np.where(b, b, 1)).astype(int)
    ),
    "pow": lambda a, b: np.array(
        [
            pow(int(x), int(y), 2**32) if y >= 0 else int(x) ** abs(int(y)) if abs(x) == 1 else 0
            for x, y in zip(a, b)
        ]
    ),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": lambda a, b: np.where((b < 0) | (b > 31), 0, a << np.clip(b, 0, 31)),
    "right_shift": lambda a, b: a >> np.where((b < 0) | (b > 31), 31, b),
    "equal": lambda a, b: a == b,
    "less": lambda a, b: a < b,
    "greater_equal": lambda a, b: a >= b,
    "not_equal": lambda a, b: a != b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "clip": lambda a, b: np.minimum(np.maximum(a, b), 0),  # nothing is the third
    "neg": lambda a: -a,
    "abs": abs,
    "sign": np.sign,
    "square": lambda a: a * a,
    "bitwise_not": lambda a: -1 - a,
    "cast_float32": lambda a: a.astype(np.float32).view(np.int32),
    "cast_bool": lambda a: a != 0,
    "cast_int32": lambda a: a,
    "cast_int8": lambda a: a,
    "cast_uint8": lambda a: a,
}
"""Functions of integers in int64, of whose results the type keeps the last bits."""
BOOLS: Mapping[str, Callable[..., Any]] = {
    "logical_and": lambda a, b, c: a & b,
    "logical_or": lambda a, b, c: a | b,
    "logical_xor": lambda a, b, c: a ^ b,
    "logical_not": lambda a, b, c: 1 - a,
    "equal": lambda a, b, c: a == b,
    "not_equal": lambda a, b, c: a != b,
    "where": lambda a, b, c: np.where(a, b, c),
    "cast_int32": lambda a, b, c: a,
    "cast_bool": lambda a, b, c: a,
    "cast_float32": lambda a, b, c: a,
    "cast_int8": lambda a, b, c: a,
    "cast_uint8": lambda a, b, c: a,
}
"""Functions of three bools, 0 and 1."""


def float_reference(name: str) -> Callable[..., Any]:
    """Return the function of float64 arrays, by its name, that FLOATS, NumPy or SciPy has.

    Raises LookupError where none has it: FLOATS must have it then.
    """
    if name in FLOATS:
        return FLOATS[name]
    for module in (np, scipy.special):
        if isinstance(function := getattr(module, name, None), np.ufunc):
            return function
    raise LookupError(f"NumPy and SciPy have no {name}: FLOATS of {__name__} must have it")

"""What each scalar function is, written down again in float64, and where it is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST = 3.4028234663852886e38
_erf = np.frompyfunc(math.erf, 1, 1)

SPECIAL = np.array(
    [
        *(0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, 0.25, 7.0, 1e-3, 1e-20, 1e-40, 1.2e-38, 0.99999994),
        *(1.0000001, 4194303.5, 8388607.5, 8388609.0, 16777217.0, 2.1474836e9, 2.1474837e9, 3e9),
        *(1e5, 1e10, 1e20, 1e30, MOST, np.inf, np.nan, 127.5, 128.0, 255.4, 88.72283, 88.72284),
        *(89.4, 103.97, 104.1, 65504.0, 65519.0, 65520.0, 2.9802322e-8, 2.9802326e-8, 6.1e-5),
    ],
    np.float32,
)


@dataclass(frozen=True)
class Case:
    """A function against float64.

    expected: of the arguments in float64. ulps: how many units in the last place it may be off, of
    the result or of `least`, whichever is larger. over: the domain of each argument; all floats and
    special values are tried besides, unless the case is `bounded` to it.
    """

    name: str
    expected: Callable[..., Any]
    ulps: float = 0.5
    over: tuple[tuple[float, float], ...] = ((-20.0, 20.0),)
    least: float = 0.0
    bounded: bool = False


def erf(x: Any) -> Any:
    """The error function in float64, which NumPy has not."""
    return np.asarray(_erf(x), np.float64)


def _half(x: Any) -> Any:
    return np.asarray(x, np.float32).astype(np.float16)


def _saturated(low: int, high: int) -> Callable[[Any], Any]:
    return lambda x: np.clip(np.trunc(np.where(np.isnan(x), 0, x)), low, high)


def _log_sigmoid(x: Any) -> Any:
    return np.where(np.isnan(x), x, -np.logaddexp(0, -x))


TWO = ((-20.0, 20.0), (-20.0, 20.0))
POSITIVE = ((0.01, 20.0),)
UNIT = ((-1.0, 1.0),)
ONE_AND_SLOPE = ((-20.0, 20.0), (0.1, 2.0))
CASES = (
    Case("add", lambda a, b: a + b, 1, TWO),
    Case("sub", lambda a, b: a - b, 1, TWO),
    Case("mul", lambda a, b: a * b, 1, TWO),
    Case("div", lambda a, b: a / b, 3, TWO, bounded=True),
    Case("quotient", lambda a, b: a / b, 0.5, TWO, bounded=True),
    Case("fmod", np.fmod, 0.5, TWO),
    Case("remainder", np.remainder, 1, TWO, 1e-29),  # what is less may be 0 to a driver
    Case("neg", lambda a: -a),
    Case("abs", np.abs),
    Case("sign", np.sign),
    Case("reciprocal", lambda a: 1 / a, 3),
    Case("square", lambda a: a * a, 1),
    Case("sqrt", np.sqrt, 3, POSITIVE),
    Case("rsqrt", lambda a: 1 / np.sqrt(a), 3, POSITIVE),
    Case("pow", np.power, 3, ((0.0, 20.0), (-20.0, 20.0))),
    Case("maximum", np.maximum, 0.5, TWO),
    Case("minimum", np.minimum, 0.5, TWO),
    Case("clip", lambda a, b, c: np.minimum(np.maximum(a, b), c), 0.5, (*TWO, (-5.0, 20.0))),
    Case("ceil", np.ceil),
    Case("floor", np.floor),
    Case("trunc", np.trunc),
    Case("round", np.round),
    Case("lerp", lambda a, b, c: a + c * (b - a), 4, (*TWO, (0.0, 1.0)), 20.0, True),
    Case("exp", np.exp, 3, ((-104.0, 89.0),)),
    Case("exp2", np.exp2, 3, ((-150.0, 128.0),)),
    Case("expm1", np.expm1, 4, ((-20.0, 89.0),)),
    Case("log", np.log, 3, POSITIVE),
    Case("log2", np.log2, 3, POSITIVE),
    Case("log1p", np.log1p, 3, ((-1.0, 20.0),)),
    Case("sin", np.sin, 3, ((-400.0, 400.0),)),
    Case("cos", np.cos, 3, ((-400.0, 400.0),)),
    Case("tan", np.tan, 5, ((-400.0, 400.0),)),
    Case("asin", np.arcsin, 4, UNIT),
    Case("acos", np.arccos, 4, UNIT),
    Case("atan", np.arctan, 4),
    Case("atan2", np.arctan2, 4, TWO),
    Case("sinh", np.sinh, 6, ((-90.0, 90.0),)),
    Case("cosh", np.cosh, 6, ((-90.0, 90.0),)),
    Case("tanh", np.tanh, 8),
    Case("asinh", np.arcsinh, 4),
    Case("acosh", np.arccosh, 4, ((1.0, 20.0),)),
    Case("atanh", np.arctanh, 4, UNIT),
    Case("erf", lambda a: erf(a), 3, ((-5.0, 5.0),)),
    Case("sigmoid", lambda a: 1 / (1 + np.exp(-a)), 200),  # the built-in exp: 3 + 2 |x|
    Case("equal", lambda a, b: a == b, 0, TWO),
    Case("not_equal", lambda a, b: a != b, 0, TWO),
    Case("less", lambda a, b: a < b, 0, TWO),
    Case("less_equal", lambda a, b: a <= b, 0, TWO),
    Case("greater", lambda a, b: a > b, 0, TWO),
    Case("greater_equal", lambda a, b: a >= b, 0, TWO),
    Case("isnan", np.isnan, 0),
    Case("isinf", np.isinf, 0),
    Case("isfinite", np.isfinite, 0),
    Case("cast_float32", lambda a: a),
    Case("cast_float16", _half, 0),
    Case("cast_int32", _saturated(-(2**31), 2**31 - 1)),
    Case("cast_int8", _saturated(-128, 127), 0),
    Case("cast_uint8", _saturated(0, 255), 0),
    Case("cast_bool", lambda a: a != 0, 0),
    Case("relu", lambda a: np.maximum(a, 0)),
    Case("leaky_relu", lambda a, b: np.where(a > 0, a, a * b), 1, ONE_AND_SLOPE),
    Case("relu6", lambda a: np.minimum(np.maximum(a, 0), 6)),
    Case("hardtanh", lambda a, b, c: np.minimum(np.maximum(a, b), c), 0.5, (*TWO, (-5.0, 20.0))),
    Case("thresholded_relu", lambda a, b: np.where(a <= b, 0, a), 0.5, ONE_AND_SLOPE),
    Case("elu", lambda a, b: np.where(a > 0, a, b * np.expm1(a)), 4, ONE_AND_SLOPE),
    Case(
        "celu", lambda a, b: np.where(a > 0, a, b * np.expm1(a / b)), 20, ONE_AND_SLOPE, 0.1, True
    ),
    Case(
        "selu",
        lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
        *(4, ((-20.0, 20.0),)),
    ),
    Case("gelu", lambda a: a * (1 + erf(a / 2**0.5)) / 2, 4, least=2.0),
    Case(
        "gelu_tanh",
        lambda a: a / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (a + 0.044715 * a**3))),
        *(8, ((-20.0, 20.0),), 1.0, True),
    ),
    Case("silu", lambda a: a / (1 + np.exp(-a)), 10, ((-40.0, 40.0),), 1e-3, True),
    Case("mish", lambda a: a * np.tanh(np.logaddexp(0, a)), 10, ((-40.0, 40.0),), 0.1, True),
    Case(
        "softplus",
        lambda a, b, c: np.where(a * b > c, a, np.log1p(np.exp(a * b)) / b),
        *(12, ((-20.0, 20.0), (0.5, 2.0), (20.0, 30.0)), 0.1, True),
    ),
    Case("softsign", lambda a: a / (1 + np.abs(a)), 4, bounded=True),
    Case("log_sigmoid", _log_sigmoid, 6, ((-80.0, 80.0),), bounded=True),
    Case(
        "hardsigmoid",
        lambda a, b, c: np.clip(a * b + c, 0, 1),
        *(4, ((-20.0, 20.0), (0.1, 0.3), (0.3, 0.6)), 2.0, True),
    ),
    Case("hardswish", lambda a: a * np.clip(a / 6 + 0.5, 0, 1), 6, least=3.0, bounded=True),
    Case("tanhshrink", lambda a: a - np.tanh(a), 6, least=1.0, bounded=True),
    Case("hardshrink", lambda a, b: np.where(np.abs(a) <= b, 0, a), 0.5, ONE_AND_SLOPE),
    Case("softshrink", lambda a, b: a - np.clip(a, -b, b), 1, ONE_AND_SLOPE, bounded=True),
)


INTS = np.array(
    [*range(-9, 10), 31, 32, 33, 100, 127, 128, 255, 256, 46341, 2**31 - 1, -(2**31), -(2**31) + 1],
    np.int64,
)
INTEGER: Mapping[str, Callable[..., Any]] = {
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
"""What functions of integers give, in integers without end: the type's own bits are kept."""
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
"""What functions of bools, 0 and 1, give."""


def points(case: Case, arguments: int) -> list[np.ndarray[Any, Any]]:
    """Where the function is looked at: as many numbers of float32 for each argument."""
    generator = np.random.default_rng(len(case.name))
    inside = [np.linspace(*over, 8191) for over in case.over]
    found = [
        np.asarray(generator.permutation(i) if n else i, np.float32) for n, i in enumerate(inside)
    ]
    if case.bounded:
        return found
    signed = np.concatenate([SPECIAL, -SPECIAL])
    if arguments == 1:
        whole = np.arange(0, 2**32, 2**32 // 24571, dtype=np.uint64).astype(np.uint32)
        quarters = (np.arange(1, 4000) * (np.pi / 2)).astype(np.float32)
        more = [[signed, whole.view(np.float32), quarters, SPECIAL + 1]]
    else:
        some = np.array(np.meshgrid(*[signed] * min(arguments, 2)), np.float32).reshape(2, -1)
        any_bits = generator.integers(0, 2**32, (arguments, 4096), np.uint32).view(np.float32)
        more = [[*([some[n]] if n < 2 else [some[0][::-1]]), any_bits[n]] for n in range(arguments)]
    return [np.concatenate([one, *others]) for one, others in zip(found, more, strict=True)]

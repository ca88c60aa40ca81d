"""The table of scalar functions by their names: all that glnn knows of a function is its row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from glnn.core import array_functions as arrays
from glnn.core.types import DType
from glnn.errors import ShapeError
from glnn.graph import interval, threefry
from glnn.graph.function import Accuracy, Function, OnnxForm
from glnn.graph.interval import corners, integers

_ROUNDED = Accuracy()


def _all(text: str) -> dict[str, str]:
    return {"float": text, "int": text, "bool": text}


def _both(text: str, int_form: str | None = None) -> dict[str, str]:
    return {"float": text, "int": int_form or text}


# The number 0, and NaN of what is not finite.
_NOTHING = "(floatBitsToUint(a) & 0x7f800000u) != 0x7f800000u ? 0.0 : uintBitsToFloat(0x7fc00000u)"


# 0 or 1 of a bool. NVIDIA's compiler (580) takes some ints that int() makes of bools for 0 and -1:
# min and max of four are wrong then (docs/driver-faults.md).
_BIT = "a ? 1 : 0"


def _onnx(
    name: str, formula: str | None = None, *, legacy_broadcast: bool = False, **attributes: float
) -> OnnxForm:
    return OnnxForm(name, attributes, formula, legacy_broadcast)


def _compare(
    name: str, numpy: Callable[..., Any], sign: str, onnx: OnnxForm | None = None, **fields: Any
) -> Function:
    forms = {"float": f"ordered(a, b) && a {sign} b", "int": f"a {sign} b"}
    if name == "not_equal":
        forms["float"] = "!(ordered(a, b) && a == b)"
    if name in ("equal", "not_equal"):
        forms["bool"] = forms["int"]
    return Function(
        name, 2, numpy, forms, "compare", gives="bool", accuracy=Accuracy(0), onnx=onnx, **fields
    )


def _cast(name: str, glsl: Mapping[str, str], *, accuracy: Accuracy | None = _ROUNDED) -> Function:
    dtype = name.removeprefix("cast_")
    gradient = "da" if dtype.startswith("float") else None
    rule = None if dtype == "bool" else interval.cast(DType(dtype))
    numpy = arrays.make_cast(dtype)
    return Function(
        *(name, 1, numpy, glsl, "cast"),
        gives=dtype,
        gradient=gradient,
        interval=rule,
        accuracy=accuracy,
    )


_F, _error = Function, Accuracy
# Domains of arguments.
_POSITIVE = ((0.01, 20.0),)
_UNIT = ((-1.0, 1.0),)
_SLOPE = ((-20.0, 20.0), (0.1, 2.0))
# fmt: off
_ARITHMETIC = (
    _F("add", 2, np.add, _both("a + b"), gradient="da + db",
       interval=integers(corners(operator.add)), accuracy=_error(1),
       onnx=_onnx("Add", legacy_broadcast=True)),
    _F("sub", 2, np.subtract, _both("a - b"), same=_NOTHING, gradient="da - db",
       interval=integers(corners(operator.sub)), accuracy=_error(1),
       onnx=_onnx("Sub", legacy_broadcast=True)),
    _F("mul", 2, np.multiply, _both("a * b"), gradient="da * b + a * db",
       interval=integers(corners(operator.mul)), accuracy=_error(1),
       onnx=_onnx("Mul", legacy_broadcast=True)),
    _F("div", 2, arrays.div, _both("a / b", "quotient(a, b)"), "integer",
       gradient="(da - a / b * db) / b", interval=integers(interval.quotient),
       accuracy=_error(3, bounded=True), onnx=_onnx("Div", legacy_broadcast=True)),
    _F("quotient", 2, np.divide, "rounded_quotient(a, b)", "quotient",
       gradient="(da - a / b * db) / b", flops=12, accuracy=_error(bounded=True)),
    _F("fmod", 2, np.fmod, _both("float_remainder(a, b)", "integer_remainder(a, b)"), "remainder",
       gradient="da - trunc(a / b) * db", interval=integers(interval.rest)),
    _F("remainder", 2, np.remainder, _both("float_modulo(a, b)", "modulo(a, b)"), "remainder",
       gradient="da - floor(a / b) * db", interval=integers(interval.modulo),
       accuracy=_error(1, least=1e-29)),
    _F("neg", 1, np.negative, _both("-a"), gradient="-da", interval=corners(operator.neg),
       onnx=_onnx("Neg")),
    _F("abs", 1, np.abs, _both("magnitude(a)"), "sign", gradient="sign(a) * da",
       interval=interval.magnitude, onnx=_onnx("Abs")),
    _F("sign", 1, np.sign, _both("signum(a)"), "sign", interval=corners(interval.sign),
       onnx=_onnx("Sign")),
    _F("reciprocal", 1, arrays.reciprocal, "1.0 / a", gradient="-da / (a * a)",
       by_result="-(a * a) * da", accuracy=_error(3), onnx=_onnx("Reciprocal")),
    _F("square", 1, np.square, _both("a * a"), gradient="2.0 * a * da",
       interval=integers(interval.square), accuracy=_error(1), onnx_formula="a * a"),
    _F("sqrt", 1, np.sqrt, "square_root(a)", "root", gradient="0.5 / sqrt(a) * da",
       by_result="0.5 / a * da", accuracy=_error(3, _POSITIVE), onnx=_onnx("Sqrt")),
    _F("rsqrt", 1, arrays.rsqrt, "inverse_root(a)", "root", gradient="-0.5 * rsqrt(a) / a * da",
       by_result="-0.5 * a * a * a * da", accuracy=_error(3, _POSITIVE),
       onnx_formula="reciprocal(sqrt(a))"),
    _F("pow", 2, arrays.power, _both("power(a, b)", "integer_power(a, b)"), "power", flops=40,
       gradient="where(equal(b, 0.0), 0.0, b * pow(a, b - 1.0)) * da"
       " + where(logical_and(equal(a, 0.0), b >= 0.0), 0.0, pow(a, b) * log(a)) * db",
       accuracy=_error(3, ((0, 20), (-20, 20))), onnx=_onnx("Pow")),
    _F("maximum", 2, np.maximum, _both("greater(a, b)", "max(a, b)"), "extremes",
       gradient="where(a > b, da, where(a < b, db, 0.5 * (da + db)))", interval=corners(max),
       onnx=_onnx("Max")),
    _F("minimum", 2, np.minimum, _both("lesser(a, b)", "min(a, b)"), "extremes",
       gradient="where(a < b, da, where(a > b, db, 0.5 * (da + db)))", interval=corners(min),
       onnx=_onnx("Min")),
    _F("clip", 3, np.clip, _both("clipped(a, b, c)", "min(max(a, b), c)"), "extremes",
       gradient="where(maximum(a, b) > c, dc, where(a < b, where(b < c, db, 0.0), da))", flops=2,
       interval=corners(lambda x, low, high: min(max(x, low), high)),
       accuracy=_error(domain=((-20, 20), (-20, 20), (-5, 20)))),
    _F("ceil", 1, np.ceil, "float_ceil(a)", "round", interval=corners(np.ceil), onnx=_onnx("Ceil")),
    _F("floor", 1, np.floor, "float_floor(a)", "round", interval=corners(np.floor),
       onnx=_onnx("Floor")),
    _F("trunc", 1, np.trunc, "float_trunc(a)", "round", interval=corners(np.trunc),
       onnx_formula="where(a < 0.0, ceil(a), floor(a))"),
    _F("round", 1, np.rint, "round_half_even(a)", "round", interval=corners(np.rint),
       onnx=_onnx("Round")),
    _F("lerp", 3, body="a + c * (b - a)",
       accuracy=_error(4, ((-20, 20), (-20, 20), (0, 1)), least=20, bounded=True)),
)
_TRANSCENDENTAL = (
    _F("exp", 1, np.exp, "exponential(a)", "exp", gradient="exp(a) * da", by_result="a * da",
       flops=10, accuracy=_error(3, ((-104, 89),)), onnx=_onnx("Exp")),
    _F("exp2", 1, np.exp2, "exponential_base_2(a)", "exp",
       gradient="0.6931471805599453 * exp2(a) * da", by_result="0.6931471805599453 * a * da",
       flops=10, accuracy=_error(3, ((-150, 128),)), onnx_formula="pow(2.0, a)"),
    _F("expm1", 1, np.expm1, "exponential_minus_one(a)", "exp", gradient="exp(a) * da",
       by_result="(1.0 + a) * da", flops=12, accuracy=_error(4, ((-20, 89),)),
       onnx_formula="2.0 * sinh(0.5 * a) * exp(0.5 * a)"),
    _F("log", 1, np.log, "logarithm(a)", "log", gradient="da / a", flops=12,
       accuracy=_error(3, _POSITIVE), onnx=_onnx("Log")),
    _F("log2", 1, np.log2, "logarithm_base_2(a)", "log", gradient="1.4426950408889634 * da / a",
       flops=12, accuracy=_error(3, _POSITIVE), onnx_formula="log(a) * 1.4426950408889634"),
    _F("log1p", 1, np.log1p, "logarithm_plus_one(a)", "log", gradient="da / (1.0 + a)", flops=14,
       accuracy=_error(3, ((-1, 20),))),
    _F("sin", 1, np.sin, "sine(a)", "trigonometric", gradient="cos(a) * da", flops=20,
       accuracy=_error(3, ((-400, 400),)), onnx=_onnx("Sin")),
    _F("cos", 1, np.cos, "cosine(a)", "trigonometric", gradient="-sin(a) * da", flops=20,
       accuracy=_error(3, ((-400, 400),)), onnx=_onnx("Cos")),
    _F("tan", 1, np.tan, "tangent(a)", "trigonometric", flops=24,
       gradient="(1.0 + square(tan(a))) * da", accuracy=_error(5, ((-400, 400),)),
       onnx=_onnx("Tan")),
    _F("asin", 1, np.arcsin, "arc_sine(a)", "arc", gradient="rsqrt(1.0 - a * a) * da", flops=16,
       accuracy=_error(4, _UNIT), onnx=_onnx("Asin")),
    _F("acos", 1, np.arccos, "arc_cosine(a)", "arc", gradient="-rsqrt(1.0 - a * a) * da", flops=16,
       accuracy=_error(4, _UNIT), onnx=_onnx("Acos")),
    _F("atan", 1, np.arctan, "arc_tangent(a)", "arc", gradient="da / (1.0 + a * a)", flops=14,
       accuracy=_error(4), onnx=_onnx("Atan")),
    _F("atan2", 2, np.arctan2, "arc_tangent(a, b)", "arc", flops=20, gradient="(da * b - a * db)"
       " / where(equal(a * a + b * b, 0.0), 1.0, a * a + b * b)", accuracy=_error(4)),
    _F("sinh", 1, np.sinh, "hyperbolic_sine(a)", "hyperbolic", gradient="cosh(a) * da", flops=16,
       accuracy=_error(6, ((-90, 90),)), onnx=_onnx("Sinh")),
    _F("cosh", 1, np.cosh, "hyperbolic_cosine(a)", "hyperbolic", gradient="sinh(a) * da", flops=16,
       accuracy=_error(6, ((-90, 90),)), onnx=_onnx("Cosh")),
    _F("tanh", 1, np.tanh, "hyperbolic_tangent(a)", "tanh", gradient="(1.0 - square(tanh(a))) * da",
       by_result="(1.0 - square(a)) * da", flops=12, accuracy=_error(8), layer="Tanh",
       onnx=_onnx("Tanh")),
    _F("asinh", 1, np.arcsinh, "inverse_hyperbolic_sine(a)", "inverse_hyperbolic",
       gradient="rsqrt(a * a + 1.0) * da", flops=24, accuracy=_error(4), onnx=_onnx("Asinh")),
    _F("acosh", 1, np.arccosh, "inverse_hyperbolic_cosine(a)", "inverse_hyperbolic",
       gradient="rsqrt(a * a - 1.0) * da", flops=24, accuracy=_error(4, ((1, 20),)),
       onnx=_onnx("Acosh")),
    _F("atanh", 1, np.arctanh, "inverse_hyperbolic_tangent(a)", "inverse_hyperbolic",
       gradient="da / (1.0 - a * a)", flops=20, accuracy=_error(4, _UNIT), onnx=_onnx("Atanh")),
    _F("erf", 1, arrays.erf, "error_function(a)", "erf",
       gradient="1.1283791670955126 * exp(-(a * a)) * da", flops=20, accuracy=_error(3, ((-5, 5),)),
       onnx=_onnx("Erf")),
    _F("normal_cdf", 1, arrays.normal_cdf, "normal_cdf(a)", "normal",
       gradient="0.3989422804014327 * exp(-0.5 * a * a) * da", flops=14,
       accuracy=_error(4, least=1), onnx_formula="0.5 * (1.0 + erf(0.7071067811865476 * a))"),
    _F("sigmoid", 1, arrays.sigmoid, "sigmoid(a)", "sigmoid",
       gradient="sigmoid(a) * sigmoid(-a) * da", by_result="a * (1.0 - a) * da", flops=8,
       accuracy=_error(200), layer="Sigmoid", onnx=_onnx("Sigmoid")),
)
_LOGIC = (
    _compare("equal", np.equal, "==",
             onnx=_onnx("Equal", legacy_broadcast=True)),
    _compare("not_equal", np.not_equal, "!=",
             onnx_formula="logical_not(equal(a, b))"),
    _compare("less", np.less, "<", onnx=_onnx("Less", legacy_broadcast=True)),
    _compare("less_equal", np.less_equal, "<=", onnx=_onnx("LessOrEqual")),
    _compare("greater", np.greater, ">",
             onnx=_onnx("Greater", legacy_broadcast=True)),
    _compare("greater_equal", np.greater_equal, ">=",
             onnx=_onnx("GreaterOrEqual")),
    _F("logical_and", 2, np.logical_and, {"bool": "a && b"},
       onnx=_onnx("And", legacy_broadcast=True)),
    _F("logical_or", 2, np.logical_or, {"bool": "a || b"}, onnx=_onnx("Or", legacy_broadcast=True)),
    _F("logical_xor", 2, np.logical_xor, {"bool": "a != b"},
       onnx=_onnx("Xor", legacy_broadcast=True)),
    _F("logical_not", 1, np.logical_not, {"bool": "!a"}, onnx=_onnx("Not")),
    _F("bitwise_and", 2, np.bitwise_and, {"int": "a & b"}, interval=interval.bits,
       onnx=_onnx("BitwiseAnd")),
    _F("bitwise_or", 2, np.bitwise_or, {"int": "a | b"}, interval=interval.bits,
       onnx=_onnx("BitwiseOr")),
    _F("bitwise_xor", 2, np.bitwise_xor, {"int": "a ^ b"}, interval=interval.bits,
       onnx=_onnx("BitwiseXor")),
    _F("bitwise_not", 1, np.bitwise_not, {"int": "~a"}, interval=corners(operator.invert),
       onnx=_onnx("BitwiseNot")),
    _F("left_shift", 2, np.left_shift, {"int": "left_shift(a, b)"}, "integer",
       interval=interval.left_shift),
    _F("right_shift", 2, np.right_shift, {"int": "right_shift(a, b)"}, "integer",
       interval=interval.right_shift),
    _F("isnan", 1, np.isnan, "is_nan(a)", "compare", gives="bool", accuracy=_error(0),
       onnx=_onnx("IsNaN")),
    _F("isinf", 1, np.isinf, "is_infinite(a)", "compare", gives="bool", accuracy=_error(0),
       onnx=_onnx("IsInf")),
    _F("isfinite", 1, np.isfinite, "is_finite(a)", "compare", gives="bool", accuracy=_error(0),
       onnx_formula="logical_not(logical_or(isnan(a), isinf(a)))"),
    _F("where", 3, np.where, _all("a ? b : c"), condition=True, gradient="where(a, db, dc)",
       interval=interval.choice, onnx=_onnx("Where")),
    _cast("cast_float32", {"float": "a", "int": "float(a)", "bool": "float(a)"}),
    _cast("cast_float16", {"float": "to_half(a)", "int": "to_half(float(a))", "bool": "float(a)"},
          accuracy=_error(0)),
    _cast("cast_int32", {"float": "to_int(a)", "int": "a", "bool": _BIT}),
    _cast("cast_int8", {"float": "to_int8(a)", "int": "a", "bool": _BIT}, accuracy=_error(0)),
    _cast("cast_uint8", {"float": "to_uint8(a)", "int": "a", "bool": _BIT}, accuracy=_error(0)),
     # the host's
    _cast("cast_int64", {"float": "to_int(a)", "int": "a", "bool": _BIT}, accuracy=None),
     # the host's
    _cast("cast_float64", {"float": "a", "int": "float(a)", "bool": "float(a)"}, accuracy=None),
    _cast("cast_bool", {"float": "not_zero(a)", "int": "a != 0", "bool": "a"}, accuracy=_error(0)),
)
_ACTIVATIONS = (
    _F("relu", 1, arrays.relu, "greater(a, 0.0)", "extremes", gradient="where(a <= 0.0, 0.0, da)",
       by_result="where(a <= 0.0, 0.0, da)", interval=corners(lambda x: max(x, 0)), layer="ReLU",
       onnx=_onnx("Relu")),
    _F("leaky_relu", 2, lambda x, slope: np.where(x > 0, x, slope * x), "a > 0.0 ? a : b * a",
       gradient="where(a > 0.0, da, b * da + a * db)", by_result="where(a > 0.0, da, b * da)",
       accuracy=_error(1, _SLOPE), layer="LeakyReLU", onnx=_onnx("LeakyRelu", alpha=0.01),
       onnx_formula="where(a > 0.0, a, b * a)"),
    _F("relu6", 1, body="clip(a, 0.0, 6.0)",
       gradient="where(logical_or(a <= 0.0, a >= 6.0), 0.0, da)",
       by_result="where(logical_or(a <= 0.0, a >= 6.0), 0.0, da)", layer="ReLU6"),
    _F("hardtanh", 3, body="clip(a, b, c)",
       gradient="where(maximum(a, b) >= c, dc, where(a <= b, db, da))",
       accuracy=_error(domain=((-20, 20), (-20, 20), (-5, 20))), layer="Hardtanh"),
    _F("thresholded_relu", 2, body="where(a <= b, 0.0, a)", accuracy=_error(domain=_SLOPE),
       onnx=_onnx("ThresholdedRelu", "where(a > b, a, 0.0)", alpha=1.0)),
    _F("elu", 2, body="where(a > 0.0, a, b * expm1(a))",
       by_result="where(a > 0.0, da, (a + b) * da)", accuracy=_error(4, _SLOPE), layer="ELU",
       onnx=_onnx("Elu", alpha=1.0)),
    _F("celu", 2, body="where(a > 0.0, a, b * expm1(a / b))",
       accuracy=_error(20, _SLOPE, least=0.1, bounded=True), layer="CELU",
       onnx=_onnx("Celu", alpha=1.0)),
    _F("selu", 1, body="1.0507009873554805 * elu(a, 1.6732632423543772)", accuracy=_error(4),
       layer="SELU",
       onnx=_onnx("Selu", "b * where(a > 0.0, a, c * expm1(a))", gamma=1.0507009873554805,
                  alpha=1.6732632423543772)),
    _F("gelu", 1, body="a * normal_cdf(a)", accuracy=_error(4, least=2)),
    _F("gelu_tanh", 1,
       body="0.5 * a * (1.0 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))",
       accuracy=_error(8, least=1, bounded=True)),
    _F("silu", 1, body="a * sigmoid(a)",
       accuracy=_error(10, ((-40, 40),), least=0.001, bounded=True), layer="SiLU",
       onnx=_onnx("Swish", "a * sigmoid(a * b)", alpha=1.0)),
    _F("mish", 1, body="a * tanh(softplus(a, 1.0, 20.0))",
       accuracy=_error(10, ((-40, 40),), least=0.1, bounded=True), layer="Mish",
       onnx=_onnx("Mish")),
    _F("softplus", 3, body="where(a * b > c, a, log1p(exp(a * b)) / b)",
       gradient="where(a * b > c, da, sigmoid(a * b) * da"
       " + (sigmoid(a * b) * a - log1p(exp(a * b)) / b) / b * db)",
       accuracy=_error(12, ((-20, 20), (0.5, 2), (20, 30)), least=0.1, bounded=True),
       layer="Softplus", onnx=_onnx("Softplus", "softplus(a, 1.0, 20.0)")),
    _F("softsign", 1, body="a / (1.0 + abs(a))", gradient="da / square(1.0 + abs(a))",
       accuracy=_error(4, bounded=True), layer="Softsign", onnx=_onnx("Softsign")),
    _F("log_sigmoid", 1, body="minimum(a, 0.0) - log1p(exp(-abs(a)))", gradient="sigmoid(-a) * da",
       accuracy=_error(6, ((-80, 80),), bounded=True), layer="LogSigmoid",
       onnx_formula="-softplus(-a, 1.0, 20.0)"),
    _F("hardsigmoid", 3, body="clip(b * a + c, 0.0, 1.0)",
       gradient="where(b * a + c <= 0.0, 0.0, where(b * a + c >= 1.0, 0.0, b * da + a * db + dc))",
       accuracy=_error(4, ((-20, 20), (0.1, 0.3), (0.3, 0.6)), least=2, bounded=True),
       onnx=_onnx("HardSigmoid", alpha=0.2, beta=0.5)),
    _F("hardswish", 1, body="a * hardsigmoid(a, 0.16666666666666666, 0.5)",
       gradient="where(a <= -3.0, 0.0, where(a >= 3.0, da, (0.3333333333333333 * a + 0.5) * da))",
       accuracy=_error(6, least=3, bounded=True), layer="Hardswish", onnx=_onnx("HardSwish")),
    _F("tanhshrink", 1, body="a - tanh(a)", accuracy=_error(6, least=1, bounded=True),
       layer="Tanhshrink"),
    _F("hardshrink", 2, body="where(abs(a) <= b, 0.0, a)", accuracy=_error(domain=_SLOPE),
       layer="Hardshrink"),
    _F("softshrink", 2, body="a - clip(a, -b, b)", accuracy=_error(1, _SLOPE, bounded=True),
       layer="Softshrink"),
)
_RANDOM = (
    _F("threefry_uniform", 4, threefry.uniform, {"int": "threefry_uniform(a, b, c, d)"}, "threefry",
       gives="float32", flops=110, accuracy=None),
)
# fmt: on

_ROWS = (*_ARITHMETIC, *_TRANSCENDENTAL, *_LOGIC, *_ACTIVATIONS, *_RANDOM)


def by_name(rows: Iterable[Function]) -> dict[str, Function]:
    """Return the rows by their names. Raises ShapeError where two have the same one."""
    table: dict[str, Function] = {}
    for row in rows:
        if table.setdefault(row.name, row) is not row:
            raise ShapeError(f"two rows of functions are called {row.name}")
    return table


FUNCTIONS = by_name(_ROWS)
"""Every function by its name.

Activations take what `torch.nn`'s layers are given: leaky_relu(x, negative_slope), also PReLU;
elu and celu (x, alpha), softplus(x, beta, threshold), hardtanh(x, min_val, max_val),
hardshrink and softshrink (x, lambd), thresholded_relu(x, threshold), and hardsigmoid(x, slope,
offset), which is PyTorch's with 1 / 6 and 1 / 2. threefry_uniform(counter, counter_high, key,
key_high) is a random number of integers (`threefry.uniform`).
"""

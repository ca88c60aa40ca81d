"""Elementwise operators where the suite does not look: old versions, special numbers, types."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.onnx.single import BACKENDS, check, run

RNG = np.random.default_rng(13)
SPECIAL = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        300,
        -300,
        1e9,
        3e9,
        70000,
        1e20,
    ],
    np.float32,
)
OLD = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*shape: int, dtype: type = np.int32) -> np.ndarray:
    return RNG.integers(-9 if dtype in (np.int32, np.int8) else 1, 9, shape).astype(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("version", "shape", "axis"),
    [(1, (3,), 1), (6, (2,), -3), (6, (3, 7), None), (1, (2, 3), 0)],
)
def test_old_broadcasting(backend: str, version: int, shape: tuple[int, ...], axis) -> None:
    """Before version 7 the second operand lies along the first one's axes from one on."""
    a, b = np.abs(floats(2, 3, 7)) + 0.1, np.abs(floats(*shape)) + 0.1
    more = {"opset": version, "broadcast": 1, **({} if axis is None else {"axis": axis})}
    behind = 0 if axis is None else 3 - (axis % 3) - len(shape)
    wide = b.reshape(*shape, *(1,) * behind)
    for operator, function in OLD.items():
        check(operator, [a, b], backend, function(a, wide), tolerance=1e-4, **more)
    check("Greater", [a, b], backend, a > wide, kind=bool, **more)
    check("And", [a > 1, b > 1], backend, (a > 1) & (wide > 1), **more)
    check("Equal", [a.astype(np.int32), b.astype(np.int32)], backend,
          a.astype(np.int32) == wide.astype(np.int32), kind=bool, **more)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_numbers(backend: str) -> None:
    few = SPECIAL[~(np.abs(SPECIAL) > 400)]
    for operator in ("Abs", "Ceil", "Floor", "Round", "Sign", "Neg", "Relu", "Reciprocal", "Sqrt"):
        check(operator, [SPECIAL], backend, opset=18)
    for operator in ("Exp", "Log", "Erf", "Sigmoid", "Tanh", "ThresholdedRelu", "HardSwish", "Elu"):
        check(operator, [few], backend, opset=18, tolerance=1e-4)
    for operator in ("Add", "Mul", "Less", "Equal", "GreaterOrEqual"):
        kind = np.float32 if operator in ("Add", "Mul") else bool
        check(operator, [SPECIAL[:, None], SPECIAL[None]], backend, opset=16, kind=kind)
    ends = [np.array(-1, np.float32), np.array(2, np.float32)]
    check("Clip", [SPECIAL[1:], *ends], backend, opset=13)
    for only in ({}, {"detect_positive": 0}, {"detect_negative": 0}):
        check("IsInf", [SPECIAL], backend, kind=bool, opset=10, **only)
    check("Cast", [SPECIAL], backend, kind=np.float16, to=10, opset=19)
    check("Cast", [SPECIAL], backend, kind=bool, to=9, opset=19)


@pytest.mark.parametrize("backend", BACKENDS)
def test_integers(backend: str) -> None:
    for dtype in (np.int32, np.int8, np.uint8):
        a, b = whole(5, 1, dtype=dtype), np.abs(whole(3, dtype=dtype)) + 1
        b = b.astype(dtype)
        for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
            check(operator, [a, b], backend, opset=14)
        for remainder in (0, 1):
            check("Mod", [a, b], backend, opset=13, fmod=remainder)
        check("Clip", [a, b[:1].reshape(()), None], backend, opset=13)
        check("Clip", [a, np.array(7, dtype), np.array(3, dtype)], backend, opset=13)
        for operator, function in (("BitwiseAnd", np.bitwise_and), ("BitwiseXor", np.bitwise_xor)):
            check(operator, [a, b], backend, function(a, b), opset=18)
    check("Relu", [whole(7)], backend, opset=18)
    check("Pow", [whole(4), np.array([2, 3, 1, 0], np.float32)], backend, opset=15)
    check("Pow", [np.abs(floats(4)), whole(4)], backend, opset=15, tolerance=1e-4)
    for direction in ("LEFT", "RIGHT"):
        operands = [np.array([1, 200, 255, 7], np.uint8), np.array([1, 2, 7, 0], np.uint8)]
        check("BitShift", operands, backend, opset=11, direction=direction)


@pytest.mark.parametrize("backend", BACKENDS)
def test_powers_of_integers_by_floats(backend: str) -> None:
    """Exact, where float32's power is a unit in the last place below: 6^3 is 216, 9^0.5 is 3."""
    base = np.arange(-9, 13, dtype=np.int32).reshape(-1, 1)
    for exponent in (np.arange(0, 8, dtype=np.float32), np.array([-1, -2], np.float32)):
        rows = base if exponent.min() >= 0 else base[base[:, 0] > 1]
        check("Pow", [rows, exponent], backend, opset=15)
    squares = np.arange(0, 200, dtype=np.int32) ** 2
    check("Pow", [squares, np.array(0.5, np.float32)], backend, opset=15)
    check(
        "Pow",
        [np.arange(1, 60, dtype=np.int32) ** 3, np.array(1 / 3, np.float32)],
        backend,
        opset=15,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_casts(backend: str) -> None:
    dtypes = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 9: np.bool_, 10: np.float16}
    numbers = np.array([0, 1, 2, 100, 127, 0.4, 0.6, 3.9], np.float32)
    for given in dtypes.values():
        for code, wanted in dtypes.items():
            check("Cast", [numbers.astype(given)], backend, kind=wanted, to=code, opset=19)
    wide = np.array([300, -1, 128, -129], np.int32)
    check("Cast", [wide], backend, wide.astype(np.uint8), kind=np.uint8, to=2, opset=19)
    check("CastLike", [wide, np.zeros(1, np.int8)], backend, wide.astype(np.int8), kind=np.int8,
          opset=19)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_of_other_shapes(backend: str) -> None:
    for operator in ("Sum", "Max", "Min", "Mean"):
        check(operator, [floats(2, 1, 3), floats(7, 1), floats(3)], backend, opset=13)
        check(operator, [floats(2, 3) for _ in range(9)], backend, opset=13)
        check(operator, [floats(2, 3)], backend, opset=8)
    check("Where", [floats(3, 1) > 0, whole(4), whole(2, 1, 1)], backend, opset=16, kind=np.int32)
    flags = [floats(5) > 0, floats(5) > 1, floats(1) > 0]
    check("Where", flags, backend, np.where(*flags), opset=16)
    check("PRelu", [floats(2, 3, 7), floats(3, 1)], backend, opset=9)
    check("Clip", [floats(9)], backend, opset=6, min=-0.5, max=0.25)
    check("Clip", [floats(9)], backend, opset=6, max=0.25)
    halves = floats(7).astype(np.float16), floats(7).astype(np.float16)
    for operator in ("Add", "Mul", "Max", "Div"):
        check(operator, halves, backend, opset=13, tolerance=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slope_for_each_channel(backend: str) -> None:
    """Before version 9 a slope of one dimension is of the channels."""
    x, slope = floats(2, 3, 4, 5), floats(3)
    expected = np.where(x < 0, x * slope[:, None, None], x)
    check("PRelu", [x, slope], backend, expected, opset=6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_less_itself(backend: str) -> None:
    """Compilers make 0 of it, NaN and infinities left out of account."""
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -3.5, 1e38], np.float32)
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y, float[N] z)
        { r = Neg (x)  y = Sub (x, x)  d = Sub (r, r)  z = Sigmoid (d) }
    """)
    y, z = run(proto, {"x": x}, backend)
    np.testing.assert_array_equal(y, [np.nan, np.nan, np.nan, 0, 0, 0])
    np.testing.assert_allclose(z, [np.nan, np.nan, np.nan, 0.5, 0.5, 0.5])

"""Quantised operators of com.microsoft: bytes of weights on a device, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glnn
from glnn.errors import DeviceError, GlnnError
from glnn.graph.operators import Matmul, QuantizedMatmul, QuantizedRows
from tests import oracle
from tests.onnx.contrib_cases import Case, expected
from tests.onnx.contrib_quantized_cases import packed

F, U8 = np.float32, np.uint8
K, N, BLOCK = 512, 256, 32


def product(
    bits: int = 4,
    zero: str = "none",
    scale: Any = F,
    groups: np.ndarray | None = None,
    rows: int = 3,
    **attributes: int,
) -> Case:
    """A MatMulNBits of K x N, with its result in float64."""
    rng = np.random.default_rng(bits)
    blocks, middle = K // BLOCK, 1 << bits - 1
    weight = rng.integers(0, 1 << bits, (N, K))
    scales = rng.uniform(0.01, 0.02, (N, blocks)).astype(scale)
    points, given = np.full((N, blocks), middle, np.float64), None
    if zero == "bits":
        points = rng.integers(0, 1 << bits, (N, blocks))
        given = packed(points, bits)
    elif zero == "floats":
        given = points = rng.uniform(0, 1 << bits, (N, blocks)).astype(scale)
    x = rng.standard_normal((rows, K)).astype(scale)
    index = np.arange(K) // BLOCK if groups is None else groups
    numbers = (weight - points[:, index].astype(np.float64)) * scales[:, index].astype(np.float64)
    operands = [x, packed(weight, bits).reshape(N, blocks, -1), scales, given, groups]
    while operands[-1] is None:
        operands.pop()
    return Case(
        "MatMulNBits",
        operands,
        {"K": K, "N": N, "bits": bits, "block_size": BLOCK, **attributes},
        (scale,),
        [i for i, one in enumerate(operands) if i and one is not None],
        [x.astype(np.float64) @ numbers.T],
    )


def session_of(case: Case, backend: str, **options: Any) -> glnn.InferenceSession:
    try:
        return glnn.InferenceSession(case.model().SerializeToString(), backend, **options)
    except DeviceError as error:
        pytest.skip(str(error))


def steps_of(session: glnn.InferenceSession, case: Case) -> Any:
    return session.plan({name: x.shape for name, x in case.feeds().items()}).steps


def check(case: Case, backend: str, *kinds: type) -> int:
    """Hold the result against float64, and the steps with weights against `kinds`; return the bytes
    of the weights on the device.
    """
    session = session_of(case, backend)
    (found,) = session.run(None, case.feeds())
    assert case.expected is not None
    assert oracle.error(found, case.expected[0]) <= (1e-5 if found.dtype == F else 1e-3)
    assert not session.hosted
    steps = steps_of(session, case)
    of_weights = (Matmul, QuantizedMatmul, QuantizedRows)
    assert {type(one.op) for one in steps if isinstance(one.op, of_weights)} == set(kinds)
    return sum(one.nbytes[1] + one.fixed_copies for one in steps)


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("zero", "scale"), [("none", F), ("bits", F), ("bits", np.float16)])
def test_weights_keep_their_bits(backend: str, bits: int, zero: str, scale: Any) -> None:
    taken = check(product(bits, zero, scale), backend, QuantizedMatmul)
    scales = K // BLOCK * N
    least = K * N * bits // 8 + scales * np.dtype(scale).itemsize + scales * (zero == "bits")
    assert least <= taken <= least + (0 if backend == "compute" else 32 << 10)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_that_are_floats_are_a_small_product(bits: int) -> None:
    taken = check(product(bits, "floats"), "compute", QuantizedMatmul, Matmul)
    scales = K // BLOCK * N * 4
    assert taken == K * N * bits // 8 + 2 * scales


def test_columns_in_another_order_are_put_in_order() -> None:
    """As long as whole blocks share a scale."""
    groups = np.random.default_rng(0).permutation(np.arange(K) // BLOCK).astype(np.int32)
    taken = check(product(4, "bits", groups=groups), "compute", QuantizedMatmul)
    assert taken < K * N


def test_columns_of_other_counts_are_floats() -> None:
    groups = np.random.default_rng(0).integers(0, K // BLOCK, K).astype(np.int32)
    assert check(product(4, "bits", groups=groups), "compute", Matmul) >= 4 * K * N


def test_plans_share_a_weight(caplog: pytest.LogCaptureFixture) -> None:
    """It is packed and uploaded once, though each range of sizes has a plan."""
    case = product()
    model = case.model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    try:
        session = glnn.InferenceSession(model.SerializeToString(), "compute")
    except DeviceError as error:
        pytest.skip(str(error))
    assert case.expected is not None
    with caplog.at_level("DEBUG", "glnn.compiler.weights"):
        for rows in (1, 2, 3, 40):
            x = np.resize(case.operands[0], (rows, K))
            (found,) = session.run(None, {"x0": x})
            assert oracle.error(found, np.resize(case.expected[0], (rows, N))) <= 1e-5
    assert sum("uploaded" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("shape", [(100, 128), (100, 2, 64)])
def test_tables_keep_their_bits(backend: str, bits: int, shape: tuple[int, ...]) -> None:
    """Also of more dimensions, where rows have whole blocks; 0 where an index is out of range."""
    rng = np.random.default_rng(bits)
    values = rng.integers(0, 1 << bits, shape)
    of_scales = (*shape[:-1], shape[-1] // BLOCK)
    scales = rng.uniform(0.01, 0.02, of_scales).astype(F)
    index = np.array([[0, 99, -1, -100], [100, -101, 5, 1 << 20]], np.int64)
    table = (values - (1 << bits - 1)) * np.repeat(scales.astype(np.float64), BLOCK, -1)
    inside = (index >= -100) & (index < 100)
    wanted = np.where(
        inside.reshape(2, 4, *(1,) * (len(shape) - 1)), table[np.where(inside, index, 0)], 0.0
    )
    case = Case(
        "GatherBlockQuantized",
        [packed(values, bits), index, scales],
        {"bits": bits, "block_size": BLOCK, "quantize_axis": -1},
        known=(0, 2),
        expected=[wanted],
    )
    taken = check(case, backend, QuantizedRows)
    least = values.size * bits // 8 + scales.size * 4
    assert least <= taken <= least + (0 if backend == "compute" else 32 << 10)


@pytest.mark.parametrize(
    ("scaled", "zero", "dtype"), [(1, 0, F), (0, 1, U8), (1, 1, U8), (0, 0, F)]
)
def test_a_zero_point_makes_integers_of_qgemm(scaled: int, zero: int, dtype: Any) -> None:
    """Also where ranks are open, as types of results are said without the operands' sizes then."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, shape).astype(U8) for shape in ((4, 7), (7, 5)))
    operands = [a, ONE, ZERO, b, np.array(0.1, F), np.array(100, U8), None]
    operands += [np.array(30, F) if scaled else None, np.array(9, U8) if zero else None]
    case = Case("QGemm", operands, results=(dtype,))
    model = case.model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    (found,) = glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, case.feeds())
    assert found.dtype == dtype
    np.testing.assert_allclose(found, case.runtime()[0], 1e-6)


def test_halves_are_divided_as_float32() -> None:
    """By ONNX's operator quotients are rounded to halves before they are rounded to integers."""
    x = (100 * np.random.default_rng(0).standard_normal(400)).astype(np.float16)
    scale, zero = np.array(0.7, np.float16), np.array(128, U8)
    case = Case("QuantizeLinear", [x, scale, zero], results=(U8,))
    (found,) = session_of(case, "cpu").run(None, case.feeds())
    np.testing.assert_array_equal(found, case.runtime()[0])
    wide = x.astype(np.float64) / np.float64(scale)
    np.testing.assert_array_equal(found, np.clip(np.rint(wide) + 128, 0, 255))
    assert (np.rint(wide) != np.rint(x / scale)).any()


def test_known_places_outside_a_table_are_0_too() -> None:
    table = np.random.default_rng(4).integers(0, 256, (6, 16)).astype(U8)
    index = np.array([5, 6, -6, -7, 1 << 40], np.int64)
    operands = [table, index, np.full((6, 1), 0.5, F)]
    attributes = {"bits": 8, "block_size": 16}
    case = Case("GatherBlockQuantized", operands, attributes, known=(0, 1, 2))
    rows = (table[[5, 0, 0, 0, 0]].astype(F) - 128) / 2
    rows[[1, 3, 4]] = 0
    for backend in ("cpu", "compute"):
        (found,) = session_of(case, backend).run(None, {})
        np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearSigmoid", "QLinearLeakyRelu"])
def test_zero_points_that_are_left_out_are_0(op: str, dtype: Any) -> None:
    x = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    zero, scale = np.zeros((), dtype), np.array(1 / 32, F)
    operands: list[Any] = [x, scale, zero]
    operands += [x[::-1].copy(), scale, zero] if op == "QLinearAdd" else []
    whole = Case(op, [*operands, scale, zero], results=(dtype,), in_halves=False)
    (wanted,) = expected(whole)
    fewer = [None if one is zero else one for one in whole.operands[:-1]]
    case = Case(op, fewer, results=(dtype,))
    (found,) = session_of(case, "cpu").run(None, case.feeds())
    np.testing.assert_array_equal(found, wanted)


TIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "sum": ("QLinearAdd", 2, {}),
    "product": ("QLinearMul", 2, {}),
    "slope": ("QLinearLeakyRelu", 1, {"alpha": 0.5}),
    "part": ("QLinearConcat", 1, {"axis": 0}),
    "window": ("QLinearAveragePool", 1, {"kernel_shape": [1, 2]}),
    "window, channels last": (
        "QLinearAveragePool",
        1,
        {"kernel_shape": [1, 2], "channels_last": 1},
    ),
    "image": ("QLinearGlobalAveragePool", 1, {}),
    "image, channels last": ("QLinearGlobalAveragePool", 1, {"channels_last": 1}),
    "image as a window": ("QLinearAveragePool", 1, {"kernel_shape": [2, 2], "strides": [2, 2]}),
}
"""Operators by name, with the number of tensors that they read, and attributes."""


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("name", TIES)
def test_numbers_between_two_integers_are_rounded_as_by_onnx_runtime(name: str, dtype: Any) -> None:
    """To the even one, some before the odd zero point is added, some behind that."""
    (op, count, attributes), ends, rng = TIES[name], np.iinfo(dtype), np.random.default_rng(2)
    zero, whole, half = np.array(3, dtype), np.array(0.5, F), np.array(0.25, F)
    operands: list[Any] = []
    for _ in range(count):
        x = rng.integers(ends.min, ends.max + 1, (40, 2, 2, 2)).astype(dtype)
        operands += [x, half, zero]
    to = [half if "Average" in op else whole, zero]
    operands = [*to, *operands] if op == "QLinearConcat" else [*operands, *to]
    case = Case(op, operands, attributes, (dtype,), in_halves=False)
    (found,) = session_of(case, "cpu").run(None, case.feeds())
    np.testing.assert_array_equal(found, case.runtime()[0])


BYTES = np.zeros((4, 4), U8)
ZERO, ONE = np.array(0, U8), np.array(0.5, F)
FLOATS, INTEGERS = np.ones((2, 4), F), np.ones((2, 4), np.int32)
IMAGE = np.zeros((1, 2, 4, 4), U8)
FILTERS = np.zeros((3, 2, 1, 1), U8)


def conv(bias: np.ndarray, scale: np.ndarray = ONE) -> Case:
    """Return a QLinearConv of three filters."""
    operands = [IMAGE, ONE, ZERO, FILTERS, scale, ZERO, ONE, ZERO, bias]
    return Case("QLinearConv", operands, results=(U8,))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (product(block_size=24), "block_size must be a power of two from 16 on, got 24"),
        (product(block_size=8), "block_size must be a power of two from 16 on, got 8"),
        (product(bits=4, N=255), r"B must be \(255, 256\), got uint8 \(256, 16, 16\)"),
        (product(bits=4, K=500), r"A must be \(\.\.\., 500\), got float32 \(3, 512\)"),
        (product(weight_prepacked=1), "packed for another device"),
        (
            Case("QLinearAdd", [BYTES, np.ones(3, F), None, BYTES, ONE, None, ONE], {}, (U8,)),
            r"scales and zero points are one number, got float32 \(3,\)",
        ),
        (
            Case("QLinearConcat", [ONE, ZERO, BYTES, ONE], {"axis": 0}, (U8,)),
            "tensors with scales and zero points, got 2",
        ),
        (
            Case("QGemm", [BYTES[0], ONE, ZERO, BYTES, ONE, ZERO]),
            r"factors must be matrices, got uint8 \(4,\)",
        ),
        (
            Case("QGemm", [BYTES, ONE, ZERO, BYTES, ONE, ZERO, np.ones((2, 4, 4), np.int32)]),
            r"C int32 \(2, 4, 4\) does not broadcast to int32 \(4, 4\)",
        ),
        (
            Case("MatMulIntegerToFloat", [BYTES, BYTES, ONE, ONE, None, None, FLOATS]),
            r"the bias must be \(4,\), got float32 \(2, 4\)",
        ),
        (
            Case("DynamicQuantizeMatMul", [FLOATS, BYTES, ONE, None, FLOATS]),
            r"the bias must be \(4,\), got float32 \(2, 4\)",
        ),
        (conv(INTEGERS[0, :1]), r"the bias must be \(3,\), got int32 \(1,\)"),
        (
            conv(INTEGERS[0, :3], FLOATS[0]),
            r"of uint8 \(3, 2, 1, 1\) are one number or \(3,\), got float32 \(4,\)",
        ),
        (
            Case(
                "MatMulBnb4",
                [FLOATS, np.zeros(8, U8), FLOATS[0]],
                {"N": 4, "K": 4, "block_size": 4, "quant_type": 0},
            ),
            "block_size must be a power of two from 16 on, got 4",
        ),
        (
            Case(
                "GatherBlockQuantized",
                [BYTES, np.zeros(2, np.int64), np.ones((4, 2), F)],
                {"bits": 8, "block_size": 16},
                known=(0, 2),
            ),
            r"scales of \(4, 4\) must be \(4, 1\), got \(4, 2\)",
        ),
    ],
)
def test_refused(case: Case, message: str) -> None:
    with pytest.raises(GlnnError, match=message):
        glnn.InferenceSession(case.model().SerializeToString(), "cpu").run(None, case.feeds())

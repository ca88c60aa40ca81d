"""NumPy's convolution against sums written out; expressions block by block against the whole."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph import expression_evaluation as blockwise
from glnn.graph.epilogue import Epilogue, Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.expression_evaluation import blocks, evaluate_blockwise
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operators import Conv2d, conv2d, depthwise
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.reference import Preparation

CASES = {
    "one pixel": ((2, 3, 5, 7), (4, 3, 1, 1), {}),
    "one pixel, grouped": ((3, 6, 1, 5), (4, 3, 1, 1), {"groups": 2}),
    "one pixel, strided": ((1, 3, 7, 5), (2, 3, 1, 1), {"stride": (2, 3)}),
    "one pixel, padded": ((1, 3, 2, 3), (2, 3, 1, 1), {"padding": (1, 0, 2, 1)}),
    "three by three": ((2, 3, 7, 5), (5, 3, 3, 3), {"padding": (1, 1, 1, 1)}),
    "uneven": ((1, 2, 9, 8), (3, 2, 3, 2), {"stride": (2, 1), "padding": (0, 2, 1, 0)}),
    "dilated": ((2, 3, 11, 9), (2, 3, 3, 3), {"dilation": (3, 2), "padding": (3, 0, 1, 2)}),
    "depthwise": ((2, 7, 6, 5), (7, 1, 3, 3), {"groups": 7, "padding": (1, 1, 1, 1)}),
    "depthwise, narrow": (
        (2, 16, 9, 7),
        (16, 1, 3, 5),
        {"groups": 16, "padding": (2, 1, 0, 3), "dilation": (2, 1)},
    ),
    "depthwise, narrow, strided": (
        (2, 17, 11, 8),
        (17, 1, 5, 3),
        {"groups": 17, "stride": (3, 2), "padding": (1, 2, 4, 1), "dilation": (1, 2)},
    ),
    "depthwise, far apart": (
        (1, 16, 5, 3),
        (16, 1, 2, 3),
        {"groups": 16, "dilation": (200, 1), "padding": (150, 1, 60, 2)},
    ),
    "depthwise, one row": ((1, 19, 1, 13), (19, 1, 1, 3), {"groups": 19, "padding": (0, 1, 0, 1)}),
    "depthwise, wide": (
        (1, 5, 17, 40),
        (5, 1, 3, 5),
        {"groups": 5, "stride": (1, 2), "padding": (1, 2, 0, 3)},
    ),
    "depthwise, wide, strided": (
        (2, 3, 29, 37),
        (3, 1, 5, 3),
        {"groups": 3, "stride": (2, 1), "padding": (2, 1, 2, 1), "dilation": (3, 2)},
    ),
    "depthwise, rows": (
        (2, 5, 3, 70),
        (5, 1, 1, 9),
        {"groups": 5, "stride": (2, 1), "padding": (1, 8, 2, 3), "dilation": (1, 5)},
    ),
    "depthwise, in the padding": (
        (1, 16, 2, 3),
        (16, 1, 2, 2),
        {"groups": 16, "stride": (5, 4), "padding": (9, 7, 8, 11)},
    ),
    "two for each": ((1, 3, 6, 5), (6, 1, 5, 3), {"groups": 3, "padding": (2, 1, 2, 1)}),
    "grouped": ((3, 4, 5, 6), (6, 2, 2, 3), {"groups": 2, "stride": (2, 2)}),
    "far apart": ((1, 2, 3, 3), (2, 2, 2, 2), {"stride": (50, 70), "padding": (60, 40, 55, 90)}),
    "no samples": ((0, 2, 5, 5), (3, 2, 3, 3), {}),
    "no channels": ((2, 0, 4, 4), (3, 0, 3, 3), {}),
    "no results": ((1, 2, 4, 4), (0, 2, 3, 3), {}),
}


def summed(x: Array, weight: Array, op: Conv2d) -> Array:
    """The convolution, number by number."""
    top, left, bottom, right = op.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, o, (share, kh, kw) = len(x), len(weight), weight.shape[1:]
    oh = (x.shape[2] - op.dilation[0] * (kh - 1) - 1) // op.stride[0] + 1
    ow = (x.shape[3] - op.dilation[1] * (kw - 1) - 1) // op.stride[1] + 1
    found = np.zeros((n, o, oh, ow))
    for to, y, z in product(range(o), range(oh), range(ow)):
        first = to // (o // op.groups) * share
        top, left = y * op.stride[0], z * op.stride[1]
        down = slice(top, top + (kh - 1) * op.dilation[0] + 1, op.dilation[0])
        across = slice(left, left + (kw - 1) * op.dilation[1] + 1, op.dilation[1])
        met = x[:, first : first + share, down, across]
        found[:, to, y, z] = (met * weight[to]).sum(axis=(1, 2, 3))
    return found


def channels_last(x: Array) -> Array:
    """The images with their channels innermost in memory."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("bytes_of_block", [1, 700, 5000, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_the_sums_whatever_its_blocks_are(
    name: str, bytes_of_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv2d, "BLOCK_BYTES", bytes_of_block)
    monkeypatch.setattr(conv2d, "LEAST_COLUMNS", 1 if bytes_of_block < 1 << 20 else 512)
    monkeypatch.setattr(depthwise, "BLOCK_BYTES", bytes_of_block)
    monkeypatch.setattr(conv2d, "FEW", 0)
    given, weights, more = CASES[name]
    rng = np.random.default_rng(7)
    x, weight, op = rng.normal(size=given), rng.normal(size=weights), Conv2d(**more)
    expected = summed(x, weight, op)
    found = op.compute({"x": x, "weight": weight})
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    turned = np.ascontiguousarray(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
    np.testing.assert_array_equal(op.compute({"x": turned, "weight": weight}), found)
    last = op.compute({"x": channels_last(x), "weight": weight})
    np.testing.assert_allclose(last, expected, rtol=1e-12, atol=1e-12)
    narrow = op.compute({"x": x.astype(np.float32), "weight": weight.astype(np.float32)})
    assert narrow.dtype == np.float32 and not np.shares_memory(narrow, x)
    np.testing.assert_allclose(narrow, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("depthwise")])
def test_depthwise_products_are_the_sums_whichever_way_is_faster(
    name: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depthwise, "small_products_are_fast", lambda: False)
    monkeypatch.setattr(depthwise, "_channels_last_is_faster", lambda *_: last)
    given, weights, more = CASES[name]
    rng = np.random.default_rng(8)
    x, weight, op = rng.normal(size=given), rng.normal(size=weights), Conv2d(**more)
    if not depthwise.is_supported(given, weights, op.stride, op.dilation, op.groups):
        pytest.skip("computed as other convolutions are")
    expected = summed(x, weight, op)
    geometry = op.stride, op.padding, op.dilation
    products = depthwise.DepthwiseProducts(given, weights, expected.shape[2:], *geometry)
    for images in (x, channels_last(x)):
        found = products(images, weight)
        assert found is not None
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    x[0, 0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        infinite = products(x, weight)
    assert infinite is None or np.isfinite(summed(x, weight, op)).all()


def test_small_products_are_fast_where_openblas_has_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = depthwise.small_products_are_fast
    for core, fast in {"Haswell": False, "SkylakeX": True, "NEOVERSEN1": False}.items():
        monkeypatch.setenv("OPENBLAS_CORETYPE", core)
        cached.cache_clear()
        assert cached() is fast
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    for found in (["X86_V3"], ["X86_V3", "X86_V4"], ["AVX512F"], ["NEON", "ASIMD"], None):
        known = {} if found is None else {"SIMD Extensions": {"found": found}}
        monkeypatch.setattr(depthwise.np, "show_config", lambda mode, known=known: known)
        cached.cache_clear()
        assert cached() is bool(found and {"X86_V4", "AVX512F"} & set(found))
    monkeypatch.undo()
    cached.cache_clear()


def test_few_pixels_of_many_channels_are_summed_channels_last() -> None:
    """And many pixels multiplied by bands: either is several times slower for the other's."""
    few = depthwise.DepthwiseWindow((7, 7), (5, 5), (7, 7), (1, 1), (2, 2, 2, 2), (1, 1))
    many = depthwise.DepthwiseWindow((112, 112), (3, 3), (112, 112), (1, 1), (1, 1, 1, 1), (1, 1))
    assert depthwise._channels_last_is_faster(576, few)
    assert not depthwise._channels_last_is_faster(32, many)


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (97,), (3, 1, 41), (2, 0, 5), (1, 7, 13, 3)])
def test_blocks_are_every_number_once(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 16)
    rng = np.random.default_rng(3)
    x, row = rng.normal(size=shape), rng.normal(size=shape[-1:])
    column = rng.normal(size=(*shape[:-1], 1)) if shape else rng.normal(size=())
    expr = call("add", call("mul", Arg(0), Arg(1)), call("exp", Arg(2)))
    found = evaluate_blockwise(expr, (x, row, column), shape, x.dtype)
    np.testing.assert_allclose(found, x * row + np.exp(column), rtol=1e-14)
    if x.size > 16:
        seen = np.zeros(shape, int)
        for place in blocks(shape):
            seen[place] += 1
        assert (seen == 1).all()
    given = x.copy()
    assert evaluate_blockwise(expr, (given, row, column), shape, x.dtype, given) is given
    np.testing.assert_array_equal(given, found)


@pytest.mark.parametrize("size", [1, 16, 700, 1 << 16])
@pytest.mark.parametrize("shape", [(2, 5, 7, 13), (1, 3, 64, 64), (1, 600, 3, 5), (3, 1, 11, 2)])
def test_channels_that_are_innermost_stay_so(
    shape: tuple[int, ...], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside numbers of channels, of images, and images that lie otherwise."""
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", size)
    rng = np.random.default_rng(4)
    x, other = channels_last(rng.normal(size=shape)), rng.normal(size=shape)
    channel, image = (
        rng.normal(size=shape[1:2])[:, None, None],
        rng.normal(size=(shape[0], 1, 1, 1)),
    )
    sums = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
    found = evaluate_blockwise(sums, (x, channel, image), shape, x.dtype)
    np.testing.assert_array_equal(found, x * channel + image)
    assert found.strides == x.strides
    mixed = evaluate_blockwise(sums, (x, channel, other), shape, x.dtype)
    np.testing.assert_array_equal(mixed, x * channel + other)
    relu = call("relu", call("add", Arg(0), Arg(1)))
    expected = np.maximum(x + channel, 0)
    assert evaluate_blockwise(relu, (x, channel), shape, x.dtype, x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("name", [name for name, one in FUNCTIONS.items() if one.numpy])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.bool_])
def test_each_function_into_blocks_is_the_function(
    name: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, so that its result is an operand in scratch memory and a result."""
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 16)
    row, rng = FUNCTIONS[name], np.random.default_rng(6)
    arrays = [rng.uniform(-3, 3, (3, 41)).astype(dtype) for _ in range(max(row.arity, 1))]
    arguments = [Arg(i) for i in range(row.arity)]
    try:
        once = call(name, *arguments)
        once.infer([DType.from_array(array) for array in arrays])
        twice = call(name, *[once] * row.arity)
        twice.infer([DType.from_array(array) for array in arrays])
    except ShapeError:  # it takes no such numbers, or not its own
        return
    for expr in (once, twice):
        expected = expr.evaluate(*arrays)
        found = evaluate_blockwise(expr, arrays, (3, 41), expected.dtype)
        np.testing.assert_array_equal(found, np.broadcast_to(expected, (3, 41)))


@pytest.mark.parametrize("low", [-np.inf, -1.0, np.nan])
@pytest.mark.parametrize("high", [np.inf, 0.5, np.nan, -2.0])
def test_clips_are_the_greater_and_the_smaller_number(low: float, high: float) -> None:
    x = np.array([-3.0, -1.0, -0.0, 0.0, 0.4, 7.0, np.nan, np.inf, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        for inner in ((Arg(0), low), (low, Arg(0))):
            expr = call("minimum", call("maximum", *inner), high)
            expected = np.minimum(np.maximum(x, np.float32(low)), np.float32(high))
            found = evaluate_blockwise(expr, (x,), x.shape, x.dtype)
            np.testing.assert_array_equal(found, expected)


def test_an_epilogue_takes_the_place_of_no_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK_SIZE", 16)
    rng = np.random.default_rng(5)
    x, weight, bias = (rng.normal(size=s) for s in ((2, 3, 5, 4), (4, 3, 3, 3), (4,)))
    operands = {"x": x, "weight": weight, "e1": bias}
    epilogue = Epilogue(call("relu", call("add", Arg(0), Arg(1))), ("channel",))
    op = Conv2d(padding=(1, 1, 1, 1))
    spec = OpSpec.create(op, {k: v.shape for k, v in operands.items()}, {}, epilogue)
    before = {name: array.copy() for name, array in operands.items()}
    found = spec.compute(operands)
    expected = np.maximum(summed(x, weight, op) + bias[:, None, None], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    for name, array in operands.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("shape", [(1, 20, 9, 7), (1, 20, 30, 40), (1, 20, 1, 300)])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_stays_within_its_windows(
    shape: tuple[int, ...], number: float
) -> None:
    """Products by bands would spread it by their zeros, over rows, columns or tiles."""
    rng = np.random.default_rng(8)
    x, weight = rng.normal(size=shape), rng.normal(size=(shape[1], 1, 1 + 2 * (shape[2] > 1), 3))
    x[0, 3, shape[2] // 2, 4] = number
    op = Conv2d(padding=(weight.shape[2] // 2, 1, weight.shape[2] // 2, 1), groups=shape[1])
    with np.errstate(invalid="ignore"):
        found, expected = op.compute({"x": x, "weight": weight}), summed(x, weight, op)
    assert np.isfinite(expected).sum() > expected.size - 10
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 5, 31, 29), (2, 5, 31, 29), (1, 5, 2, 3)])
def test_a_bias_is_added_before_the_rest_of_an_epilogue(shape: tuple[int, ...]) -> None:
    """By a channel of ones where an image is large, in whatever place the bias is."""
    rng = np.random.default_rng(9)
    x, weight, bias, other = (rng.normal(size=s) for s in (shape, (40, 5, 1, 1), (40,), (40,)))
    expected = summed(x, weight, Conv2d()) + bias[:, None, None]
    scaled = call("mul", Arg(1), call("relu", call("add", Arg(2), Arg(0))))
    twice = call("mul", call("add", Arg(0), Arg(1)), Arg(0))
    for epilogue, operands, result in (
        (Epilogue(call("add", Arg(0), Arg(1)), ("channel",)), (bias,), expected),
        (
            Epilogue(scaled, ("channel", "channel")),
            (other, bias),
            other[:, None, None] * np.maximum(expected, 0),
        ),
        (
            Epilogue(twice, ("channel",)),
            (bias,),
            expected * (expected - bias[:, None, None]),
        ),
    ):
        arrays = {"x": x, "weight": weight, **dict(zip(epilogue.names, operands, strict=True))}
        arrays = {name: one.astype(np.float32) for name, one in arrays.items()}
        types = {name: TensorType(one.shape) for name, one in arrays.items()}
        made = Preparation(Conv2d(), types, TensorType(expected.shape), epilogue)
        compute = made(Conv2d(), made.types, epilogue)
        last = {**arrays, "x": channels_last(arrays["x"])}
        for operands in (arrays, last) * 12:
            found = compute([*operands.values()])
            np.testing.assert_allclose(found, result, rtol=1e-4, atol=1e-4)


def test_the_bias_of_an_epilogue_is_what_is_added_first() -> None:
    add, relu = call("add", Arg(0), Arg(1)), call("relu", call("add", Arg(2), Arg(0)))
    assert Epilogue(add, ("channel",)).split_bias() == (0, None)
    assert Epilogue(add, ("full",)).split_bias() is None
    found = Epilogue(call("mul", Arg(3), call("sub", relu, Arg(1))), ("one", "channel", "full"))
    rest = Epilogue(call("mul", Arg(2), call("sub", call("relu", Arg(0)), Arg(1))), ("one", "full"))
    assert found.split_bias() == (1, rest)
    assert Epilogue(call("mul", add, Arg(1)), ("channel",)).split_bias() is None
    assert Epilogue(call("mul", add, Arg(0)), ("channel",)).split_bias() is None


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("size", [1, 4, 40])
def test_scales_of_channels_may_be_done_to_the_weights(samples: int, size: int) -> None:
    rng = np.random.default_rng(10)
    x, weight = rng.normal(size=(samples, 6, size, size)), rng.normal(size=(9, 6, 1, 1))
    scales = rng.normal(size=(samples, 6, 1, 1))
    expected = summed(x * scales, weight, Conv2d())
    arrays = [one.astype(np.float32) for one in (x, weight, scales)]
    for expr in (call("mul", Arg(0), Arg(1)), call("mul", Arg(1), Arg(0))):
        op = Conv2d(prologue=Prologue(expr, ("image",)))
        compute = op.specialize([TensorType(one.shape) for one in arrays])
        for _ in range(12):
            np.testing.assert_allclose(compute(*arrays)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_scales_of_channels_do_not_reach_the_padding(scale: float) -> None:
    x, weight = np.ones((1, 1, 4, 5), np.float32), np.ones((1, 1, 1, 3), np.float32)
    padding = (2, 0, 1, 0)
    op = Conv2d(padding=padding, prologue=Prologue(call("mul", Arg(0), Arg(1)), ("image",)))
    scales = np.full((1, 1, 1, 1), scale, np.float32)
    compute = op.specialize([TensorType(one.shape) for one in (x, weight, scales)])
    for _ in range(3):
        (found,) = compute(x, weight, scales)
        assert found.shape == (1, 1, 7, 3)
        np.testing.assert_array_equal(found[:, :, [0, 1, 6]], 0)
        np.testing.assert_array_equal(found[:, :, 2:6], scale)


def test_x_sigmoid_x_is_exact_at_both_ends() -> None:
    x = np.array([-np.inf, -200, -90, -20, -1e-3, 0, 1e-3, 20, 90, 200, np.inf], np.float32)
    bias = np.zeros((), np.float32)
    precise = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = precise / (1 + np.exp(-precise))
        expected[0] = np.nan  # as the product of what is infinite and 0
    for expr in (call("silu", Arg(0)), call("silu", call("add", Arg(0), Arg(1)))):
        found = evaluate_blockwise(expr, (x, bias), x.shape, x.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-37)

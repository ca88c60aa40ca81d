"""Shape rules, costs and NumPy references, against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glnn.errors import ShapeError
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import SCALE_AND_SHIFT, Arg, call
from glnn.graph.expression import SUM as ADD
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Flatten,
    Identity,
    LocalResponseNorm,
    Matmul,
    Pointwise,
    Pool2d,
    Softmax,
    Subsample,
    Unflatten,
    conv2d,
)
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.op_spec import OpSpec
from glnn.ops import conv2d as conv2d_function
from glnn.ops import matmul as matmul_function
from tests import oracle
from tests.backends.epilogues import finish

DTYPES = {np.float32: 1e-6, np.float64: 1e-14}


def both(op: Operator, expected: np.ndarray, **operands: np.ndarray) -> None:
    """The reference in float32 and float64, whose dtype it keeps."""
    for dtype, tolerance in DTYPES.items():
        got = op.compute({k: v.astype(dtype) for k, v in operands.items()})
        assert got.dtype == dtype
        assert got.shape == op.shape_of({k: v.shape for k, v in operands.items()})
        assert oracle.error(got, expected) <= tolerance


def test_matmul(rng) -> None:
    x, weight = rng((7, 5)), rng((3, 5))
    both(Matmul(), oracle.matmul(x, weight), x=x, weight=weight)


@pytest.mark.parametrize("function", ["identity", "sigmoid", "relu", "tanh"])
@pytest.mark.parametrize("biased", [False, True])
def test_epilogues(rng, function, biased) -> None:
    epilogue = finish(alpha=-1.5, bias=biased, beta=0.25, full=True, activation=function)
    assert epilogue is not None and epilogue.names == (("e1", "e2") if biased else ("e1",))
    for shape in ((7, 3), (2, 3, 5, 4)):
        x, bias, c = rng(shape), rng((3,)), rng(shape)
        added = np.reshape(bias, (3, *(1,) * (len(shape) - 2))) if biased else 0
        expected = oracle.activation(-1.5 * x.astype("f8") + added + 0.25 * c, function)
        for dtype, tolerance in DTYPES.items():
            operands = [a.astype(dtype) for a in ((x, bias, c) if biased else (x, c))]
            got = epilogue.evaluate(*operands)
            assert got.dtype == dtype and oracle.error(got, expected) <= tolerance


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((2, 3, 7, 5), (4, 3, 3, 3), {"padding": (1, 0, 2, 1)}),
        ((1, 4, 9, 8), (6, 2, 2, 3), {"groups": 2, "stride": (2, 3), "dilation": (3, 1)}),
        ((3, 5, 4, 4), (5, 1, 3, 3), {"groups": 5, "padding": (3, 3, 3, 3)}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ],
)
def test_conv2d(rng, monkeypatch, shape, weight, attributes) -> None:
    x, w = rng(shape), rng(weight)
    expected = oracle.conv2d(x, w, **attributes)
    both(Conv2d(**attributes), expected, x=x, weight=w)
    monkeypatch.setattr(conv2d, "BLOCK_BYTES", 1)  # one image at a time
    both(Conv2d(**attributes), expected, x=x, weight=w)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((2, 2), (2, 2), (0, 0, 0, 0)),
        ((3, 2), (2, 1), (1, 1, 1, 0)),
        ((4, 3), (3, 2), (2, 1, 1, 1)),
    ],
)
def test_pool2d(rng, mode, ceil_mode, count_include_pad, kernel, stride, padding) -> None:
    x = rng((2, 3, 8, 7))
    how = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    expected = oracle.pool2d(x, mode, kernel, stride, padding, **how)
    both(Pool2d(mode, kernel, stride, padding, **how), expected, x=x)


# From PyTorch 2.13, not from any code here: x is (arange(h w) 7 mod 11 - 8), of shape (1, 1, h, w).
# (h, w), attributes, and what torch.nn.functional.max_pool2d or avg_pool2d gives in float64.
_OVER = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True}
_LEFT_OUT = {"kernel": (2, 2), "stride": (3, 4), "padding": (1, 1, 1, 1), "ceil_mode": True}
_SMALL = {"kernel": (3, 4), "stride": (3, 3), "ceil_mode": True}
PYTORCH_POOLS = [
    ((4, 5), {"mode": "max", **_OVER}, [[1, 2, 2], [1, 1, 2], [-2, 1, -3]]),
    (  # the last row of windows hangs over the padding too: what is past that does not count
        (4, 5),
        {"mode": "average", **_OVER},
        [
            [-1.5555555555555556, -1.4444444444444444, -0.7777777777777778],
            [-2.7777777777777777, -3.4444444444444446, -2.2222222222222223],
            [-1.3333333333333333, -1.3333333333333333, -1.6666666666666667],
        ],
    ),
    (
        (4, 5),
        {"mode": "average", **_OVER, "count_include_pad": False},
        [
            [-3.5, -2.1666666666666665, -1.75],
            [-4.166666666666667, -3.4444444444444446, -3.3333333333333335],
            [-4, -2.6666666666666665, -5],
        ],
    ),
    (
        (4, 6),
        {
            "mode": "average",
            "kernel": (4, 2),
            "stride": (3, 4),
            "padding": (2, 1, 2, 1),
            "ceil_mode": True,
        },
        [[-0.875, -0.5], [-0.375, -3]],
    ),
    (
        (4, 6),
        {
            "mode": "max",
            "kernel": (2, 2),
            "stride": (2, 3),
            "padding": (0, 1, 0, 1),
            "dilation": (2, 3),
            "ceil_mode": True,
        },
        [[2, 2, 1], [2, 2, 1]],
    ),
    # A second column of windows would start in the padding after: it is left out.
    ((5, 3), {"mode": "max", **_LEFT_OUT}, [[-8], [1]]),
    ((5, 3), {"mode": "average", **_LEFT_OUT}, [[-2], [0.25]]),
    # A window larger than x.
    ((1, 2), {"mode": "max", **_SMALL}, [[-1]]),
    ((1, 2), {"mode": "average", **_SMALL}, [[-4.5]]),
    (  # windows whose taps all lie in the padding
        (1, 4),
        {
            "mode": "max",
            "kernel": (2, 2),
            "stride": (1, 1),
            "padding": (1, 1, 1, 1),
            "dilation": (2, 2),
        },
        [[-np.inf] * 4],
    ),
]


def pytorch_pool_input(size: tuple[int, int]) -> np.ndarray:
    numbers = np.arange(size[0] * size[1]) * 7 % 11 - 8
    return numbers.reshape(1, 1, *size).astype(np.float32)


@pytest.mark.parametrize(("size", "attributes", "expected"), PYTORCH_POOLS)
def test_pools_that_pytorch_computed(size, attributes, expected) -> None:
    x, known = pytorch_pool_input(size), np.array([[expected]])
    both(Pool2d(**attributes), known, x=x)
    assert oracle.error(oracle.pool2d(x, **attributes), known) <= 1e-15


def test_a_window_too_large_for_pytorch() -> None:
    how = {"kernel": (3, 4), "stride": (1, 3), "ceil_mode": True}  # _SMALL but for its stride
    with pytest.raises(ShapeError, match="larger than x"):  # PyTorch: output size is too small
        Pool2d(**how).shape_of({"x": (1, 1, 1, 2)})


def test_the_rest(rng) -> None:
    x, bias = rng((2, 3, 4, 5)), rng((3,))
    both(Pointwise(ADD), oracle.bias(x, bias), x0=x, x1=bias.reshape(3, 1, 1))
    for axis in (1, 2, 3, -1):
        both(Softmax(axis), oracle.softmax(x, axis), x=x)
    for function in ("sigmoid", "relu", "tanh"):
        both(Pointwise(call(function, Arg(0))), oracle.activation(x, function), x0=x)
    both(Flatten(), x.reshape(2, 60), x=x)
    both(Identity(), x, x=x)


@pytest.mark.parametrize("mode", ["max", "average"])
def test_windows_that_span_the_image(rng, mode) -> None:
    x = rng((2, 3, 5, 4))
    x[1, 2, 4, 3] = np.nan
    both(Pool2d(mode, None), oracle.pool2d(x, mode, (5, 4), (1, 1)), x=x)
    op, shapes = Pool2d(mode, None), {"x": (2, 3, 9, 8)}
    assert (op.shape_of(shapes), op.flops(shapes)) == ((2, 3, 1, 1), 6 * 72)
    assert op.defines(shapes)["WHOLE"] == 1
    assert op.defines(shapes) == op.defines({"x": x.shape})  # one program for all sizes
    with pytest.raises(ShapeError, match=r"the window \(0, 4\) is larger than x"):
        op.shape_of({"x": (1, 1, 0, 4)})


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("output", [(3, 4), (7, None), (9, 1)])
def test_windows_that_share_the_image(rng, mode, output) -> None:
    x = rng((2, 3, 7, 10))
    x[1, 2, 4, 3] = np.nan
    op = Pool2d(mode, None, output=output)
    both(op, oracle.adaptive_pool2d(x, mode, output), x=x)
    assert op.defines({"x": x.shape}) == op.defines({"x": (1, 1, 20, 30)})
    with pytest.raises(ShapeError, match="more than shaders count"):
        Pool2d(mode, None, output=(1, 2**28)).shape_of({"x": x.shape})


def test_subsample_batch_norm_and_add(rng) -> None:
    x, y, a, b, mean = rng((2, 3, 5, 7)), rng((2, 3, 5, 7)), rng((3,)), rng((3,)), rng((3,))
    expected = oracle.subsample(x, a, b, (2, 3))
    both(Subsample((2, 3)), expected, x=x, weight=a, bias=b)
    scale = a.astype("f8") / np.sqrt((mean**2).astype("f8") + 1e-5)
    shift = b - mean * scale
    norm, wide = Pointwise(SCALE_AND_SHIFT), (3, 1, 1)
    got = norm.compute({"x0": x.astype("f8"), "x1": scale.reshape(wide), "x2": shift.reshape(wide)})
    expected = oracle.batch_norm(x, a, b, mean, mean**2, 1e-5)
    assert oracle.error(got, expected) <= 1e-14
    both(Pointwise(ADD), x.astype("f8") + y, x0=x, x1=y)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_local_response_norm(rng, size) -> None:
    x = rng((2, 6, 3, 2))
    expected = oracle.local_response_norm(x, size, 0.5, 0.75, 2.0)
    both(LocalResponseNorm(size, 0.5, 0.75, 2.0), expected, x=x)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_concat(rng, count) -> None:
    operands = {f"x{i}": rng((2, i + 1, 3)) for i in range(count)}
    both(Concat(), oracle.concat(*operands.values()), **operands)


def test_costs_count_a_multiply_add_as_two() -> None:
    shapes = {"x": (100, 400), "weight": (120, 400), "e1": (120,)}
    linear = OpSpec.create(Matmul(), shapes, {}, BIASED).cost
    assert linear.flops == 100 * 120 * (2 * 400 + 1)
    assert linear.bytes == 4 * (100 * 400 + 120 * 400 + 120 + 100 * 120)
    conv = Conv2d(padding=(2, 2, 2, 2)).cost_of({"x": (1, 1, 28, 28), "weight": (6, 1, 5, 5)})
    assert conv.flops == 6 * 28 * 28 * 2 * 25


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (Matmul(), {"x": (2, 3), "weight": (4, 5)}, "must agree in their last dimension"),
        (Matmul(), {"x": (2,), "weight": (4, 2)}, "x must have shape"),
        (Conv2d(), {"x": (1, 3, 5, 5), "weight": (2, 4, 3, 3)}, "do not fit 1 groups"),
        (Conv2d(), {"x": (1, 3, 2, 2), "weight": (2, 3, 3, 3)}, "larger than the padded x"),
        (Pool2d(kernel=(9, 9)), {"x": (1, 1, 4, 4)}, "larger than x"),
        (Softmax(2), {"x": (1, 3)}, r"axes must name dimensions of 2, .* got \(2,\)"),
        (Flatten(), {"x": (3,)}, r"\(3,\) has no dimensions from 1 to -1"),
        (Unflatten(1, (2, -1)), {"x": (4, 5)}, r"dimension 1 of float32 \(4, 5\) is not \(2, -1"),
        (Unflatten(0, (-1, 0)), {"x": (4, 5)}, r"is not \(-1, 0\)"),
        (Subsample((3, 3)), {"x": (1, 1, 2, 3), "weight": (1,), "bias": (1,)}, "larger than x"),
        (Subsample(), {"x": (1, 2, 2, 2), "weight": (2,), "bias": (1,)}, "bias must have shape"),
        (LocalResponseNorm(3), {"x": (2,)}, "x must have shape"),
        (Concat(), {"x0": (2,), "x1": (2,)}, "axes must name dimensions of 1"),
        (Concat(), {"x0": (2, 3, 4), "x1": (2, 3, 5)}, r"x1 must be float32 .* but along 1"),
    ],
)
def test_shapes_that_do_not_fit(op, shapes, says) -> None:
    with pytest.raises(ShapeError, match=says):
        op.shape_of(shapes)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Conv2d(stride=(0, 1)), "stride must be 2 integers of at least 1"),
        (lambda: Conv2d(padding=(1, 1)), "padding must be 4 integers"),  # type: ignore[arg-type]
        (lambda: Pool2d("median"), "mode must be max or average"),
        (lambda: Pool2d(padding=(2, 0, 0, 0)), "at most half the kernel"),
        (lambda: Pool2d("average", dilation=(2, 1)), "an average takes no dilation"),
        (lambda: Pool2d("max", None, padding=(1, 0, 0, 0)), "takes no padding and no dilation"),
        (lambda: Pool2d("max", None, dilation=(2, 1)), "takes no padding and no dilation"),
        (lambda: Pool2d("max", divisor=4), "only an average of windows of one size"),
        (lambda: Pool2d("average", None, divisor=4), "only an average of windows of one size"),
        (lambda: Pool2d("max", None, output=(0, 1)), "output must be 2 integers of at least 1"),
        (lambda: Subsample((0, 1)), "kernel must be 2 integers of at least 1"),
        (lambda: LocalResponseNorm(0), "size must be 1 integers of at least 1"),
        (lambda: LocalResponseNorm(3, -1.0), "alpha must be a number of at least 0"),
        (lambda: Concat(1.0), "axis must be a tuple of integers"),
    ],
)
def test_attributes_that_make_no_sense(make, says) -> None:
    with pytest.raises(ShapeError, match=says):
        make()


def test_operands_are_named() -> None:
    with pytest.raises(ShapeError, match="expected operands"):
        Matmul().check_operands({"x": (1, 1)})
    with pytest.raises(ShapeError, match="expected operands"):
        Flatten().check_operands({"x": (1, 1), "weight": (1, 1)})


def test_conv2d_function_refuses_other_dtypes() -> None:
    with pytest.raises(ShapeError, match="x must be a float32 NumPy array, got float64"):
        conv2d_function(np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 1, 1), np.float32))


def pairs(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(*[st.integers(least, most)] * 2)


@given(
    pairs(1, 9),
    pairs(1, 3),
    pairs(1, 4),
    pairs(1, 3),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.data(),
)
def test_windows_anywhere(size, kernel, stride, dilation, padding, data) -> None:
    """Convolution and pooling agree with the loops on every window, or both find none."""
    x = np.random.default_rng(0).standard_normal((1, 2, *size))
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    room = [s + sum(padding[i::2]) - dilation[i] * (kernel[i] - 1) for i, s in enumerate(size)]
    if min(room) < 1:
        with pytest.raises(ShapeError, match="larger than the padded x"):
            Conv2d(**how).shape_of({"x": x.shape, "weight": (1, 2, *kernel)})
    else:
        weight = np.random.default_rng(1).standard_normal((2, 2, *kernel))
        got = Conv2d(**how).compute({"x": x, "weight": weight})
        assert oracle.error(got, oracle.conv2d(x, weight, None, **how)) <= 1e-12
    how["padding"] = tuple(min(p, k // 2) for p, k in zip(padding, 2 * kernel, strict=True))
    how["ceil_mode"] = data.draw(st.booleans())
    expected = oracle.pool2d(x, "max", kernel, **how)
    if expected.size:
        got = Pool2d("max", kernel, **how).compute({"x": x})
        assert oracle.error(got, expected) == 0
    else:
        with pytest.raises(ShapeError, match="larger than x"):
            Pool2d("max", kernel, **how).shape_of({"x": x.shape})


@pytest.mark.parametrize("mode", ["max", "average"])
def test_a_window_that_would_start_in_the_padding_after_is_left_out(rng, mode) -> None:
    x = rng((1, 2, 5, 4))
    how = {"kernel": (2, 2), "stride": (3, 4), "padding": (1, 1, 1, 1), "ceil_mode": True}
    assert Pool2d(mode, **how).shape_of({"x": x.shape}) == (1, 2, 2, 2)
    x = x[:, :, :, :3]  # its second window would start behind the end
    assert Pool2d(mode, **how).shape_of({"x": x.shape}) == (1, 2, 2, 1)
    both(Pool2d(mode, **how), oracle.pool2d(x, mode, **how), x=x)


@pytest.mark.parametrize("images", [1, 2, 3])
def test_splitting_the_batch_changes_nothing(rng, monkeypatch, images) -> None:
    op = Conv2d(padding=(1, 1, 1, 1), groups=2)
    operands = {"x": rng((5, 4, 6, 7)), "weight": rng((6, 2, 3, 3))}
    whole = op.compute(operands)
    one = 4 * 4 * 9 * 6 * 7  # bytes of the columns of one image
    monkeypatch.setattr(conv2d, "BLOCK_BYTES", images * one)
    assert conv2d._block((2, 6, 7), 2 * 9, 4) == (images, 2, 6)
    np.testing.assert_array_equal(op.compute(operands), whole)


def test_convolutions_of_nothing() -> None:
    def of(x: tuple[int, ...], weight: tuple[int, ...]) -> np.ndarray:
        return Conv2d().compute({"x": np.ones(x), "weight": np.ones(weight)})

    assert of((0, 1, 3, 3), (2, 1, 3, 3)).shape == (0, 2, 1, 1)
    assert of((1, 1, 3, 3), (0, 1, 3, 3)).shape == (1, 0, 1, 1)
    assert of((1, 0, 3, 3), (2, 0, 3, 3)).tolist() == [[[[0]], [[0]]]]


def test_pools_of_not_a_number_and_infinity(rng) -> None:
    x = rng((1, 2, 5, 5))
    x[0, 0, 1, 2], x[0, 1, 3, 3], x[0, 1, 0, 0] = np.nan, -np.inf, np.inf
    for mode in ("max", "average"):
        how = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
        both(Pool2d(mode, **how), oracle.pool2d(x, mode, **how), x=x)


@pytest.mark.filterwarnings("error")
def test_activations_and_softmax_of_extremes() -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0, 88, -89, 1e30, -1e30]])
    for function in ("sigmoid", "relu", "tanh"):
        both(Pointwise(call(function, Arg(0))), oracle.activation(x, function), x0=x)
    both(Softmax(), np.full(x.shape, np.nan), x=x)
    x = np.array([[3e38, -3e38, -np.inf], [1000, 999, 998], [0, 0, 0]], np.float32)
    both(Softmax(1), oracle.softmax(x, 1), x=x)
    assert Softmax().compute({"x": np.zeros((2, 0))}).shape == (2, 0)


SHAPES = {"x": (2, 4, 9, 8), "weight": (6, 2, 2, 3)}


def test_sizes_and_defines_of_a_convolution() -> None:
    op = Conv2d((2, 3), (1, 2, 3, 4), (1, 2), 2)
    assert op.sizes(SHAPES) == {
        "n": 2, "c": 4, "h": 9, "w": 8, "o": 6, "oh": 6, "ow": 4, "groups": 2,
        "o_group": 3, "pixels": 48, "depth": 12, "taps": 6,
    }  # fmt: skip
    assert op.defines(SHAPES) == {
        "KERNEL_H": 2, "KERNEL_W": 3, "STRIDE_H": 2, "STRIDE_W": 3, "PADDING_TOP": 1,
        "PADDING_LEFT": 2, "DILATION_H": 1, "DILATION_W": 2, "GROUPS": 2, "WHOLE_QUADS": 0,
        "PADDED": 1, "DEPTHWISE": 0,
    }  # fmt: skip
    assert op.derived_sizes(SHAPES) == {
        "kernel_h": 2, "kernel_w": 3, "window": 5, "row_unit": 4, "plane_unit": 8, "follows": 0,
        "exact": 0, "share": 2, "ragged": 1,
    }  # fmt: skip
    same = Conv2d(padding=(1, 1, 1, 1)).derived_sizes({"x": (1, 2, 7, 6), "weight": (3, 2, 3, 3)})
    assert (same["row_unit"], same["plane_unit"], same["follows"]) == (2, 2, 1)


@pytest.mark.parametrize(
    ("weight", "groups", "whole", "depthwise"),
    [
        ((6, 7, 3, 3), 1, 1, 0),  # one group has the padding of its last quad to itself
        ((8, 4, 3, 3), 2, 1, 0),
        ((6, 4, 3, 3), 2, 0, 0),  # three output channels a group
        ((8, 6, 3, 3), 2, 0, 0),
        ((8, 1, 3, 3), 8, 0, 1),
        ((16, 1, 3, 3), 8, 0, 0),  # two kernels for each channel
        ((1, 1, 3, 3), 1, 1, 1),
    ],
)
def test_groups_in_whole_quads_and_by_themselves(weight, groups, whole, depthwise) -> None:
    shapes = {"x": (1, weight[1] * groups, 5, 5), "weight": weight}
    defines = Conv2d(groups=groups).defines(shapes)
    found = defines["WHOLE_QUADS"], defines["PADDED"], defines["DEPTHWISE"]
    assert found == (whole, 0, depthwise)


def test_sizes_and_defines_of_a_pool() -> None:
    op = Pool2d("average", (4, 5), (2, 3), (1, 2, 0, 1), count_include_pad=False)
    shapes = {"x": (2, 3, 9, 8)}
    assert op.sizes(shapes) == {"n": 2, "c": 3, "h": 9, "w": 8, "oh": 4, "ow": 3}
    assert op.defines(shapes) == {
        "MODE": 1, "WHOLE": 0, "SHARED": 0, "KERNEL_H": 4, "KERNEL_W": 5,
        "STRIDE_H": 2, "STRIDE_W": 3,
        "PADDING_TOP": 1, "PADDING_LEFT": 2, "PADDING_BOTTOM": 0, "PADDING_RIGHT": 1,
        "DILATION_H": 1, "DILATION_W": 1, "COUNT_INCLUDE_PAD": 0, "DIVIDED": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "shapes", "sizes"),
    [
        (Matmul(), {"x": (2, 3), "weight": (4, 3)}, {"m": 2, "n": 4, "k": 3, "batch": 1}),
        (Softmax(-2), {"x": (2, 3, 4, 5)}, {"rows": 6, "extent": 4, "inner": 5, "sample_rows": 15}),
        (Softmax(), {"x": (2, 3)}, {"rows": 2, "extent": 3, "inner": 1, "sample_rows": 1}),
        (Pointwise(ADD), {"x0": (2, 3, 4), "x1": (4,)}, {"count": 24}),
        (
            Reorder("R", "nChw4c"),
            {"x": (1, 2, 3, 4)},
            {"n": 1, "c": 2, "h": 3, "w": 4, "count": 24},
        ),
    ],
)
def test_sizes(op, shapes, sizes) -> None:
    assert op.sizes(shapes) == sizes


@pytest.mark.parametrize(
    ("op", "shapes", "flops", "elements"),
    [
        (Matmul(), [(2, 3), (4, 3)], 8 * 6, 26),
        (Conv2d(groups=2), [*SHAPES.values()], 576 * 24, 576 + 72 + 576),
        (Pool2d(kernel=(3, 2)), [(1, 2, 7, 6)], 2 * 9 * 6, 84 + 18),
        (Softmax(), [(2, 3)], 30, 12),
        (Subsample((2, 2)), [(1, 2, 4, 6), (2,), (2,)], 12 * (4 + 2), 48 + 4 + 12),
        (LocalResponseNorm(5), [(2, 3, 4)], 24 * 14, 48),
        (Reorder("R", "nChw4c"), [(1, 2, 3, 4)], 0, 48),
    ],
)
def test_costs(op, shapes, flops, elements) -> None:
    named = dict(zip((*op.inputs, *op.parameters), shapes, strict=False))
    if isinstance(op, Conv2d):
        assert op.shape_of(named) == (2, 6, 8, 6)
    assert (op.cost_of(named).flops, op.cost_of(named).bytes) == (flops, 4 * elements)


def test_the_cost_of_an_expression() -> None:
    cost = Pointwise(ADD).cost_of({"x0": (2, 3, 4), "x1": (4,)})
    assert (cost.flops, cost.bytes) == (24, 4 * (24 + 4 + 24))


def test_the_cost_of_an_epilogue() -> None:
    op, shapes = Conv2d(groups=2), {**SHAPES, "e1": (6,), "e2": (2, 6, 8, 6)}
    epilogue = finish(bias=True, full=True, activation="relu")
    cost = OpSpec.create(op, shapes, {}, epilogue).cost
    assert cost.flops == 576 * 27
    assert cost.bytes == op.cost_of(SHAPES).bytes + 4 * (6 + 576)


@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        (1, (1, 1, 1, 1)),
        ((1, 2), (1, 2, 1, 2)),
        ((0, 1, 2, 3), (0, 1, 2, 3)),
        ("valid", (0, 0, 0, 0)),
        ("same", (1, 2, 2, 2)),  # a 4 x 3 window, its columns two apart
    ],
)
def test_paddings_of_the_conv2d_function(rng, padding, sides) -> None:
    x, weight = rng((1, 2, 6, 7)), rng((3, 2, 4, 3))
    got = conv2d_function(x, weight, padding=padding, dilation=(1, 2), backend="cpu")
    assert oracle.error(got, oracle.conv2d(x, weight, None, (1, 1), sides, (1, 2))) <= 1e-6
    assert padding != "same" or got.shape[2:] == x.shape[2:]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"padding": "same", "stride": 2}, "padding 'same' needs stride 1"),
        ({"padding": "full"}, "padding must be an integer, 2 or 4 integers"),
        ({"padding": (1, 2, 3)}, "padding must be an integer, 2 or 4 integers"),
        ({"padding": -1}, "padding must be 4 integers of at least 0"),
        ({"padding": "same", "dilation": (1,)}, "dilation must be 2 integers of at least 1"),
        ({"stride": 1.5}, "stride must be 2 integers of at least 1"),
        ({"groups": 0}, "groups must be 1 integers of at least 1"),
        ({"weight": np.ones((1, 1, 2), np.float32), "padding": "same"}, "weight must have shape"),
    ],
)
def test_what_the_conv2d_function_refuses(arguments, says) -> None:
    operands = {"x": np.ones((1, 1, 5, 5), np.float32), "weight": np.ones((1, 1, 2, 2), np.float32)}
    with pytest.raises(ShapeError, match=says):
        conv2d_function(**{**operands, **arguments}, backend="cpu")


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_matmul_function(rng, transpose_a, transpose_b) -> None:
    a, b, c = rng((3, 5)), rng((5, 4)), rng((3, 4))
    got = matmul_function(
        a.T if transpose_a else a, b.T if transpose_b else b, c, 2.0, -0.5,
        transpose_a, transpose_b, "cpu",
    )  # fmt: skip
    assert oracle.error(got, 2 * a.astype(np.float64) @ b - 0.5 * c) <= 1e-6


def test_edges_of_the_matmul_function() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    unread = np.full((2, 2), np.nan, np.float32)
    assert matmul_function(a, b, unread, backend="cpu").tolist() == [[3, 3], [3, 3]]  # beta is 0
    empty = matmul_function(a[:, :0], b[:0], np.eye(2, dtype=np.float32), 1.0, 2.0, backend="cpu")
    assert empty.tolist() == [[2, 0], [0, 2]] and empty.dtype == np.float32
    nan, c = np.full_like(a, np.nan), np.eye(2, dtype=np.float32)
    scaled = matmul_function(nan, b, c, 0.0, 2.0, backend="cpu")  # alpha is 0
    assert scaled.tolist() == [[2, 0], [0, 2]] and scaled.dtype == np.float32
    assert matmul_function(nan, b, c * nan[0, 0], 0.0, backend="cpu").tolist() == [[0, 0], [0, 0]]
    for refused, says in [
        ((a, b, None, 1.0, 1.0), "beta is 1, so c is needed"),
        ((a, b, a), r"c must have shape \(2, 2\)"),
        ((a, b, [[1.0]]), "c must be a float32 NumPy array, got list"),
        ((a, b, a, 0.0), r"c must have shape \(2, 2\)"),
        ((a[:, :2], b, None, 0.0), "do not fit"),
        ((a, a), r"op\(a\) \(2, 3\) and op\(b\) \(2, 3\) do not fit"),
        ((a[0, 0, ...], b), "at least one dimension"),
        ((a[0], b[1:]), r"op\(a\) \(3,\) and op\(b\) \(2, 2\) do not fit"),
        ((np.stack([a, a]), np.stack([b, b, b])), "do not fit"),
        ((a, b, a, 1.0, 1.0), r"c must have shape \(2, 2\)"),
        ((a.tolist(), b), "a must be a float32 NumPy array, got list"),
    ]:
        with pytest.raises(ShapeError, match=says):
            matmul_function(*refused, backend="cpu")

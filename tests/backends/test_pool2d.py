from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Pool2d
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.pure.test_ops import PYTORCH_POOLS, pytorch_pool_input

CASES = [
    ((1, 1, 2, 2), {"kernel": (2, 2), "stride": (2, 2)}),
    ((2, 6, 28, 28), {"kernel": (2, 2), "stride": (2, 2)}),
    ((2, 3, 7, 5), {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1, 1, 1)}),
    ((1, 5, 9, 11), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 0, 1)}),
    ((1, 3, 8, 7), {"kernel": (3, 3), "stride": (2, 3), "ceil_mode": True}),
    (
        (1, 4, 6, 6),
        {"kernel": (2, 2), "stride": (3, 3), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    ((3, 1, 13, 4), {"kernel": (1, 4), "stride": (1, 1)}),
    ((2, 17, 5, 6), {"kernel": (2, 3), "stride": (1, 1), "padding": (1, 0, 0, 1)}),
    ((1, 129, 3, 3), {"kernel": (2, 2), "stride": (2, 2), "ceil_mode": True}),
    # several strips of rows
    ((2, 5, 19, 9), {"kernel": (5, 5), "stride": (1, 1), "padding": (2, 2, 2, 2)}),
    ((1, 6, 37, 6), {"kernel": (5, 4), "stride": (2, 1), "padding": (1, 2, 2, 1)}),
]
SAME = (1, 9, 7, 7), (7, 7)
# Those that take nothing but windows that span the image.
WHOLE = [k for k in kernels("pool2d") if k[1].endswith("global")]
WINDOWS = [k for k in kernels("pool2d") if k not in WHOLE]


def pool(backend, op, x, kernel):
    """The result, or a skipped test, where the kernel says that it takes no such windows."""
    spec = OpSpec.create(op, {"x": x.shape}, {})
    reason = backend.why_not(spec, kernel)
    across = op.kernel is None or op.kernel[1] > 5 or op.stride[1] > 2 or op.dilation != (1, 1)
    down = op.kernel is None or op.kernel[0] > 5 or op.stride != (1, 1)
    if (across and kernel in ("nhwc_rows", "nhwc_columns")) or (down and kernel == "nhwc_columns"):
        assert reason is not None and ", it needs " in reason
        pytest.skip(reason)
    return run(backend, op, {"x": x}, kernel)


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
@pytest.mark.parametrize(("shape", "attributes"), CASES)
@pytest.mark.parametrize(
    "mode", [{"mode": "max"}, {"mode": "average"}, {"mode": "average", "count_include_pad": False}]
)
def test_any_shape(opened, rng, name, kernel, shape, attributes, mode) -> None:
    x = rng(shape)
    got = pool(opened(name), Pool2d(**attributes, **mode), x, kernel)
    assert oracle.error(got, oracle.pool2d(x, **attributes, **mode)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
@pytest.mark.parametrize(("size", "attributes", "expected"), PYTORCH_POOLS)
def test_pools_that_pytorch_computed(opened, name, kernel, size, attributes, expected) -> None:
    got = pool(opened(name), Pool2d(**attributes), pytorch_pool_input(size), kernel)
    assert oracle.error(got, np.array([[expected]])) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
def test_dilated_maximum(opened, rng, name, kernel) -> None:
    x, how = rng((2, 3, 11, 9)), {"kernel": (3, 2), "stride": (1, 2), "dilation": (2, 3)}
    got = pool(opened(name), Pool2d("max", **how), x, kernel)
    assert oracle.error(got, oracle.pool2d(x, "max", **how)) == 0


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_maximum_with_a_nan_is_nan(opened, rng, name, kernel, place) -> None:
    x = rng((1, 2, 4, 4))
    x[0, 0][place] = np.nan
    x[0, 1, 2, 2] = -np.inf
    got = pool(opened(name), Pool2d(), x, kernel)
    assert np.isnan(got[0, 0, 0, 0]) and np.isnan(got).sum() == 1
    assert oracle.error(got, oracle.pool2d(x, "max", (2, 2), (2, 2))) == 0


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d"))
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 7, 7), (3, 17, 1, 5), (2, 127, 13, 11)])
@pytest.mark.parametrize("mode", ["max", "average"])
def test_windows_that_span_the_image(opened, rng, name, kernel, shape, mode) -> None:
    x = rng(shape)
    got = pool(opened(name), Pool2d(mode, None), x, kernel)
    assert oracle.error(got, oracle.pool2d(x, mode, shape[2:], (1, 1))) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
@pytest.mark.parametrize("mode", ["max", "average"])
def test_windows_that_share_the_image(opened, rng, name, kernel, mode) -> None:
    for shape, output in (((2, 3, 7, 10), (3, 4)), ((1, 5, 2, 13), (3, None)), SAME):
        x = rng(shape)
        got = pool(opened(name), Pool2d(mode, None, output=output), x, kernel)
        assert oracle.error(got, oracle.adaptive_pool2d(x, mode, output)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
def test_another_divisor(opened, rng, name, kernel) -> None:
    x = rng((2, 5, 7, 6))
    op = Pool2d("average", (3, 2), (2, 1), (1, 1, 1, 1), divisor=7, count_include_pad=False)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = oracle.pool2d(padded, "average", (3, 2), (2, 1)) * 6 / 7
    assert oracle.error(pool(opened(name), op, x, kernel), expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), WINDOWS)
@pytest.mark.parametrize("number", [np.inf, -np.inf, 3e38, np.nan])
@pytest.mark.parametrize("stride", [1, 2])
def test_numbers_whose_sum_is_not_finite(opened, rng, name, kernel, number, stride) -> None:
    """Every window of 3 x 3 at once, also of neighbours in whose windows the number is not."""
    x = rng((2, 5, 9, 13))
    x[0, 1, 4, 4:6] = x[1, 4, 0, 12] = x[1, 4, 1, 11] = number
    how = {"kernel": (3, 3), "stride": (stride, stride), "padding": (1, 1, 1, 1)}
    got = pool(opened(name), Pool2d("max", **how), x, kernel)
    np.testing.assert_array_equal(got, oracle.pool2d(x, "max", **how).astype(np.float32))


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d"))
@pytest.mark.parametrize("mode", ["max", "average"])
def test_a_nan_spoils_its_channel_only(opened, rng, name, kernel, mode) -> None:
    x = rng((2, 6, 9, 7))
    x[1, 5, 8, 6] = np.nan
    got = pool(opened(name), Pool2d(mode, None), x, kernel)
    assert np.isnan(got[1, 5, 0, 0]) and np.isnan(got).sum() == 1


@pytest.mark.parametrize(("name", "kernel"), WHOLE)
def test_other_windows_are_refused(opened, name, kernel) -> None:
    reason = opened(name).why_not(OpSpec.create(Pool2d(), {"x": (1, 1, 4, 4)}, {}), kernel)
    assert reason is not None and "WHOLE is 0, it needs 1" in reason

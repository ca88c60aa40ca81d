from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import Pool2d, Pool2dGradient
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [
    ((1, 1, 1, 1), {"kernel": (1, 1), "stride": (1, 1)}),
    ((2, 6, 28, 28), {"kernel": (2, 2), "stride": (2, 2)}),
    ((2, 3, 7, 5), {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1, 1, 1)}),
    ((1, 5, 9, 11), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 0, 1)}),
    (
        (1, 4, 6, 6),
        {"kernel": (2, 2), "stride": (3, 3), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    ((1, 129, 3, 3), {"kernel": (2, 2), "stride": (2, 2), "ceil_mode": True}),
    ((2, 7, 5, 127), {"kernel": None, "output": (3, 4)}),
    ((1, 3, 2, 13), {"kernel": None, "output": (5, 3)}),
    ((2, 17, 5, 7), {"kernel": None}),
]
MODES = [{"mode": "max"}, {"mode": "average", "count_include_pad": False}]


def windows(pool: Pool2d, shape) -> np.ndarray:
    """Which windows (oh ow) have which places of an image (h w), found by pooling one by one."""
    h, w = shape[2:]
    ones = np.eye(h * w).reshape(h * w, 1, h, w)
    how = {f: getattr(pool, f) for f in ("kernel", "stride", "padding", "ceil_mode", "output")}
    if pool.divisor is None:
        sums = Pool2d("max", dilation=pool.dilation, **how).compute({"x": ones})
    else:
        sums = Pool2d("average", dilation=pool.dilation, divisor=1, **how).compute({"x": ones})
    return (sums.reshape(h * w, -1) == 1).T


def expected(pool: Pool2d, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient in float64, window by window."""
    met, flat = windows(pool, x.shape), x.reshape(*x.shape[:2], -1)
    found = np.zeros(flat.shape)
    given = dy.reshape(*dy.shape[:2], -1)
    if pool.mode == "average":
        counts = pool.compute({"x": np.ones((1, 1, *x.shape[2:]))}).reshape(-1) / met.sum(1)
        return np.einsum("ncp,p,pq->ncq", given, counts, met).reshape(x.shape)
    for window, places in enumerate(met):
        taken = np.flatnonzero(places)
        inside = flat[..., taken]
        chosen = np.argmax(np.where(np.isnan(inside), np.inf, inside), -1)
        for at in np.ndindex(*chosen.shape):
            nan = np.flatnonzero(np.isnan(inside[at]))
            found[at][taken[nan[-1] if len(nan) else chosen[at]]] += given[at][window]
    return found.reshape(x.shape)


def given(rng, pool: Pool2d, shape) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The operands, with ties, and what should come of them."""
    x = np.round(2 * rng(shape)) / 2
    dy = rng(pool.shape_of({"x": shape}))
    more = {"x": x, "y": pool.compute({"x": x})} if pool.mode == "max" else {}
    return {"dy": dy, **more}, expected(pool, x, dy)


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d_gradient"))
@pytest.mark.parametrize(("shape", "attributes"), CASES)
@pytest.mark.parametrize("mode", MODES)
def test_any_shape(opened, rng, name, kernel, shape, attributes, mode) -> None:
    pool = Pool2d(**attributes, **mode)
    operands, result = given(rng, pool, shape)
    got = run(opened(name), Pool2dGradient(pool, shape[2:]), operands, kernel)
    assert oracle.error(got, result) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d_gradient"))
@pytest.mark.parametrize(
    "pool",
    [
        Pool2d("max", (3, 2), (1, 2), dilation=(2, 3)),
        Pool2d("average", (3, 2), (2, 1), (1, 1, 1, 1), divisor=7),
        Pool2d("average", (2, 2), (1, 1), dilation=(3, 2), divisor=3),
    ],
)
def test_dilations_and_divisors(opened, rng, name, kernel, pool) -> None:
    shape = (2, 3, 11, 9)
    operands, result = given(rng, pool, shape)
    got = run(opened(name), Pool2dGradient(pool, shape[2:]), operands, kernel)
    assert oracle.error(got, result) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d_gradient"))
@pytest.mark.parametrize(
    ("kernel_size", "stride"), [((2, 2), (2, 2)), ((3, 3), (1, 1)), (None, (1, 1))]
)
def test_nan_and_infinities_are_greatest(opened, rng, name, kernel, kernel_size, stride) -> None:
    pool, shape = Pool2d("max", kernel_size, stride), (2, 6, 6, 6)
    x = np.round(rng(shape))
    x[0, 0, 0:2, 0:2] = x[1, 5, 2, 1] = x[1, 5, 3, 3] = np.nan
    x[0, 1] = -np.inf
    x[1, 2, 2:5, 2:5] = np.inf
    y = pool.compute({"x": x})
    dy = rng(y.shape)
    got = run(opened(name), Pool2dGradient(pool, (6, 6)), {"dy": dy, "x": x, "y": y}, kernel)
    assert oracle.error(got, expected(pool, x, dy)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d_gradient"))
def test_a_gradient_that_is_not_finite_stays_where_it_belongs(opened, rng, name, kernel) -> None:
    pool, x = Pool2d(), rng((1, 5, 4, 4))
    dy = rng((1, 5, 2, 2))
    dy[0, 4, 1, 1], dy[0, 0, 0, 0] = np.nan, np.inf
    operands = {"dy": dy, "x": x, "y": pool.compute({"x": x})}
    got = run(opened(name), Pool2dGradient(pool, (4, 4)), operands, kernel)
    assert np.isnan(got).sum() == np.isinf(got).sum() == 1


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d_gradient"))
@pytest.mark.parametrize("mode", ["max", "average"])
def test_epilogues(opened, rng, name, kernel, mode) -> None:
    pool, shape = Pool2d(mode, (3, 2), (2, 2)), (2, 7, 9, 6)
    operands, plain = given(rng, pool, shape)
    epilogue, more = finish(full=True, activation="relu"), (rng(shape),)
    operands |= dict(zip(epilogue.names, more, strict=True))
    op = Pool2dGradient(pool, shape[2:])
    got = run(opened(name), op, operands, kernel, epilogue)
    assert oracle.error(got, epilogue.evaluate(plain.astype(np.float32), *more)) <= TOLERANCE


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        ((2, 2), {"stride": (2, 2)}),
        ((3, 2), {"stride": (1, 2), "padding": (1, 1, 1, 1)}),
        ((2, 2), {"stride": (1, 1), "dilation": (2, 1)}),
        ((3, 3), {"stride": (2, 2), "ceil_mode": True}),
    ],
)
def test_what_is_expected_is_what_pytorch_gives(rng, kernel, how) -> None:
    torch = pytest.importorskip("torch")
    pool = Pool2d("max", kernel, **how)
    x = np.round(rng((2, 3, 7, 7)))
    x[0, 0, 1:3, 1:4] = x[1, 2, 6, 6] = np.nan
    x[0, 1] = -np.inf
    tensor = torch.tensor(x.astype(np.float64), requires_grad=True)
    padding = how.get("padding", (0,))[0]
    rest = how.get("dilation", (1, 1)), how.get("ceil_mode", False)
    y = torch.nn.functional.max_pool2d(tensor, kernel, how["stride"], padding, *rest)
    dy = rng(tuple(y.shape))
    y.backward(torch.tensor(dy.astype(np.float64)))
    np.testing.assert_allclose(expected(pool, x, dy), tensor.grad.numpy(), rtol=1e-12)

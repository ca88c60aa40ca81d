"""Layer, RMS, group and instance normalisation against their formulae in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.operators import Normalize
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

EPS = 1e-3
KERNELS = list(kernels("normalize"))
ROWS = [one for one in KERNELS if not one[1].startswith("groups")]
"""Those of the last dimensions, too; the others take groups of channels alone, of whole fours."""


def normalised(x, axes, *, centred=True):
    exact = x.astype(np.float64)
    if centred:
        exact = exact - exact.mean(axes, keepdims=True)
    return exact / np.sqrt((exact**2).mean(axes, keepdims=True) + EPS)


def by_groups(x, groups):
    return normalised(x.reshape(len(x), groups, -1), 2).reshape(x.shape)


@pytest.mark.parametrize(("name", "kernel"), ROWS)
@pytest.mark.parametrize("centred", [True, False], ids=["layer", "rms"])
def test_the_last_dimensions(opened, rng, name, kernel, centred) -> None:
    ran = 0
    for shape, dims in (
        ((1, 1), 1),
        ((3, 7), 1),
        ((129, 10), 1),
        ((17,), 1),
        ((3, 5, 260), 1),
        ((5, 701), 1),
        ((2, 1100), 1),
        ((4, 3, 8), 2),
        ((4, 3, 7), 2),
        ((3, 5, 2), 3),
    ):
        x, weight, bias = 3 + rng(shape), rng(shape[-dims:]), rng(shape[-dims:])
        axes = tuple(range(-dims, 0))
        whole = normalised(x, axes, centred=centred)
        for operands, expected in (
            ({"x": x}, whole),
            ({"x": x, "bias": bias}, whole + bias),
            ({"x": x, "weight": weight, "bias": bias}, whole * weight + bias),
        ):
            op = Normalize(dims, centred=centred, eps=EPS)
            try:
                got = run(opened(name), op, operands, kernel)
            except UnsupportedOpError:  # the fused ones take weights that lie together
                assert kernel.startswith("rows") and dims > 1
                continue
            assert oracle.error(got, expected) <= TOLERANCE, (shape, dims, list(operands))
            ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_groups_of_channels(opened, rng, name, kernel) -> None:
    for shape, groups in (
        ((2, 6, 5, 7), 3),
        ((2, 6, 5, 7), 1),
        ((2, 6, 4, 4), 0),
        ((3, 12, 3), 4),
        ((5, 8), 2),
        ((2, 3, 17, 19), 0),
        ((2, 20, 9, 7), 5),
        ((3, 6, 20, 26), 2),
        ((1, 4, 67, 127), 1),
    ):
        x, weight, bias = rng(shape) - 2, rng(shape[1:2]), rng(shape[1:2])
        op = Normalize(groups=groups, eps=EPS)
        spread = (-1, *(1,) * (len(shape) - 2))
        expected = by_groups(x, groups or shape[1])
        if kernel.startswith("groups") and x[0].size // (groups or shape[1]) % 4:
            with pytest.raises(UnsupportedOpError, match="WIDE is 0, it needs 1"):
                run(opened(name), op, {"x": x}, kernel)
            continue
        got = run(opened(name), op, {"x": x}, kernel)
        assert oracle.error(got, expected) <= TOLERANCE, (shape, groups)
        got = run(opened(name), op, {"x": x, "weight": weight, "bias": bias}, kernel)
        expected = expected * weight.reshape(spread) + bias.reshape(spread)
        assert oracle.error(got, expected) <= TOLERANCE, (shape, groups)


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_what_is_not_finite_spoils_its_group_only(opened, rng, name, kernel) -> None:
    x = rng((2, 6, 10, 26))
    x[0, 3, 7, 1], x[1, 0, 0, 0] = np.nan, np.inf
    got = run(opened(name), Normalize(groups=3, eps=EPS), {"x": x}, kernel)
    spoiled = np.zeros(x.shape, bool)
    spoiled[0, 2:4] = spoiled[1, :2] = True
    assert (np.isnan(got) == spoiled).all()
    assert oracle.error(got[~spoiled], by_groups(x, 3)[~spoiled]) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_groups_of_a_large_mean(opened, rng, name, kernel) -> None:
    x = 1000 + rng((2, 6, 10, 26))
    got = run(opened(name), Normalize(groups=2, eps=EPS), {"x": x}, kernel)
    most = 1e-4 if kernel.startswith("groups") else 1e-3  # of x 6e-8 is rounded off
    assert oracle.error(got, by_groups(x, 2)) <= most


@pytest.mark.parametrize(("name", "kernel"), ROWS)
def test_what_is_not_finite_spoils_its_row_only(opened, rng, name, kernel) -> None:
    x = rng((4, 20))
    x[1, 3], x[2, 19] = np.nan, np.inf
    got = run(opened(name), Normalize(1, eps=EPS), {"x": x}, kernel)
    assert np.isnan(got[1:3]).all()
    assert oracle.error(got[[0, 3]], normalised(x[[0, 3]], 1)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel"), ROWS)
def test_equal_numbers_are_their_mean_whatever_their_size(opened, name, kernel) -> None:
    """Also where the square of a mean is infinite in float32."""
    x = np.full((3, 64), 1e20, np.float32)
    got = run(opened(name), Normalize(1, eps=EPS), {"x": x}, kernel)
    assert (got == 0).all()


def test_long_rows_and_many(backend, rng) -> None:
    for shape in ((2, 65_537), (3, 65_536), (66_001, 12)):
        x, op = rng(shape), Normalize(1, eps=EPS)
        got = run(backend, op, {"x": x}, None)
        assert oracle.error(got, normalised(x, 1)) <= TOLERANCE


def test_faults() -> None:
    for make, text in (
        (lambda: Normalize(), "either dims or groups"),
        (lambda: Normalize(1, groups=1), "either dims or groups"),
        (lambda: Normalize(0), "dims must be an integer of at least 1"),
        (lambda: Normalize(1, eps=-1.0), "eps must be"),
        (lambda: Normalize(3).shape_of({"x": (2, 3)}), "no 3 dimensions"),
        (lambda: Normalize(groups=2).shape_of({"x": (2, 3)}), "3 channels are not 2 groups"),
        (lambda: Normalize(groups=1).shape_of({"x": (2,)}), r"shape \(n, c, ...\)"),
        (lambda: Normalize(1).shape_of({"x": (2, 3), "bias": (2,)}), "bias must have shape"),
    ):
        with pytest.raises(ShapeError, match=text):
            make()

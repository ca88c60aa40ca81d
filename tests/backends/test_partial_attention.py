"""Attention to ranges of keys, and the ranges joined, against their definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import AttentionSum, PartialAttention
from glnn.graph.operators.attention import StridedView, Windows
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.test_attention import dense, exact, given, sizes_for

LEAST = float(np.finfo(np.float32).min)


def ranges(q, k, v, scale, added, parts):
    """Sums of values, greatest scores and sums of powers of each range, in float64."""
    scores = scale * np.einsum("bhqd,bhkd->bqhk", q.astype(float), k.astype(float)) + added
    size = -(-k.shape[2] // parts)
    found = []
    for begin in range(0, parts * size, size):
        some, values = scores[..., begin : begin + size], v[:, :, begin : begin + size]
        most = some.max(-1, initial=LEAST)
        powers = np.exp(some - most[..., None])
        sums = np.einsum("bqhk,bhkd->bqhd", powers, values.astype(float))
        found.append((sums, most, powers.sum(-1)))
    return tuple(np.stack(each, 3) for each in zip(*found, strict=True))


@pytest.mark.parametrize(("name", "kernel"), kernels("partial_attention"))
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_any_sizes(opened, rng, name, kernel, parts) -> None:
    for sizes in sizes_for("flash_split"):
        batch, heads, queries, keys, _, columns = sizes
        operands, views = given(rng, sizes)
        added = 0.0
        if "masked" in kernel:
            operands["mask"] = mask = 4 * rng((batch, queries, keys))
            added, views = mask[:, :, None], (*views, StridedView(0, queries * keys, 0, keys))
        op = PartialAttention(*sizes, views, 0.7, parts=parts)
        got = run(opened(name), op, operands, kernel)
        got = got.reshape(batch, queries, heads, parts, columns + 4)
        sums, most, powers = ranges(*(operands[one] for one in "qkv"), 0.7, added, parts)
        assert oracle.error(got[..., :columns], sums) <= TOLERANCE, sizes
        assert oracle.error(got[..., columns + 1], powers) <= TOLERANCE, sizes
        keyed = powers > 0
        assert (got[..., columns][~keyed] == np.float32(LEAST)).all(), sizes
        assert oracle.error(got[..., columns][keyed], most[keyed]) <= TOLERANCE, sizes
        assert (got[..., columns + 2] == 1).all() and (got[..., columns + 3] == 0).all()


@pytest.mark.parametrize("zeros", [False, True])
def test_the_reference_joined_is_the_whole(rng, zeros) -> None:
    sizes = (1, 2, 6, 70, 4, 8)
    operands, views = given(rng, sizes)
    mask = np.zeros((6, 70), np.float32)
    mask[0, 1:] = -np.inf
    mask[1], mask[2, 66], mask[3, 3], mask[4] = -np.inf, np.nan, np.inf, LEAST
    operands["mask"] = mask
    views = (*views, StridedView(0, 0, 0, 70))
    parts = PartialAttention(*sizes, views, 0.7, parts=4, zeros=zeros)
    found = parts.compute({name: one.astype(float) for name, one in operands.items()})
    got = AttentionSum(2, 8, 4, zeros).compute({"x": found}).reshape(6, 2, 8)
    expected = exact(*(operands[one] for one in "qkv"), 0.7, mask)[0].swapaxes(0, 1)
    sound = [0, 4, 5]
    np.testing.assert_allclose(got[sound], expected[sound], 1e-12, 1e-12)
    assert (got[1:4] == 0).all() if zeros else np.isnan(got[1:4]).all()


def test_wrong_attributes() -> None:
    sizes, views = (1, 1, 3, 3, 4, 4), (dense(1, 3, 4),) * 3
    with pytest.raises(ShapeError, match="parts must be 1 or more, got 0"):
        PartialAttention(*sizes, views, parts=0)
    with pytest.raises(ShapeError, match=r"got order \(0, 1, 2\)"):
        PartialAttention(*sizes, views, order=(0, 1, 2))
    with pytest.raises(ShapeError, match="no windows"):
        PartialAttention(*sizes, views, windows=Windows(1, 1, 1, 3))

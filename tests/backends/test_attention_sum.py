"""What parts of attention found, joined, against its definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import AttentionParts, AttentionSum, CachedAttention
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run
from tests.backends.tokens import CONTEXT, places_of


@pytest.mark.parametrize(("name", "kernel"), kernels("attention_sum"))
@pytest.mark.parametrize(
    ("tokens", "heads", "width"), [(1, 1, 4), (3, 5, 12), (2, 3, 512), (2, 3, 516), (1, 2, 1156)]
)
@pytest.mark.parametrize("parts", [1, 3, 127, 129])
def test_sums(opened, rng, name, kernel, tokens, heads, width, parts) -> None:
    x = rng((tokens, heads, parts, width + 4))
    x[..., width] *= 20  # greatest scores far from each other
    x[..., width + 1] = np.abs(x[..., width + 1]) + 1
    x[..., width + 2] = 1
    x[-1, :, parts // 2 + 1 :, : width + 2] = 0
    x[-1, :, parts // 2 + 1 :, width] = -3e38
    x[0, 0, :, width + 2] = 0  # no place
    op = AttentionSum(heads, width, parts)
    got = run(opened(name), op, {"x": x.reshape(tokens, -1)}, kernel)
    wide = x.astype(np.float64)
    factors = np.exp(wide[..., width] - wide[..., width].max(-1, keepdims=True))
    sums = (factors[..., None] * wide[..., :width]).sum(2)
    expected = sums / (factors * wide[..., width + 1]).sum(-1)[..., None]
    expected[0, 0] = 0
    assert oracle.error(got.reshape(expected.shape), expected) <= TOLERANCE


def test_parts_and_their_sum_are_the_whole(rng) -> None:
    x, cache = rng((4, 24)), rng((2 * CONTEXT, 16))
    operands = {"x": x, "cache": cache, "places": places_of(4, 2 * CONTEXT)}
    whole = CachedAttention(3, 1, 8, CONTEXT, 0.3)
    parts = AttentionParts(3, 1, 8, CONTEXT, 0.3, keys=5)
    found = AttentionSum(3, 8, parts.parts).compute({"x": parts.compute(operands)})
    np.testing.assert_allclose(found, whole.compute(operands), 1e-4, 1e-5)


def test_wrong_attributes() -> None:
    with pytest.raises(ShapeError, match="heads, width and parts must be 1 or more, got 1, 4 and"):
        AttentionSum(1, 4, 0)
    with pytest.raises(ShapeError, match=r"x must be \(tokens, 16\), got \(3, 15\)"):
        AttentionSum(1, 4, 2).shape_of({"x": (3, 15)})

"""Sums of channels from those of parts of the pixels: by every kernel, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError
from glnn.graph.operators import MergeChannelSums
from tests.backends.harness import kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("merge_channel_sums"))
@pytest.mark.parametrize("parts", [1, 2, 5, 33, 128])
def test_parts_are_merged(opened, rng, name, kernel, parts) -> None:
    """Into what float64 gives of all pixels at once, far from 0 as well."""
    pixels = 100 + rng((parts, 12, 192)).astype(np.float64)
    moments = np.stack([pixels.mean(1), pixels.var(1)], 1).astype(np.float32)
    got = run(opened(name), MergeChannelSums(moments=True), {"x": moments}, kernel)
    flat = pixels.reshape(-1, 192)
    np.testing.assert_allclose(got, [flat.mean(0), flat.var(0)], rtol=3e-5)
    got = run(opened(name), MergeChannelSums(moments=False), {"x": moments}, kernel)
    np.testing.assert_allclose(got, moments.astype(np.float64).sum(0), rtol=1e-6)
    moments[-1, 0, 3] = np.inf
    got = run(opened(name), MergeChannelSums(moments=True), {"x": moments}, kernel)
    assert np.isnan(got[:, 3]).all() and np.isfinite(np.delete(got, 3, 1)).all()


@pytest.mark.parametrize("x", [(2, 3, 64), (1, 2, 5), (3, 2, 65)])
def test_a_part_has_two_rows_of_whole_64s(x) -> None:
    with pytest.raises(ShapeError, match=rf"two rows of whole 64s a part, got \({x[0]}, {x[1]}, "):
        MergeChannelSums(moments=True).shape_of({"x": x})

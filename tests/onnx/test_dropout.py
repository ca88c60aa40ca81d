"""Dropout in training, on the host. Its numbers are random: what they are like is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn import onnx_backend
from glnn.errors import ShapeError
from tests.onnx.runtime import node_model

TRAINING = np.array(True)


def run(*operands: Any, **attributes: Any) -> list[Any]:
    model = node_model(
        "Dropout", operands, 2, kinds=[operands[0].dtype, bool], opset=13, **attributes
    )
    given = [one for one in operands if one is not None]
    return list(onnx_backend.prepare(model, backend="cpu").run(given))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("ratio", [None, 0.5, 0.25])
def test_a_share_is_dropped_and_the_rest_scaled(ratio: float | None, dtype: type) -> None:
    """Half of them where no ratio is given."""
    share = 0.5 if ratio is None else ratio
    x = np.random.default_rng(1).uniform(1, 2, (100, 100)).astype(dtype)
    y, mask = run(x, None if ratio is None else np.array(ratio, np.float32), TRAINING, seed=3)
    assert y.dtype == dtype and mask.dtype == bool
    assert mask.mean() == pytest.approx(1 - share, abs=0.02)  # four standard deviations
    scaled = x.astype(np.float64) / (1 - share)
    np.testing.assert_allclose(y.astype(np.float64), np.where(mask, scaled, 0), rtol=1e-3)
    again, _ = run(x, None if ratio is None else np.array(ratio, np.float32), TRAINING, seed=3)
    np.testing.assert_array_equal(again, y)


def test_nothing_is_dropped_by_a_ratio_of_0_or_without_training() -> None:
    x = np.arange(12, dtype=np.float32)
    for operands in ((x, np.float32(0), TRAINING), (x, None, np.array(False)), (x, np.float32(1))):
        y, mask = run(*(None if one is None else np.asarray(one) for one in operands))
        np.testing.assert_array_equal(y, x)
        assert mask.all()


def test_ratios_that_nothing_can_be_scaled_by() -> None:
    with pytest.raises(ShapeError, match=r"ratio must be from 0 to less than 1, got 1\.5"):
        run(np.ones(3, np.float32), np.array(1.5, np.float32), TRAINING)


def test_seeds_below_0() -> None:
    x = np.ones(1000, np.float32)
    y, mask = run(x, None, TRAINING, seed=-1)
    assert 400 < mask.sum() < 600
    np.testing.assert_array_equal(run(x, None, TRAINING, seed=-1)[0], y)

"""Dropout in training: how much it drops, and that the same is dropped everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.threefry import uniform
from glnn.layers import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    FeatureAlphaDropout,
    Linear,
)
from glnn.model import Model
from glnn.training import SGD, MSELoss, training_step
from tests.training.steps import ran

SHAPE = (7, 3, 129)
X = np.random.default_rng(3).standard_normal(SHAPE, np.float32)


def test_what_is_dropped(name) -> None:
    model = Model.sequential([Linear(129, 129, bias=False, seed=1), Dropout(0.25)], SHAPE[1:])
    step = training_step(model, MSELoss(reduction="sum"), SGD(0.5), 7, seed=5)
    states = {"passes": np.array(3, np.int32)}
    got = ran(step, states, name, input=X, target=np.zeros(SHAPE, np.float32))
    places = np.arange(3 * 129).reshape(1, 3, 129)
    drawn = uniform(places, 4096 * np.arange(7).reshape(-1, 1, 1), np.array(5), np.array(3))
    left = np.where(drawn < 0.25, 0, 1 / 0.75)
    assert abs((left == 0).mean() - 0.25) < 5 * (0.25 * 0.75 / left.size) ** 0.5
    w = model.parameters()["linear1.weight"].astype(np.float64)
    y = X.astype(np.float64) @ w.T * left
    assert got["loss"] == pytest.approx((y**2).sum(), rel=1e-5)
    by = (2 * y * left).reshape(-1, 129)
    expected = w - 0.5 * by.T @ X.reshape(-1, 129)
    np.testing.assert_allclose(got["linear1.weight"], expected, atol=2e-3, rtol=1e-4)
    assert got["passes"] == 4


@pytest.mark.parametrize("layer", [Dropout1d(0.4), AlphaDropout(0.3), FeatureAlphaDropout(0.4)])
def test_dropouts_of_channels_and_for_selu(layer: Dropout) -> None:
    """By what the papers say, Klambauer's with PyTorch's constant; means and variances stay."""
    model = Model.sequential([Linear(129, 129, bias=False, seed=1), layer], SHAPE[1:])
    step = training_step(model, MSELoss(reduction="sum"), SGD(0.0), 7, seed=5)
    states = {"passes": np.array(3, np.int32)}
    got = ran(step, states, "cpu", input=X, target=np.zeros(SHAPE, np.float32))
    whole = type(layer) is not AlphaDropout
    places = np.arange(3).reshape(1, 3, 1) if whole else np.arange(3 * 129).reshape(1, 3, 129)
    drawn = uniform(places, 4096 * np.arange(7).reshape(-1, 1, 1), np.array(5), np.array(3))
    y, p = X.astype(np.float64) @ model.parameters()["linear1.weight"].astype(np.float64).T, layer.p
    if isinstance(layer, AlphaDropout):
        least = -1.7580993408473766
        scale = (1 - p + p * (1 - p) * least**2) ** -0.5
        y = scale * np.where(drawn < p, least, y) - scale * p * least
    else:
        y = np.where(drawn < p, 0, y / (1 - p))
    assert got["loss"] == pytest.approx((y**2).sum(), rel=1e-5)


def losses(name: str, seed: int, batches: int = 2, layers: int = 1, p: float = 0.5) -> list[float]:
    """The losses of some batches at a rate of 0, which tell what was dropped."""
    drop = [Dropout(p) for _ in range(layers)]
    model = Model.sequential([Linear(129, 5, seed=1), *drop], (129,))
    step = training_step(model, MSELoss(reduction="sum"), SGD(0.0), 21, seed=seed)
    states, found = {}, []
    for _ in range(batches):
        x, target = X.reshape(21, 129), np.zeros((21, 5), np.float32)
        states = ran(step, states, name, input=x, target=target)
        found.append(float(states["loss"]))
    return found


def test_seed_batch_and_layer_tell_what_is_dropped() -> None:
    first = losses("cpu", 1)
    assert first == losses("cpu", 1) and first[0] != first[1]
    assert losses("cpu", 2)[0] not in first
    assert losses("cpu", 2**32 + 1) == first  # 32 bits of the seed count
    assert losses("cpu", 1, layers=2)[0] not in first
    for other in ("compute", "feedback"):
        assert losses(other, 1) == pytest.approx(first, rel=1e-5)


def test_nothing_and_everything_is_dropped(name) -> None:
    everything, nothing = losses(name, 1, 1, p=1.0), losses(name, 1, 1, p=0.0)
    assert everything == [0.0] and nothing[0] > 1

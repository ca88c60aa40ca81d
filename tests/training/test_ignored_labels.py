"""Means over batches none or few of whose labels count: weights, losses, parts of a batch."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from glnn.layers import Linear
from glnn.model import Model
from glnn.training import SGD, CrossEntropyLoss, Trainer

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
WEIGHT = (0.1, 1.0, 5.0)
LABELS = {
    "ignored": (np.array([-100, -100, -100, 0, 1, 2]), None),
    "class weights": (np.array([0, 0, 0, 0, 1, 2]), WEIGHT),
    "both": (np.array([-100, 0, 2, -100, 1, -100]), WEIGHT),
}


def mean_and_gradient(weight, bias, x, labels, weights, smoothing=0.0):
    """The mean cross-entropy and its gradient by the weight, in float64 loops."""
    total, count, gradient = 0.0, 0.0, np.zeros(weight.shape)
    for sample, label in zip(x.astype("f8"), labels):
        if label == -100:
            continue
        scores = weight.astype("f8") @ sample + bias.astype("f8")
        logs = scores - np.log(np.exp(scores).sum())
        factors = np.ones(3) if weights is None else np.array(weights)
        share = factors * smoothing / 3
        share[label] += factors[label] * (1 - smoothing)
        total -= (share * logs).sum()
        count += factors[label]
        gradient += np.outer(share.sum() * np.exp(logs) - share, sample)
    return total / count, gradient / count


def trained(loss: CrossEntropyLoss, labels, backend: str, batch: int = 6, **more):
    layer = Linear(5, 3, seed=1)
    before = layer.weight.copy(), layer.bias.copy()
    model = Model.sequential([layer], (5,))
    trainer = Trainer(model, loss, SGD(lr=0.1), backend=backend)
    trainer.fit(X, labels, batch_size=batch, shuffle=False, progress=False, **more)
    return trainer, before, layer.weight


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
@pytest.mark.parametrize("case", LABELS)
def test_parts_of_a_batch_are_as_the_whole(name, case, parts, smoothing) -> None:
    labels, weights = LABELS[case]
    loss = CrossEntropyLoss(weight=weights, label_smoothing=smoothing)
    trainer, before, after = trained(loss, labels, name, accumulate=parts)
    mean, gradient = mean_and_gradient(*before, X, labels, weights, smoothing)
    assert trainer.history[-1].loss == pytest.approx(mean, rel=1e-5)
    np.testing.assert_allclose(after, before[0] - 0.1 * gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "weights"), [([-100] * 6, None), ([-100] * 6, WEIGHT), ([0] * 6, (0.0, 1.0, 1.0))]
)
@pytest.mark.parametrize("parts", [1, 2])
def test_weights_stay_where_no_label_counts(name, labels, weights, parts) -> None:
    """The loss of such a batch is NaN, as PyTorch's."""
    loss = CrossEntropyLoss(weight=weights)
    trainer, before, after = trained(loss, np.array(labels), name, accumulate=parts)
    np.testing.assert_array_equal(after, before[0])
    assert isnan(trainer.loss) and isnan(trainer.history[-1].loss)
    trainer.fit(X, np.arange(6) % 3, progress=False)
    assert np.isfinite(trainer.weights()["linear1.weight"]).all()
    assert np.isfinite(trainer.history[-1].loss)


def test_the_loss_of_an_epoch_is_the_mean_over_its_labels() -> None:
    """A batch without labels adds nothing to it; how samples are batched does not matter."""
    labels, weights = LABELS["both"]
    for batch in (1, 2, 4, 6):
        layer = Linear(5, 3, seed=1)
        loss = CrossEntropyLoss(weight=weights)
        trainer = Trainer(Model.sequential([layer], (5,)), loss, SGD(lr=0.1), backend="cpu")
        expected = mean_and_gradient(layer.weight, layer.bias, X, labels, weights)[0]
        assert trainer.evaluate(X, labels, batch).loss == pytest.approx(expected, rel=1e-5)

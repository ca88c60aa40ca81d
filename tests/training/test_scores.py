"""A model that ends in a softmax is trained by the scores that this is of."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import Array
from glnn.layers import Layer, Linear, LogSoftmax, Softmax
from glnn.model import Model
from glnn.training import SGD, CrossEntropyLoss, Loss, MSELoss, Trainer

X = np.random.default_rng(0).standard_normal((6, 4), np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def weights(last: list[Layer], loss: Loss, y: Array) -> Array:
    """Those of a product before the layers `last`, after two steps."""
    linear = Linear(4, 3, seed=1)
    trainer = Trainer(Model.sequential([linear, *last], (4,)), loss, SGD(lr=0.5), "cpu")
    for _ in range(2):
        trainer.step(X, y)
    return trainer.model.parameters()["linear1.weight"]


@pytest.mark.parametrize("last", [Softmax(1), LogSoftmax(-1)], ids=["softmax", "log_softmax"])
def test_of_classes(last: Layer) -> None:
    expected = weights([], CrossEntropyLoss(), LABELS)
    assert np.array_equal(weights([last], CrossEntropyLoss(), LABELS), expected)


def test_not_of_other_axes_or_losses() -> None:
    plain = weights([], CrossEntropyLoss(), LABELS)
    assert not np.allclose(weights([Softmax(0)], CrossEntropyLoss(), LABELS), plain)
    wanted = np.eye(3, dtype=np.float32)[LABELS]
    plain = weights([], MSELoss(), wanted)
    assert not np.allclose(weights([Softmax(1)], MSELoss(), wanted), plain)

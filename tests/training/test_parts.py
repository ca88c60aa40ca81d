"""EpochBatches that are computed in parts: where that is asked for, and where memory is short."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.errors import LimitError
from glnn.training import SGD, Callback, Trainer


@pytest.mark.parametrize("parts", [2, 3, 50, 1000])
def test_parts_are_as_the_whole(name, mlp, samples, parts) -> None:
    x, y = samples
    whole, other = (Trainer(mlp(), optimizer=SGD(0.1), backend=name) for _ in range(2))
    expected = whole.fit(x, y, 2, 20)
    found = other.fit(x, y, 2, 20, accumulate=parts)  # the last batch has 10
    assert other.steps == whole.steps == 6
    for key, array in whole.weights().items():
        assert np.allclose(other.weights()[key], array, atol=1e-6)
    assert found.column("loss") == pytest.approx(expected.column("loss"), rel=1e-5)
    assert found.column("accuracy") == expected.column("accuracy")


def test_an_error_between_parts_leaves_no_gradients(mlp, samples, monkeypatch) -> None:
    x, y = samples
    one, other = (Trainer(mlp(), optimizer=SGD(0.1), backend="cpu") for _ in range(2))
    one.fit(x, y, accumulate=2)  # plans are there now
    other.fit(x, y, accumulate=2)
    (perform,) = one._steps._runners.values()
    wrong = {"input": x, "target": y.astype(np.int32)[:30]}
    with pytest.raises(Exception):  # noqa: B017  # whatever comes of a part that is too small
        perform(wrong)
    assert one._steps.states.read(["accumulated"])["accumulated"] == 0
    for trainer in (one, other):
        trainer.fit(x, y, accumulate=2)
    for key, array in other.weights().items():
        assert np.array_equal(one.weights()[key], array)


def test_short_memory_makes_parts(gpu, mlp, rng, monkeypatch, caplog) -> None:
    """A batch of 4096 keeps 2 x 4096 x 7 floats and more, 229 KB."""
    x, y = rng((4096, 5)), np.arange(4096) % 3
    found = []
    for memory in ("", "150K"):
        monkeypatch.setenv("GLNN_MEMORY", memory)
        trainer = Trainer(mlp(), optimizer=SGD(0.1), backend=gpu)
        with caplog.at_level(logging.INFO, "glnn.training"):
            trainer.step(x, y)
            trainer.fit(x, y, 1, 4096, validation=(x, y))
        found.append((trainer.weights(), trainer.history[0]))
    said = [one.getMessage() for one in caplog.records if "in parts of" in one.getMessage()]
    assert "batch of 4096 in parts of 2048 samples: the model needs" in said[0]
    (weights, row), (others, other) = found
    for key, array in weights.items():
        assert np.allclose(others[key], array, atol=1e-5)
    assert other.validation_accuracy == pytest.approx(row.validation_accuracy, abs=1e-3)
    assert other.loss == pytest.approx(row.loss, rel=1e-4)


def test_memory_that_is_too_short_for_one(gpu, mlp, samples, monkeypatch) -> None:
    trainer = Trainer(mlp(), backend=gpu)
    monkeypatch.setenv("GLNN_MEMORY", "1K")
    with pytest.raises(LimitError, match="of device memory"):
        trainer.step(*samples)
    monkeypatch.delenv("GLNN_MEMORY")
    trainer.step(*samples)
    assert trainer.steps == 1


def test_plans_of_other_batches_give_way(gpu, mlp, samples, monkeypatch) -> None:
    """Where a plan does not fit beside those that are kept, these are dropped before it is cut."""
    x, y = samples
    trainer = Trainer(mlp(), backend=gpu)
    for count in range(1, 12):
        trainer.step(x[:count], y[:count])
    assert len(trainer._steps._runners) == 8  # those of the last ones
    kinds: list[str] = []
    make = trainer._steps._compile_parts

    def refusing(asked, size):
        kinds.append(f"{len(trainer._steps._runners)} kept, {size}")
        if trainer._steps._runners:
            raise LimitError("no room")
        return make(asked, size)

    monkeypatch.setattr(trainer._steps, "_compile_parts", refusing)
    trainer.step(x, y)
    assert kinds == ["8 kept, 50", "0 kept, 50"] and trainer.steps == 12


class Counting(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_end(self, trainer) -> None:
        self.steps.append(trainer.steps)


def test_parts_are_one_step(mlp, samples) -> None:
    counting = Counting()
    open_backend("cpu")
    Trainer(mlp(), backend="cpu").fit(*samples, 1, 20, accumulate=4, callbacks=[counting])
    assert counting.steps == [1, 2, 3]

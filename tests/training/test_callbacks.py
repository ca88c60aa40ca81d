"""What is called when, and when early stopping stops."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import GlnnError, ModelError
from glnn.training import SGD, Callback, EarlyStopping, Trainer
from glnn.training.history import History, Row


class Noting(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_begin(self, trainer) -> None:
        self.calls.append("begin")

    def on_step_end(self, trainer) -> None:
        self.calls.append(f"step {trainer.steps}")

    def on_epoch_end(self, trainer) -> None:
        self.calls.append(f"epoch {trainer.history[-1].epoch}")

    def on_end(self, trainer, interrupted) -> None:
        self.calls.append(f"end {interrupted}")


class Stopping(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer) -> None:
        if trainer.steps == self.step:
            trainer.stop()


def test_what_is_called_when(mlp, samples) -> None:
    note = Noting()
    Trainer(mlp(), optimizer=SGD(), backend="cpu").fit(*samples, 2, 25, callbacks=[note])
    assert note.calls == [
        *("begin", "step 1", "step 2", "epoch 1", "step 3", "step 4", "epoch 2", "end False")
    ]


@pytest.mark.parametrize(
    ("step", "last"), [(1, ["step 1"]), (2, ["step 2", "epoch 1"]), (3, ["epoch 1", "step 3"])]
)
def test_stop_ends_after_the_step(mlp, samples, step, last) -> None:
    note = Noting()
    trainer = Trainer(mlp(), optimizer=SGD(), backend="cpu")
    trainer.fit(*samples, 2, 25, callbacks=[note, Stopping(step)])
    assert note.calls[-1] == "end False" and note.calls[-1 - len(last) : -1] == last
    trainer.fit(*samples, 1, 25)  # which is another one
    assert trainer.steps == step + 2


class Told:
    """A trainer of which only the numbers are asked."""

    def __init__(self) -> None:
        self.history, self.stopped, self.assigned = History(), False, None

    def epoch(self, callback: EarlyStopping, loss: float, accuracy: float | None = None) -> bool:
        row = Row(len(self.history) + 1, 0, loss, accuracy, loss, accuracy, 0.1, 0.0)
        self.history = History((*self.history.rows, row))
        callback.on_epoch_end(self)
        return self.stopped

    def weights(self) -> dict[str, np.ndarray]:
        return {"w": np.array(len(self.history))}

    def assign(self, weights) -> None:
        self.assigned = int(weights["w"])

    def stop(self) -> None:
        self.stopped = True


def test_early_stopping_waits_for_better_losses() -> None:
    trainer, callback = Told(), EarlyStopping(patience=2, min_delta=0.1)
    losses = [1.0, 0.8, 0.75, 0.6, 0.55, float("nan")]
    assert [trainer.epoch(callback, loss) for loss in losses] == [False] * 5 + [True]
    assert callback.best == 0.6
    callback.on_end(trainer, interrupted=True)
    assert trainer.assigned is None  # who presses Ctrl-C gets what is there
    callback.on_end(trainer, interrupted=False)
    assert trainer.assigned == 4 and callback.best is None


def test_early_stopping_waits_for_better_accuracies() -> None:
    trainer, callback = Told(), EarlyStopping("accuracy", 1, restore_best=False)
    assert [trainer.epoch(callback, 1.0, a) for a in (0.1, 0.5, 0.5)] == [False, False, True]
    assert callback.best == 0.5
    callback.on_end(trainer, interrupted=False)
    assert trainer.assigned is None


def test_early_stopping_has_a_state() -> None:
    trainer, callback, other = Told(), EarlyStopping(patience=2), EarlyStopping(patience=2)
    for loss in (1.0, 0.5, 0.7):
        trainer.epoch(callback, loss)
    other.restore(callback.state())
    assert other.best == 0.5 and not trainer.stopped
    assert trainer.epoch(other, 0.6)
    for wrong in (
        {"best": np.zeros(2)},
        {"waited": np.array(np.nan)},
        {"waited": np.zeros(1, int)},
    ):
        with pytest.raises(ModelError, match="has nothing of EarlyStopping"):
            other.restore({"best": np.array(1.0), "waited": np.array(1)} | wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": "val_loss"}, "monitor must be one of loss, accuracy, validation_loss, "),
        ({"patience": 0}, "patience must be a positive int, got 0"),
        ({"min_delta": -1}, "min_delta must be a number of at least 0, got -1"),
    ],
)
def test_early_stopping_refuses(arguments, message) -> None:
    with pytest.raises(GlnnError, match=message):
        EarlyStopping(**arguments)


def test_early_stopping_needs_the_number(mlp, samples) -> None:
    with pytest.raises(GlnnError, match="monitor='validation_loss' needs validation data"):
        Trainer(mlp(), optimizer=SGD(), backend="cpu").fit(*samples, callbacks=[EarlyStopping()])

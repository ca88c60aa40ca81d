"""`backend="auto"` in training: each backend is timed at the first batch, the fastest trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.backends.opening import _shared
from glnn.errors import DeviceError
from glnn.layers import BatchNorm1d, Linear
from glnn.model import Model
from glnn.training import SGD, CrossEntropyLoss, Trainer
from glnn.training.step_runner import StepRunner, choose_backend

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.arange(12) % 3


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No backend is named, none is known, and two or more open."""
    monkeypatch.delenv("GLNN_BACKEND")
    _shared.backends.clear()
    try:
        open_backend("feedback")
    except DeviceError as error:
        pytest.skip(str(error))
    yield
    _shared.backends.clear()


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The backends of all steps; by the clock a warm one takes the least on feedback."""
    names: list[str] = []
    seconds = {"cpu": 0.2, "feedback": 0.1, "compute": 0.5}
    now, perform = [0.0], StepRunner.perform

    def performed(self: StepRunner, asked: object, batch: object) -> None:
        name = self.backend.name
        now[0] += seconds[name] + (8.0 if name == "feedback" and name not in names else 0.0)
        names.append(name)
        perform(self, asked, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(StepRunner, "perform", performed)
    monkeypatch.setattr(choose_backend, "__defaults__", (lambda: now[0],))
    return names


def trainer(backend: str = "auto") -> Trainer:
    layers = [Linear(5, 4, seed=1), BatchNorm1d(4), Linear(4, 3, seed=2)]
    return Trainer(Model.sequential(layers, (5,)), CrossEntropyLoss(), SGD(lr=0.1), backend)


def test_the_fastest_trains_and_timing_leaves_no_trace(trained_on: list[str]) -> None:
    """The weights are bit for bit those of a trainer whose backend was named."""
    chosen, named = trainer(), trainer("feedback")
    assert chosen.choice is None
    for one in (chosen, named):
        one.fit(X, Y, epochs=2, batch_size=5, progress=False)
    assert chosen.choice is not None and chosen.choice.backend == chosen.backend.name == "feedback"
    assert {"cpu", "feedback"} <= set(trained_on)
    assert chosen.steps == named.steps == 6
    expected = named.weights()
    for name, weight in chosen.weights().items():
        np.testing.assert_array_equal(weight, expected[name], err_msg=name)
    assert chosen.history[-1].loss == named.history[-1].loss


def test_step_chooses_and_another_trainer_does_not_measure(trained_on: list[str]) -> None:
    first, second = trainer(), trainer()
    first.step(X, Y)
    count = len(trained_on)
    second.step(X, Y)
    assert trained_on[count:] == ["feedback"]
    assert second.choice is not None and second.choice.remembered
    np.testing.assert_array_equal(
        first.weights()["linear1.weight"], second.weights()["linear1.weight"]
    )


def test_what_was_assigned_before_the_first_step_is_trained(trained_on: list[str]) -> None:
    chosen, named = trainer(), trainer("feedback")
    for one in (chosen, named):
        one.assign({"linear1.bias": np.full(4, 7, np.float32)})
        one.step(X, Y)
    assert chosen.backend.name == "feedback"
    for name, weight in chosen.weights().items():
        np.testing.assert_array_equal(weight, named.weights()[name], err_msg=name)


def test_a_checkpoint_goes_on_where_it_was_written(trained_on: list[str], tmp_path: Path) -> None:
    path = tmp_path / "net.npz"
    trainer("cpu").fit(X, Y, epochs=1, checkpoint=path, progress=False)
    resumed = trainer()
    resumed.fit(X, Y, epochs=2, checkpoint=path, resume=True, progress=False)
    assert resumed.backend.name == "cpu" and set(trained_on) == {"cpu"}

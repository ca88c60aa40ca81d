"""Training that goes on from a checkpoint is the training that was never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from glnn.errors import GlnnError, ModelError
from glnn.layers import BatchNorm2d, Conv2d, Dropout, Flatten, Linear, ReLU
from glnn.model import Model
from glnn.training import (
    SGD,
    Adam,
    Callback,
    Checkpoint,
    CrossEntropyLoss,
    EarlyStopping,
    MSELoss,
    Trainer,
)
from glnn.training.checkpoint import read

SECONDS = "seconds"


def small() -> Model:
    """With all that has a state: weights, running statistics, dropout's place among its numbers."""
    layers = [
        *(Conv2d(1, 2, 3, padding=1, seed=1), BatchNorm2d(2), ReLU(), Flatten()),
        *(Dropout(0.3), Linear(50, 3, seed=2)),
    ]
    return Model.sequential(layers, (1, 5, 5), name="small")


def images() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    return generator.standard_normal((27, 1, 5, 5), dtype=np.float32), np.arange(27) % 3


class KilledError(Exception):
    pass


class Killing(Callback):
    """Ends the fit after so many steps with an error, as if the process had been killed."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer) -> None:
        if trainer.steps == self.step:
            raise KilledError


class Stopping(Killing):
    """Ends the fit after so many steps."""

    def on_step_end(self, trainer) -> None:
        if trainer.steps == self.step:
            trainer.stop()


def told(trainer: Trainer) -> list[object]:
    """What training was, but for the time it took."""
    return [replace(row, seconds=0.0) for row in trainer.history]


def saved(path) -> dict[str, bytes]:
    """The states in a checkpoint."""
    return {name: array.tobytes() for name, array in read(path).states.items()}


@pytest.mark.parametrize("step", [2, 7, 9])
def test_goes_on_bit_for_bit(name, tmp_path, step) -> None:
    """Six steps an epoch, a checkpoint after each second one: killed before the first of them, with
    the last one at the end of an epoch, and with the last one within an epoch."""
    x, y = images()
    fit = {"epochs": 3, "batch_size": 5, "validation": (x[:9], y[:9]), "every": 2}
    whole = Trainer(small(), backend=name, seed=9)
    whole.fit(x, y, checkpoint=tmp_path / "whole.npz", **fit)
    path = tmp_path / "cut.npz"
    with pytest.raises(KilledError):
        cut = Trainer(small(), backend=name, seed=9)
        cut.fit(x, y, checkpoint=path, callbacks=[Killing(step)], **fit)
    if step > 2:
        assert read(path).states["step"] == step // 2 * 2
    else:
        assert not path.exists()
    resumed = Trainer(small(), backend=name, seed=9)
    resumed.fit(x, y, checkpoint=path, resume=True, callbacks=[Callback()], **fit)
    assert saved(path) == saved(tmp_path / "whole.npz")
    assert told(resumed) == told(whole) and len(whole.history) == 3


def test_a_fit_that_was_over_is_not_repeated(tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    Trainer(small(), backend="cpu").fit(x, y, 2, checkpoint=path)
    before = path.read_bytes()
    again = Trainer(small(), backend="cpu")
    again.fit(x, y, 2, checkpoint=path, resume=True)
    assert len(again.history) == 2 and saved(path).keys() == read(path).states.keys()
    more = Trainer(small(), backend="cpu")
    more.fit(x, y, 3, checkpoint=path, resume=True)
    assert len(more.history) == 3 and before != path.read_bytes()
    straight = Trainer(small(), backend="cpu")
    straight.fit(x, y, 3)
    assert told(straight) == told(more)


def test_a_second_fit_goes_on_where_the_first_ended(tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    once = Trainer(small(), backend="cpu")
    once.fit(x, y, 3, 8)
    twice = Trainer(small(), backend="cpu")
    twice.fit(x, y, 1, 8)
    with pytest.raises(KilledError):
        twice.fit(x, y, 2, 8, checkpoint=path, every=1, callbacks=[Killing(7)])
    third = Trainer(small(), backend="cpu")
    third.fit(x, y, 2, 8, checkpoint=path, every=1, resume=True, callbacks=[Callback()])
    assert told(third) == told(once)  # two epochs since the second fit began
    for key, array in once.weights().items():
        assert np.array_equal(third.weights()[key], array)


def test_early_stopping_goes_on_too(tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"

    def fit(trainer: Trainer, *more: Callback, resume: bool = False) -> None:
        stopping = EarlyStopping(patience=2)
        found = [stopping, *more]
        options = {"validation": (x[9:18], (y[9:18] + 1) % 3), "checkpoint": path}
        trainer.fit(x, y, 30, 8, callbacks=found, resume=resume, **options)

    straight = Trainer(small(), backend="cpu")
    fit(straight, Callback())
    count = len(straight.history)
    assert count == 3  # what it is evaluated on is labelled otherwise
    path.unlink()
    with pytest.raises(KilledError):
        fit(Trainer(small(), backend="cpu"), Killing(4 * (count - 1) + 1))
    for _ in range(2):  # the second time there is nothing to do any more
        resumed = Trainer(small(), backend="cpu")
        fit(resumed, Callback(), resume=True)
        assert told(resumed) == told(straight)
        for key, array in straight.weights().items():  # the best ones
            assert np.array_equal(resumed.weights()[key], array)


def test_restored_is_as_saved(name, tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    one = Trainer(small(), backend=name)
    one.fit(x, y, batch_size=8)
    one.save(path)
    one.step(x[:8], y[:8])
    other = Trainer(small(), backend=name)
    other.restore(path)
    assert other.steps == 4 and other.history[0].epoch == 1
    other.step(x[:8], y[:8])
    one.restore(path)
    assert one.steps == 4
    one.step(x[:8], y[:8])
    assert one.loss == other.loss
    for key, array in one.model.parameters().items():
        assert np.array_equal(other.model.parameters()[key], array)


def test_a_checkpoint_before_the_first_step(tmp_path) -> None:
    path = tmp_path / "c.npz"
    Trainer(small(), backend="cpu").save(path)
    assert read(path).states["step"] == 0
    trainer = Trainer(small(), backend="cpu")
    trainer.restore(path)
    trainer.step(*images())
    straight = Trainer(small(), backend="cpu")
    straight.step(*images())
    assert trainer.loss == straight.loss


def other_model() -> Model:
    return Model.sequential([Flatten(), Linear(25, 3)], (1, 5, 5), name="other")


def test_what_does_not_fit_is_said(tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    one = Trainer(small(), backend="cpu")
    one.fit(x, y, batch_size=8)
    one.save(path)
    wider = Model.sequential(
        [*(node.layer for node in small().nodes[:-1]), Linear(50, 4)], (1, 5, 5)
    )
    for trainer, message in (
        (
            Trainer(other_model(), backend="cpu"),
            r"does not fit other: 'conv2d1.weight' is unknown, .*and \d+",
        ),
        (Trainer(wider, backend="cpu"), r"'linear1.weight' is float32 \(3, 50\), not .*\(4, 50\)"),
        (Trainer(small(), optimizer=SGD(), backend="cpu"), "was trained by Adam, got SGD"),
        (Trainer(small(), backend="cpu", seed=2), "was trained with seed 0, got 2"),
        (Trainer(small(), backend="cpu", frozen=("conv2d1",)), "'conv2d1.weight.*' is unknown"),
    ):
        before = trainer.model.parameters()
        with pytest.raises(ModelError, match=message) as raised:
            trainer.restore(path)
        assert str(path) in str(raised.value) and trainer.steps == 0
        for key, array in trainer.model.parameters().items():
            assert np.array_equal(array, before[key])


def test_another_loss_or_rate_is_warned_of(tmp_path, caplog) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    Trainer(small(), MSELoss(), SGD(0.1), "cpu").save(path)
    y = np.eye(3, dtype=np.float32)[y]
    trainer = Trainer(small(), MSELoss(reduction="sum"), SGD(0.01), "cpu")
    trainer.restore(path)
    assert "was trained with loss MSELoss(reduction='mean'" in caplog.text
    assert "was trained with optimizer SGD(lr=0.1" in caplog.text
    Trainer(small(), MSELoss(), SGD(0.1), "cpu", clip_norm=1.0).restore(path)
    assert "clip_norm=None, clip_value=None, goes on with frozen=(), clip_norm=1.0" in caplog.text
    trainer.step(x, y)


def test_within_an_epoch_batches_must_be_the_same(tmp_path) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    with pytest.raises(KilledError):
        Trainer(small(), backend="cpu").fit(
            x, y, 1, 8, checkpoint=path, every=1, callbacks=[Killing(3)]
        )
    for change in ({"batch_size": 9}, {"shuffle": False}, {"accumulate": 2}):
        fit = {"batch_size": 8, "checkpoint": path, "resume": True, "callbacks": [Callback()]}
        with pytest.raises(
            ModelError, match=r"was written within an epoch of EpochBatches\(count=27"
        ):
            Trainer(small(), backend="cpu").fit(x, y, **{**fit, **change})
    with pytest.raises(ModelError, match="was written by a fit with 2 callbacks, got 1"):
        Trainer(small(), backend="cpu").fit(x, y, 1, 8, checkpoint=path, resume=True)


def test_other_kernels_are_warned_of(gpu, tmp_path, caplog) -> None:
    x, y = images()
    path = tmp_path / "c.npz"
    one = Trainer(small(), backend=gpu)
    one.fit(x, y, 1, 27, checkpoint=path)
    kernels = read(path).kernels
    assert kernels.keys() == {"training 27"} and len(kernels["training 27"]) > 5
    changed = replace(read(path), kernels={"training 27": ("x: y", *kernels["training 27"][1:])})
    one._steps.restore(CrossEntropyLoss(), changed.states, changed.kernels)
    assert "training 27 has other kernels than at the checkpoint" in caplog.text
    assert "then x: y): results may differ in rounding" in caplog.text


def test_a_checkpoint_that_cannot_be_written_is_seen_before(tmp_path) -> None:
    trainer = Trainer(small(), backend="cpu")
    with pytest.raises(ModelError, match="cannot be written: No such file"):
        trainer.fit(*images(), checkpoint=tmp_path / "none" / "c.npz")
    assert trainer.steps == 0
    with pytest.raises(GlnnError, match="path must be that of a file, got 3"):
        trainer.fit(*images(), checkpoint=3)


CODE = """
import sys
import numpy as np
from glnn.training import Trainer, Checkpoint
from tests.training.test_checkpoint import images, small

Trainer(small(), backend="cpu", seed=9).fit(
    *images(), epochs=200, batch_size=5, resume=True,
    checkpoint=sys.argv[1], every=2, callbacks=[], progress=False,
)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_sigkill_leaves_a_whole_checkpoint(tmp_path) -> None:
    """Killed twice at moments that nobody chose; each time it goes on from what is there."""
    path, steps, generator = tmp_path / "c.npz", 0, np.random.default_rng()
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", CODE, str(path)]) as process:
            begun, ends = time.monotonic(), None
            while process.poll() is None and (ends is None or time.monotonic() < ends):
                if ends is None and path.exists() and int(read(path).states["step"]) > steps:
                    ends = time.monotonic() + generator.uniform(0, 0.2)
                assert time.monotonic() - begun < 120
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
        found = read(path)
        assert int(found.states["step"]) > steps
        steps = int(found.states["step"])
    straight = Trainer(small(), backend="cpu", seed=9)
    straight.fit(*images(), 200, 5, callbacks=[Stopping(steps)])
    straight.save(tmp_path / "s.npz")
    assert saved(tmp_path / "s.npz") == saved(path)


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        ({}, [(6, 1), (12, 2)]),
        ({"epochs": 2}, [(12, 2)]),
        ({"steps": 5}, [(5, 0), (10, 1), (12, 2)]),
        ({"steps": 6, "epochs": 1}, [(6, 0), (6, 1), (12, 1), (12, 2)]),
        ({"seconds": 3600}, [(12, 2)]),
    ],
)
def test_when_checkpoints_are_written(tmp_path, monkeypatch, arguments, due) -> None:
    found = []
    trainer = Trainer(small(), optimizer=Adam(), backend="cpu")
    monkeypatch.setattr(
        trainer, "save", lambda path: found.append((trainer.steps, len(trainer.history)))
    )
    trainer.fit(*images(), 2, 5, callbacks=[Checkpoint(tmp_path / "c.npz", **arguments)])
    assert found == due


@pytest.mark.parametrize("arguments", [{"epochs": 0}, {"steps": 1.5}, {"seconds": 0.0}])
def test_intervals_must_be_positive(arguments) -> None:
    with pytest.raises(GlnnError, match="positive"):
        Checkpoint("c.npz", **arguments)

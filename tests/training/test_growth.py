"""Steps leave nothing behind: neither memory of the process nor objects of GL."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

from glnn.errors import DeviceError
from glnn.gl import Device
from glnn.training import Adam, Trainer
from tests.test_stress import MEGABYTE, objects, resident

STEPS = 10_000 if os.environ.get("GLNN_EXHAUSTIVE") else 1000


def growth(step: Callable[[], None], steps: int = STEPS) -> int:
    """Bytes by which the process grows in half of the steps: the less of both halves, as an
    allocator or a driver takes a block now and then, and a leak is in each.
    """
    found = []
    for _ in range(2):
        gc.collect()
        before = resident()
        for _ in range(steps // 2):
            step()
        gc.collect()
        found.append(resident() - before)
    return min(found)


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_steps_do_not_grow(backend, mlp, samples) -> None:
    x, y = samples
    with Device() as device:
        try:
            trainer = Trainer(mlp(), optimizer=Adam(), backend=backend, device=device)
        except DeviceError as error:
            pytest.skip(str(error))
        for _ in range(STEPS // 5):  # drivers and allocators take what they need
            trainer.step(x, y)
        _ = trainer.loss
        gc.collect()
        held, states = objects(device), trainer._steps.states.nbytes
        assert growth(lambda: trainer.step(x, y)) < MEGABYTE // 2
        assert trainer.loss < 0.5
        gc.collect()
        assert objects(device) == held and trainer._steps.states.nbytes == states


def test_steps_of_the_host_do_not_grow(mlp, samples) -> None:
    trainer = Trainer(mlp(), backend="cpu")
    for _ in range(STEPS // 5):  # drivers and allocators take what they need
        trainer.step(*samples)
    assert growth(lambda: trainer.step(*samples)) < MEGABYTE // 2


def test_epochs_do_not_grow(name, mlp, samples) -> None:
    trainer = Trainer(mlp(), backend=name)
    fit = {"epochs": 10, "batch_size": 16, "validation": samples}
    trainer.fit(*samples, **fit)
    assert growth(lambda: trainer.fit(*samples, **fit), 4) < MEGABYTE // 2
    assert len(trainer._steps._runners) == 4

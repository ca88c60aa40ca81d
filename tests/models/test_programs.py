"""What compiles, and what is kept: few programs however many shapes, and no growth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import glnn
from glnn.backends.gl import MOST_CHOICES
from glnn.compiler.executor import PLANS_KEPT
from glnn.errors import DeviceError
from glnn.kernels.op_spec import _op_spec
from glnn.layers import BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Softmax
from glnn.model import Model

EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
SHAPES = 1000 if EXHAUSTIVE else 40


def small() -> Model:
    """A convolutional net, two of whose layers are alike but for their sizes."""
    layers = [
        Conv2d(3, 8, 3, padding=1), BatchNorm2d(8), ReLU(), MaxPool2d(2),
        Conv2d(8, 16, 3, padding=1, seed=1), ReLU(), Conv2d(16, 16, 3, padding=1, seed=2), ReLU(),
        Flatten(), Linear(16 * 6 * 6, 10), Softmax(1),
    ]  # fmt: skip
    return Model.sequential(layers, (3, 12, 12))


MODELS = {"lenet": (lambda: glnn.load("lenet"), (1, 28, 28)), "small": (small, (3, 12, 12))}


def opened(make: Callable[[], Model], backend: str, device: glnn.Device) -> glnn.InferenceSession:
    """A session of the model; skips where this context has no such backend."""
    try:
        return glnn.InferenceSession(make(), backend, device=device)
    except DeviceError as closed:
        pytest.skip(str(closed))


def runs(session: glnn.InferenceSession, sample: tuple[int, ...], batches: Iterable[int]) -> None:
    """`session` on zeros of so many samples each."""
    name = session.get_inputs()[0].name
    for batch in batches:
        session.run(None, {name: np.zeros((batch, *sample), np.float32)})


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("model", MODELS)
def test_what_was_compiled_is_not_compiled_again(model, backend, compiled) -> None:
    make, sample = MODELS[model]
    with glnn.Device() as device:
        session = opened(make, backend, device)
        runs(session, sample, (1, 2, 5, 20))  # some batches are another class of size
        before = len(compiled)
        assert 0 < before == len(set(compiled))
        runs(session, sample, (3, 4, 7, 13, 19))
        again = opened(make, backend, device)
        runs(again, sample, (1, 20))
        assert len(compiled) == before, "a size, or another session, compiled anew"


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_more_shapes_take_no_more(backend, compiled) -> None:
    make, sample = MODELS["small"]
    with glnn.Device() as device:
        session = opened(make, backend, device)
        executor = session._executor
        runs(session, sample, (*range(1, 20), 64))
        before, kept = len(compiled), len(executor._weights._device_weights)
        programs, texts = len(device.programs), len(session.backend._program_keys)
        runs(session, sample, range(20, 20 + SHAPES))
        assert len(compiled) == before and len(device.programs) == programs
        assert (
            len(session.backend._program_keys) == texts
            and _op_spec.cache_info().maxsize is not None
        )
        assert len(session.backend._choices) <= MOST_CHOICES
        assert len(executor._plans) <= PLANS_KEPT and len(executor._weights._device_weights) == kept

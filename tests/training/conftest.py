"""Backends, and models that are trained in a moment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.errors import DeviceError
from glnn.layers import Linear, ReLU
from glnn.model import Model
from tests.backends.conftest import backend, opened

__all__ = ["backend", "opened"]  # each GL backend on every kind of context that opens here


@pytest.fixture(params=["cpu", "compute", "feedback"])
def name(request: pytest.FixtureRequest) -> str:
    """The name of each backend that there is."""
    try:
        open_backend(request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def gpu() -> str:
    """The name of the first backend of a GPU that opens."""
    for one in ("compute", "feedback"):
        with suppress(DeviceError):
            open_backend(one)
            return one
    pytest.skip("no GPU opens")


@pytest.fixture
def mlp() -> Callable[[], Model]:
    """Makes a perceptron 5-7-3, the same each time."""

    def make() -> Model:
        layers = [Linear(5, 7, seed=1), ReLU(), Linear(7, 3, seed=2)]
        return Model.sequential(layers, (5,), name="mlp")

    return make


@pytest.fixture
def samples() -> tuple[np.ndarray, np.ndarray]:
    """50 samples of 5 numbers, and for each a class of 3 that follows from them."""
    generator = np.random.default_rng(15)
    x = generator.standard_normal((50, 5), dtype=np.float32)
    return x, np.argmax(x @ generator.standard_normal((5, 3)), axis=1)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Does what Ctrl-C does in a program that has not said otherwise."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, former)

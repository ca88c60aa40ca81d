"""Weights that threads pack are those that are packed where they are uploaded."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from glnn.compiler import weights
from glnn.compiler.weights import Ready
from glnn.errors import DeviceError, ShapeError
from glnn.gl import Device
from glnn.layers import Conv2d, Linear, ReLU
from glnn.model import Model
from glnn.session import InferenceSession


def model() -> Model:
    layers = [Conv2d(3, 8, 3, padding=1), ReLU(), Conv2d(8, 4, 3), Linear(6, 5)]
    return Model.sequential(layers, (3, 10, 8))


def opened(model: Model, backend: str, device: Device, precision: str) -> InferenceSession:
    try:
        return InferenceSession(model, backend, device=device, precision=precision)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("backend", "precision"),
    [("feedback", "float32"), ("feedback", "float16"), ("compute", "float32")],
)
def test_results_are_the_same(device, monkeypatch, backend, precision) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 10, 8), dtype=np.float32)
    threads: set[str] = set()
    of = Ready.read.__func__

    def noted(cls, key, pack):
        threads.add(threading.current_thread().name)
        return of(cls, key, pack)

    monkeypatch.setattr(Ready, "read", classmethod(noted))
    found, packed_by = [], []
    for least in (1 << 60, 0):
        threads.clear()
        monkeypatch.setattr(weights, "LEAST", least)
        monkeypatch.setattr(weights, "processors", lambda: 3)
        session = opened(model(), backend, device, precision)
        found.append(session.run(None, {session.get_inputs()[0].name: x})[0])
        packed_by.append({*threads})
    alone, ahead = packed_by
    assert len(alone) == 1 and ahead - alone, packed_by
    assert np.array_equal(found[0], found[1])


def test_errors_are_met_where_they_would_be(device, monkeypatch) -> None:
    monkeypatch.setattr(weights, "LEAST", 0)
    monkeypatch.setattr(weights, "processors", lambda: 3)
    large = model()
    large.nodes[0].layer.weight = np.full((8, 3, 3, 3), 1e6, np.float32)
    session = opened(large, "feedback", device, "float16")
    x = np.zeros((1, 3, 10, 8), np.float32)
    with pytest.raises(ShapeError, match="float16 holds up to 65504"):
        session.run(None, {session.get_inputs()[0].name: x})

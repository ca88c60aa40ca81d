"""Parameters as they are before training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import ModelError
from glnn.layers import BatchNorm2d, Conv2d, Embedding, Linear
from glnn.model import Model
from glnn.model.load import load
from tests.files import weights_of


def model() -> Model:
    layers = [Conv2d(2, 2, 3), BatchNorm2d(2), Conv2d(2, 2, 3)]
    return Model.sequential(layers, (2, 9, 9), names=["a", "norm", "b"])


def test_a_seed_gives_every_layer_numbers_of_its_own() -> None:
    net = model()
    net.begin(7)
    first = net.parameters()
    assert not np.array_equal(first["a.weight"], first["b.weight"])
    assert np.abs(first["a.weight"]).max() <= 1 / np.sqrt(18)
    assert first["norm.weight"].tolist() == first["norm.running_var"].tolist() == [1, 1]
    net.begin(8)
    assert not np.array_equal(net.parameters()["a.weight"], first["a.weight"])
    again = model()
    again.begin(7)
    assert all(np.array_equal(again.parameters()[name], first[name]) for name in first)


def test_sessions_notice() -> None:
    net, x = Model.sequential([Linear(3, 2)], (3,)), np.ones((1, 3), np.float32)
    session = glnn.InferenceSession(net, "cpu")
    (before,) = session.run(None, {"input": x})
    net.begin(5)
    assert not np.array_equal(session.run(None, {"input": x})[0], before)


def test_as_a_layer_of_that_seed() -> None:
    for one, other in (
        (Linear(3, 2), Linear(3, 2, seed=9)),
        (Embedding(4, 2), Embedding(4, 2, seed=9)),
    ):
        one.begin(9)
        assert np.array_equal(one.weight, other.weight)


def test_a_file_without_weights(tmp_path: Path) -> None:
    """It is refused but for training, which needs none and reads none."""
    model().save(tmp_path / "net.json")
    weights_of(tmp_path / "net.json").unlink()
    with pytest.raises(ModelError, match="no such file"):
        load(tmp_path / "net.json")
    assert (
        load(tmp_path / "net.json", untrained=True).parameters().keys()
        == model().parameters().keys()
    )
    document = json.loads((tmp_path / "net.json").read_text())
    del document["weights"]
    (tmp_path / "net.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match='there is no "weights" file'):
        load(tmp_path / "net.json")
    assert len(load(tmp_path / "net.json", untrained=True).nodes) == 3

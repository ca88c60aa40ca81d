from __future__ import annotations

import numpy as np
import pytest

import glnn
from glnn.errors import ModelError
from glnn.model.load import lenet, vgg16

COUNTS = {"D": 138_357_544, "C": 133_638_952}  # Simonyan and Zisserman 2014, table 2: 138M and 134M


@pytest.mark.parametrize(("name", "configuration"), [("vgg16-c", "C"), ("vgg16", "D")])
def test_vgg16_has_the_published_parameters(name, configuration) -> None:
    model = glnn.load(name)
    assert model.name == name
    shapes = [shape for node in model.nodes for shape in node.layer.shapes.values()]
    assert sum(int(np.prod(shape)) for shape in shapes) == COUNTS[configuration]
    assert model.infer({"input": (2, 3, 224, 224)})["softmax"] == (2, 1000)
    assert model.infer({"input": (1, 3, 224, 224)})["pool5"] == (1, 512, 7, 7)


def test_seeds() -> None:
    one, same, other = vgg16(size=32), vgg16(size=32), vgg16(size=32, seed=1)
    weights = [m.parameters()["conv3_2.weight"] for m in (one, same, other)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])
    biases = one.parameters()["fc7.bias"]
    assert 0 < np.abs(biases).max() < 0.1


def test_signals_keep_their_size() -> None:
    model = vgg16(size=32)
    plan = glnn.InferenceSession(model, "cpu").plan({"input": (1, 3, 32, 32)}, keep=True)
    plan.run({"input": np.random.default_rng(0).standard_normal((1, 3, 32, 32), np.float32)})
    for name in ("relu1_1", "relu3_3", "relu5_3", "relu7", "fc8"):
        assert 0.3 < np.sqrt(np.mean(plan.value(name) ** 2)) < 3, name


def test_models_are_built_by_name() -> None:
    assert lenet().infer({"input": (5, 1, 28, 28)})["softmax"] == (5, 10)
    with pytest.raises(ModelError, match=r"one of lenet, vgg16, vgg16-c, lenet-untrained"):
        glnn.load("vgg19")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"configuration": "E"}, "must be C or D, got 'E'"), ({"size": 48}, "multiple of 32, got 48")],
)
def test_bad_arguments(arguments, says) -> None:
    with pytest.raises(ModelError, match=says):
        vgg16(**arguments)

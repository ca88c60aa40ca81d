"""The suite's networks are those that their names say, with the same weights everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import glnn
from glnn.generation.architectures import decoder
from glnn.suite.decoder import CONFIG, HIDDEN, RandomWeights
from glnn.suite.networks import NETWORKS, SuiteNetwork
from glnn.validation.comparison import relative_error

BY_NAME = {network.name: network for network in NETWORKS}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # torchvision's, without what folding a normalisation leaves out of each channel
        ("mobilenet_v2", 3_504_872 - 17_056),
        ("resnet18", 11_689_512 - 4_800),
        ("encoder", 6 * 1_774_464),  # torch.nn.TransformerEncoderLayer(384, 12, 1536)
        ("gru", 164_352 + 12 * 129),  # torch.nn.GRU(40, 128, 2), Linear(128, 12)
    ],
)
def test_they_have_the_published_parameters(name: str, parameters: int) -> None:
    state = BY_NAME[name].model().state_dict()
    assert sum(array.size for array in state.values()) == parameters


def test_weights_and_samples_are_the_same_in_each_process() -> None:
    network = BY_NAME["gru"]
    one, other = network.model(), network.model()
    for name, array in one.state_dict().items():
        assert np.array_equal(array, other.state_dict()[name])
    assert np.array_equal(network.sample(one), network.sample(other))
    weights = RandomWeights()
    first, second = (weights.packed("blk.3.attn_k.weight")[1] for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_onnx_runtime_computes_the_same(network: SuiteNetwork, tmp_path) -> None:
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    model = network.model()
    x = network.sample(model)
    model.save(tmp_path / "net.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    theirs = ort.InferenceSession(tmp_path / "net.onnx", options, ["CPUExecutionProvider"])
    name = model.inputs[0].name
    (expected,) = theirs.run(None, {name: x})
    found = glnn.InferenceSession(model, "cpu").run(None, {name: x})[0]
    assert relative_error(found, expected) < 1e-5
    assert np.linalg.norm(expected) > 1e-3 * expected.size**0.5  # or it would say little


def test_the_decoder_has_the_weights_that_it_says() -> None:
    weights = RandomWeights()
    width, kv = CONFIG.width, CONFIG.kv_heads * CONFIG.head_width
    layer = 2 * width * width + 2 * kv * width + 3 * HIDDEN * width
    count = CONFIG.layers * layer + CONFIG.vocabulary * width
    assert count == 51_904_512 and weights.nbytes == count // 32 * 34
    assert "output.weight" not in weights and "blk.0.attn_q.bias" not in weights
    assert decoder(CONFIG, weights, 16, 1).graph is not None

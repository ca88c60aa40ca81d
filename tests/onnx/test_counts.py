"""Sizes and dimensions that nothing can hold are refused before anything is made."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import glnn
from glnn.backends import NAMES
from glnn.errors import ModelError
from glnn.onnx.delegate import Delegate
from glnn.session import InferenceSession


def test_a_tensor_of_many_dimensions_in_a_file_of_its_own(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[N] y) { y = Add(x, w) }'
    )
    model = parser.parse_model(text.replace("(x, w)", "(x, x)"))
    model.graph.node[0].input[1] = "w"
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[1] * 74, data_location=1)
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(4))
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"tensor 'w': at most 32 dimensions, got 74$"):
        glnn.load(tmp_path / "net.onnx")


def model(text: str) -> bytes:
    head = '<ir_version: 8, opset_import: ["" : 17]> g '
    return bytes(parser.parse_model(head + text).SerializeToString())


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            """(float[1] x) => (float[N] y) { c = Constant<value_floats=[1.0]>()
            r = Constant<value_ints=[2147483648]>() t = Tile(c, r) y = Add(t, x) }""",
            "repeats must be .* at most 2147483647, got \\(2147483648,\\)",
        ),
        (
            """(float[400, 400] x) => (float[N, M] y) { s = Constant<value_ints=[262144, 400]>()
            y = Reshape(x, s) }""",
            "float32 \\(400, 400\\) has other numbers than \\(262144, 400\\)",
        ),
        (
            """(double[400, 400] x) => (double[N, M] y) { s = Constant<value_ints=[262144, 400]>()
            y = Reshape(x, s) }""",
            "float64 \\(400, 400\\) has other numbers than \\(262144, 400\\)",
        ),
    ],
)
def test_counts_are_checked_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, text: str, says: str, backend: str
) -> None:
    def computed(*arrays: object) -> None:
        raise AssertionError("the package was asked to compute it")

    monkeypatch.setattr(Delegate, "reference", computed)
    with pytest.raises(ModelError, match=says):
        InferenceSession(model(text), backend)


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("given", ["", "<onesided = 1>", "<onesided = 0>"])
def test_stft_is_one_sided_unless_it_says_otherwise(backend: str, given: str) -> None:
    text = f"""(float[1, 160, 1] x, float[40] w) => (float[1, N, M, 2] y)
        {{ s = Constant<value_int = 16>() y = STFT{given}(x, s, w) }}"""
    x = np.random.default_rng(0).standard_normal((1, 160, 1)).astype(np.float32)
    window = np.hanning(40).astype(np.float32)
    frames = np.stack([x[0, i : i + 40, 0] * window for i in range(0, 121, 16)])
    found = InferenceSession(model(text), backend).run(None, {"x": x, "w": window})[0]
    expected = (np.fft.fft if "0" in given else np.fft.rfft)(frames.astype(np.float64))
    np.testing.assert_allclose(found[0, ..., 0], expected.real, atol=1e-4)
    np.testing.assert_allclose(found[0, ..., 1], expected.imag, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "(float[2, 8] x) => (float[N, M] y, float[N, L] z) "
            "{ y, z = Split<axis = 1, num_outputs = 2147483647>(x) }",
            "num_outputs is 2147483647 for 2 outputs",
        ),
        (
            "(float[3, 4] x, float[3, 4] w) => (float[N, M] y) "
            "{ y = LayerNormalization<axis = 2147483648>(x, w) }",
            "'axis' must be an axis, got 2147483648",
        ),
        (
            "(float[1, 1, 4, 4] x) => (float[N, M, K, L] y) "
            "{ s = Constant<value_ints=[1, 1, 4, 2147483648]>() y = Resize(x, , , s) }",
            "to more than 2147483647 numbers",
        ),
    ],
)
def test_what_mutated_models_took_for_ever_or_died_of(text: str, says: str) -> None:
    proto = onnx.load_from_string(model(text))
    proto.opset_import[0].version = 18
    with pytest.raises(ModelError, match=says):
        InferenceSession(proto.SerializeToString(), "cpu")


def test_keys_of_an_attention_without_a_band_are_not_counted() -> None:
    """Loading had taken 16 GiB for the numbers 0, 1, 2, ... of the keys."""
    text = """(float[1, 2, 4, 8] q, float[1, 2, 100000000, 8] k, float[1, 2, 100000000, 8] v)
        => (float[N, M, K, L] y) { y = Attention(q, k, v) }"""
    proto = onnx.load_from_string(model(text))
    proto.opset_import[0].version = 23
    tracemalloc.start()
    try:
        InferenceSession(proto.SerializeToString(), "cpu")
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()

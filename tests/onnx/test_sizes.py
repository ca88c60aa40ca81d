"""Sizes that models compute: the types of outputs, and the same session for several inputs."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import glnn
from tests.onnx.single import BACKENDS, runtime

TEXT = """
<ir_version: 8, opset_import: ["" : 13]>
sizes (float[N, 3, H, W] x, int64[K] index) => (float[a, b, c, d] resized, float[e, f, g, h] taken,
    float[i, j, k, l] padded, float[m, n] rows, int64[o] places, float[p, q, r, s] half,
    float[t, u, v, w] spread)
<float[0] none = {}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3},
 int64[1] four = {4}, int64 first = {0}, int64 step = {1}, int64 last = {3},
 int64[4] before = {0, 0, 0, 0}, float fill = {1.5}, int64[2] by_three = {-1, 3}>
{
    shape = Shape(x)
    outer = Slice(shape, zero, two)
    inner = Slice(shape, two, four)
    twice = Mul(inner, two)
    sizes = Concat <axis = 0> (outer, twice)
    resized = Resize <mode = "linear"> (x, none, none, sizes)
    taken = Gather <axis = 3> (x, index)
    pads = Concat <axis = 0> (before, outer, zero, two)
    padded = Pad(x, pads, fill)
    turned = Transpose <perm = [0, 2, 3, 1]> (x)
    rows = Reshape(turned, by_three)
    width = Gather(shape, last)
    places = Range(first, width, step)
    height = Slice(shape, two, three)
    middle = Div(height, two)
    half = Slice(x, zero, middle, two)
    most = ReduceMax <axes = [2, 3]> (x)
    spread = Expand(most, shape)
}
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_takes_any_sizes(backend: str) -> None:
    model = onnx.parser.parse_model(TEXT)
    session = glnn.InferenceSession(model.SerializeToString(), backend)
    shapes = {output.name: tuple(output.shape) for output in session.get_outputs()}
    assert shapes["resized"] == ("N", 3, "?", "?")
    assert shapes["taken"] == ("N", 3, "H", "K")
    assert shapes["places"] == ("W",)
    assert shapes["half"] == ("N", 3, "?", "W")
    rng = np.random.default_rng(13)
    for n, height, width in ((1, 4, 6), (2, 7, 3), (1, 1, 13), (2, 7, 3)):
        x = rng.standard_normal((n, 3, height, width)).astype(np.float32)
        given = {"x": x, "index": rng.integers(-width, width, 5)}
        for got, right in zip(session.run(None, given), runtime(model, given), strict=True):
            assert got.shape == right.shape
            np.testing.assert_allclose(got, right, 1e-5, 1e-5)
    assert not session.hosted

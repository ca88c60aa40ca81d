"""A model whose height and width are open: few plans, which share weights and programs."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from glnn.errors import DeviceError
from glnn.session import InferenceSession

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3, H, W] x) => (float[N, 6, P, Q] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
  b = Relu (a)
  c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
  shape = Shape (x)
  two = Constant <value_ints = [2]> ()
  four = Constant <value_ints = [4]> ()
  sizes = Slice (shape, two, four)
  six = Constant <value_ints = [1, 4]> ()
  whole = Concat <axis = 0> (six, sizes)
  d = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (c, , , whole)
  e = Add (b, d)
  f = Conv (e, w2)
  m = GlobalAveragePool (f)
  y = Sub (f, m)
}
"""
SIZES = [(16, 16), (17, 23), (31, 18), (24, 40), (22, 34), (40, 24), (19, 19), (33, 21), (27, 29)]


def model(rng) -> bytes:
    found = parser.parse_model(TEXT)
    shapes = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (6, 4, 1, 1)}
    found.graph.initializer.extend(
        numpy_helper.from_array(rng(shape), name) for name, shape in shapes.items()
    )
    return bytes(found.SerializeToString())


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_ten_sizes(backend, rng) -> None:
    content = model(rng)
    try:
        session = InferenceSession(content, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    runtime = onnxruntime.InferenceSession(content)
    executor = session._executor
    programs, kept = [], []
    for height, width in [*SIZES, (35, 26), *SIZES]:
        x = rng((1, 3, height, width))
        (got,), (expected,) = session.run(None, {"x": x}), runtime.run(None, {"x": x})
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        programs.append(len(session.backend.device.programs))
        if (height, width) in (SIZES[0], SIZES[-1]):  # to collect takes longer than to run
            gc.collect()
            kept.append(len(executor._weights._device_weights))
    assert not session.hosted
    # Sides up to 31 and from 32 on: three of the four pairs occur, none is planned by itself.
    assert len(executor.range_plans) == 3 and not executor._plans
    assert programs[0] == programs[-1], f"a size compiled anew: {programs}"
    assert len(kept) == 4 and max(kept) == kept[0]
    times = Counter(span.name for span in executor._weights.uploaded)
    weights = [name for name in times if {"w1", "b1", "w2"} & {*name.split(", ")}]
    assert len(weights) >= 2 and all(times[name] == 1 for name in weights)


TOLD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N] x, int64[2] s) => (float[P, Q] y, int64[2] s) {
  y = Expand (x, s)
}
"""


def test_numbers_that_decide_about_sizes_stay_the_callers() -> None:
    session = InferenceSession(parser.parse_model(TOLD).SerializeToString(), "cpu")
    x, given = np.arange(3, dtype=np.float32), np.array([2, 3])
    session.run(None, {"x": x, "s": given})
    given[:] = 4, 1  # after the run it is the caller's again
    y, again = session.run(None, {"x": x, "s": np.array([2, 3])})
    assert y.shape == (2, 3) and again.tolist() == [2, 3]


def test_requests_are_joined_by_whatever_the_batch_is_called() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        "g (float[batch_size, 3] x) => (float[batch_size, 3] y) { y = Relu (x) }"
    )
    session = InferenceSession(model.SerializeToString(), "cpu", max_batch=4)
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    futures = [session.run_async(None, {"x": row[None]}) for row in x]
    assert [future.result()[0].tolist() for future in futures] == [
        np.maximum(row, 0)[None].tolist() for row in x
    ]

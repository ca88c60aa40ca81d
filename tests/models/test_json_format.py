"""glnn's own model files: they round-trip, and bad ones are refused in one sentence."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.errors import ModelError
from glnn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Bias,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from glnn.model import Model, Node, TensorInfo, load

Edit = Callable[[Callable[[Any], object]], Path]


def refuses(path: Path, message: str, file: str | None = None) -> None:
    """Loading `path` must fail with one line that names the file and holds `message`."""
    with pytest.raises(ModelError) as caught:
        load(path)
    text = str(caught.value)
    assert message in text
    assert text.startswith(str(path.parent / (file or path.name)))
    assert "\n" not in text


def test_every_layer_round_trips(tmp_path: Path) -> None:
    layers: list[Layer] = [
        Conv2d(2, 4, (3, 1), 1, (1, 0), groups=2, seed=1),
        ReLU(inplace=True),
        MaxPool2d(2, ceil_mode=True),
        Conv2d(4, 4, (2, 3), padding="same", dilation=(1, 2)),
        BatchNorm2d(4, 1e-3, None, affine=False),
        AdaptiveAvgPool2d((None, 4)),
        Bias(4),
        Tanh(),
        AvgPool2d(2, count_include_pad=False, divisor_override=3),
        Flatten(2),
        Softmax(-1),
        Flatten(),
        Linear(16, 3, bias=False, seed=2),
        Sigmoid(),
        Softmax(),
    ]
    model = Model.sequential(layers, (2, 8, 8), name="every")
    model.save(tmp_path / "every.json")
    again = load(tmp_path / "every.json")
    assert [(n.name, n.layer.op, n.inputs, n.output) for n in again.nodes] == [
        (n.name, n.layer.op, n.inputs, n.output) for n in model.nodes
    ]
    assert (again.name, again.inputs, again.outputs) == ("every", model.inputs, model.outputs)
    assert [repr(n.layer) for n in again.nodes] == [repr(n.layer) for n in model.nodes]
    expected = model.parameters()
    assert list(again.parameters()) == list(expected)
    for name, array in again.parameters().items():
        assert np.array_equal(array, expected[name]), name


def test_branches_round_trip(tmp_path: Path) -> None:
    nodes = (Node("a", ReLU(), ("x",), "r"), Node("b", Sigmoid(), ("x",), "s"))
    model = Model(nodes, (TensorInfo("x", (2, 3)),), ("s", "r"))
    model.save(tmp_path / "two.json")
    again = load(tmp_path / "two.json")
    assert (again.inputs, again.outputs) == (model.inputs, model.outputs)
    assert [node.inputs for node in again.nodes] == [("x",), ("x",)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["two.json"]  # no parameters, no .npz


def test_short_form(tmp_path: Path) -> None:
    document = {
        "format": "glnn",
        "version": 1,
        "inputs": [{"name": "x", "shape": ["N", 3]}],
        "layers": [
            {"name": "a", "layer": "ReLULayer"},
            {"name": "b", "layer": "Softmax", "arguments": {"dim": 1}},
        ],
    }
    (tmp_path / "short.json").write_text(json.dumps(document))
    model = load(tmp_path / "short.json")
    assert (model.name, model.outputs) == ("short", ("b",))
    assert [node.inputs for node in model.nodes] == [("x",), ("a",)]


def test_loaded_model_computes_the_same(saved: Path) -> None:
    x = np.array([[1, 2, 3], [5, 0, 1]], np.float32)
    assert load(saved)(x, backend="cpu").tolist() == [[0, 1], [4.5, 7]]
    assert load(str(saved))(x, backend="cpu").tolist() == [[0, 1], [4.5, 7]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_parameters_may_be_anything_float32(small: Model, tmp_path: Path, value: float) -> None:
    linear = small.nodes[0].layer
    assert isinstance(linear, Linear)
    linear.bias = np.array([value, 0], np.float32)
    small.save(tmp_path / "odd.json")
    loaded = load(tmp_path / "odd.json").parameters()["affine.bias"]
    assert np.array_equal(loaded, [value, 0], equal_nan=True)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda d: d.update(version=2), "format version 2 is newer than this glnn reads, 1"),
        (lambda d: d.update(version="1"), "\"version\" must be an integer of at least 1, got '1'"),
        (lambda d: d.update(version=0), '"version" must be an integer of at least 1, got 0'),
        (lambda d: d.update(format="onnx"), '"format" must be "glnn", got \'onnx\''),
        (lambda d: d.update(extra=1), "the model has the unknown key 'extra'"),
        (lambda d: d.update(name=3), '"name" must be a text'),
        (lambda d: d.pop("layers"), '"layers" must be a list that is not empty'),
        (lambda d: d.update(layers=[]), '"layers" must be a list that is not empty'),
        (lambda d: d.update(layers=["a"]), 'layer 1 must be an object with a "name"'),
        (lambda d: d.update(inputs={}), '"inputs" must be a list that is not empty'),
        (lambda d: d.update(inputs=[3]), '"inputs" must hold objects'),
        (lambda d: d["inputs"][0].update(shape=["N", "x"]), "shape must be positive integers"),
        (lambda d: d["inputs"][0].update(shape=["N", 4]), "layer 'affine'"),
        (lambda d: d["inputs"][0].update(name=None), "a tensor's name must be a text"),
        (lambda d: d.update(outputs=["q"]), "no layer makes the output 'q'"),
        (lambda d: d.update(outputs=[3]), '"outputs" must be a list of names'),
        (lambda d: d["layers"][0].update(layer="Linaer"), "'Linaer': did you mean 'Linear'?"),
        (lambda d: d["layers"][0].update(layer=None), "unknown kind None"),
        (lambda d: d["layers"][0].update(bias=True), "layer 'affine' has the unknown key 'bias'"),
        (lambda d: d["layers"][0].update(arguments=[]), '"arguments" must be an object'),
        (lambda d: d["layers"][0]["arguments"].pop("in_features"), "'in_features'"),
        (lambda d: d["layers"][0]["arguments"].update(size=1), "'size'"),
        (lambda d: d["layers"][0]["arguments"].update(in_features="3"), "must be an integer"),
        (lambda d: d["layers"][0]["arguments"].update(in_features=10**12), "layer 'affine'"),
        (lambda d: d["layers"][0].update(inputs="input"), '"inputs" must be a list of names'),
        (lambda d: d["layers"][0].update(output=3), '"output" must be a list of names'),
        (lambda d: d["layers"][0].update(inputs=["z"]), "makes the tensor 'z'"),
        (lambda d: d["layers"][1].update(name="affine"), "name of its own, got 'affine'"),
        (lambda d: d.pop("weights"), 'there is no "weights" file'),
        (lambda d: d.update(weights=3), "expected a file name, got 3"),
        (lambda d: d.update(weights=""), "expected a file name, got ''"),
        (lambda d: d.update(weights="/etc/passwd"), "must be relative to the model's folder"),
        (lambda d: d.update(weights="C:\\w.npz"), "must be relative to the model's folder"),
        (lambda d: d.update(weights="../w.npz"), "leaves the model's folder"),
        (lambda d: d.update(weights="a/../../w.npz"), "leaves the model's folder"),
        (lambda d: d.update(weights="a\0b"), "is not a usable file name"),
    ],
)
def test_bad_document(edit: Edit, how: Callable[[Any], object], message: str) -> None:
    refuses(edit(how), message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"format": "glnn", "version": 1, "lay', "not valid JSON"),
        (b"\xff\xfe\x00\x01\x02", "not valid JSON"),
        (b"[1, 2]", "expected a JSON object, got list"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"version": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_file_that_is_not_json(saved: Path, content: bytes, message: str) -> None:
    saved.write_bytes(content)
    refuses(saved, message)


def test_missing_weights(saved: Path) -> None:
    saved.with_suffix(".npz").unlink()
    refuses(saved, "no such file", "small.npz")


def test_weights_that_are_a_folder(saved: Path) -> None:
    saved.with_suffix(".npz").unlink()
    saved.with_suffix(".npz").mkdir()
    refuses(saved, "is not a file", "small.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_weights_that_are_a_pipe(saved: Path) -> None:
    saved.with_suffix(".npz").unlink()
    os.mkfifo(saved.with_suffix(".npz"))
    refuses(saved, "is not a file", "small.npz")


def test_weights_behind_a_link_that_leaves_the_folder(saved: Path) -> None:
    weights = saved.with_suffix(".npz")
    outside = saved.parent.parent / f"{saved.parent.name}-outside.npz"
    weights.rename(outside)
    weights.symlink_to(outside)
    refuses(saved, "leaves the model's folder")


def test_weights_behind_a_link_within_the_folder(saved: Path) -> None:
    weights = saved.with_suffix(".npz")
    (saved.parent / "blobs").mkdir()
    weights.rename(saved.parent / "blobs" / "w.npz")
    weights.symlink_to(saved.parent / "blobs" / "w.npz")
    assert load(saved).name == "small"


@pytest.mark.parametrize("keep", [0, 1, 40, 200, -30])
def test_truncated_weights(saved: Path, keep: int) -> None:
    weights = saved.with_suffix(".npz")
    weights.write_bytes(weights.read_bytes()[:keep])
    refuses(saved, "npz", "small.npz")


def test_damaged_weights(saved: Path) -> None:
    """A flipped byte anywhere gives a ModelError or a model, never another exception."""
    weights = saved.with_suffix(".npz")
    good = weights.read_bytes()
    messages = []
    for place in range(0, len(good), 3):
        weights.write_bytes(good[:place] + bytes([good[place] ^ 0x55]) + good[place + 1 :])
        try:
            load(saved)
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > len(good) // 6
    assert "\n" not in "".join(messages)


def test_weights_of_the_wrong_kind(saved: Path) -> None:
    weights = saved.with_suffix(".npz")
    for content in (b"not a zip", pickle.dumps({"affine.weight": 1})):
        weights.write_bytes(content)
        refuses(saved, "expected an .npz archive", "small.npz")
    with weights.open("wb") as stream:
        np.save(stream, np.zeros(3, np.float32))
    refuses(saved, "expected an .npz archive", "small.npz")


ZEROS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"affine.bias": None}, "the array 'affine.bias' is missing"),
        ({"affine.scale": ZEROS}, "the array 'affine.scale' belongs to no layer"),
        ({"affine.weight": ZEROS.T}, "Linear weight must have shape (2, 3), got (3, 2)"),
        ({"affine.weight": ZEROS.astype(complex)}, "float32 NumPy array, got complex128 array"),
        ({"affine.weight": np.array("text")}, "float32 NumPy array, got <U4 array"),
        ({"affine.weight": ZEROS.astype(object)}, "'affine.weight' holds pickled objects"),
    ],
)
def test_wrong_arrays(saved: Path, arrays: dict[str, Any], message: str) -> None:
    weights = saved.with_suffix(".npz")
    with np.load(weights) as archive:
        found = {**archive, **arrays}
    np.savez(weights, **{name: array for name, array in found.items() if array is not None})
    refuses(saved, message, "small.npz")


def test_pickles_are_not_run(saved: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (marker,))

    weights = saved.with_suffix(".npz")
    arrays: dict[str, Any] = {"affine.weight": np.array([Trap()], object), "affine.bias": ZEROS}
    np.savez(weights, **arrays)
    refuses(saved, "pickled", "small.npz")
    assert not marker.exists()


def test_save_wants_a_json_file(small: Model, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a model is saved as a \.json or \.onnx file"):
        small.save(tmp_path / "small.txt")
    with pytest.raises(ModelError, match="format must be one of glnn, onnx, rovder, got 'csv'"):
        small.save(tmp_path / "small.json", "csv")


def test_save_says_where_it_cannot_write(small: Model, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"small\.json: cannot be written: No such file"):
        small.save(tmp_path / "nowhere" / "small.json")
    (tmp_path / "small.json").mkdir()
    with pytest.raises(ModelError, match=r"small\.json: cannot be written: it is a folder"):
        small.save(tmp_path / "small.json")
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


@pytest.mark.parametrize("call", ["savez", "fsync"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_save_leaves_the_old_model(
    small: Model, saved: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: Any
) -> None:
    before = {path.name: path.read_bytes() for path in saved.parent.iterdir()}

    def interrupt(stream: Any, *_: Any, **__: Any) -> None:
        if call == "savez":
            stream.write(b"half")
        raise fault

    monkeypatch.setattr(np if call == "savez" else os, call, interrupt)
    linear = small.nodes[0].layer
    assert isinstance(linear, Linear)
    linear.bias = np.array([9, 9], np.float32)
    with pytest.raises(KeyboardInterrupt if fault is KeyboardInterrupt else ModelError):
        small.save(saved)
    assert {path.name: path.read_bytes() for path in saved.parent.iterdir()} == before


def test_layer_that_no_file_knows(tmp_path: Path) -> None:
    class Mine(ReLU):
        pass

    model = Model.sequential([Mine()], (3,))
    with pytest.raises(ModelError, match="layer 'mine1': Mine cannot be saved"):
        model.save(tmp_path / "mine.json")
    assert not list(tmp_path.iterdir())

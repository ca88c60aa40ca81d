"""`glnn run`: the bundled digits, images, arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress, TaskID

import glnn
from glnn import data
from glnn.backends import NAMES
from glnn.cli import runner
from glnn.core.tensor_info import TensorInfo
from glnn.layers import Pointwise as Function
from glnn.model import Model
from glnn.model.model import Node
from tests.cli.conftest import Digits, Glnn


@pytest.mark.parametrize("backend", NAMES)
def test_the_bundled_digits(cli: Glnn, backend: str) -> None:
    found = cli("run", "lenet", "--backend", backend, "--json").json
    labels = data.digits()[1]
    assert (found["model"], found["backend"]) == ("lenet", backend)
    assert len(found["predictions"]) == len(found["inputs"]) == len(labels)
    assert found["accuracy"] == pytest.approx(np.mean(found["predictions"] == labels))
    assert found["accuracy"] >= 0.98
    assert (
        found["predictions"]
        == cli("run", "lenet", "--backend", "cpu", "--json").json["predictions"]
    )


def test_a_model_that_takes_bytes(cli: Glnn, tmp_path: Path) -> None:
    """Images and arrays of uint8 go to it as they are; the model scales them."""
    image = pytest.importorskip("PIL.Image")
    lenet = glnn.load("lenet")
    nodes = (
        Node("wide", Function("cast_float32"), ("pixels",), "wide"),
        Node("scaled", Function("div", [255.0]), ("wide",), lenet.inputs[0].name),
        *lenet.nodes,
    )
    info = TensorInfo("pixels", lenet.inputs[0].shape, "tensor(uint8)")
    net, digits = tmp_path / "bytes.json", tmp_path / "digits.npy"
    photo = tmp_path / "photo.png"
    image.fromarray(data.digits()[0][9, 0]).save(photo)
    Model(nodes, (info,), lenet.outputs, "bytes").save(net)
    np.save(digits, data.digits()[0][:7])
    scores = cli("run", "lenet", digits, photo, "--top", 10, "--json").json["top"]
    for backend in NAMES:
        found = cli("run", net, digits, photo, "--backend", backend, "--top", 10, "--json").json
        for these, those in zip(found["top"], scores, strict=True):
            assert [one["class"] for one in these[:3]] == [one["class"] for one in those[:3]]
            assert these[0]["score"] == pytest.approx(those[0]["score"], abs=1e-5)
    assert cli("verify", net, digits, "--json").json["worst"] <= 1e-5
    assert cli("bench", net, digits, "--backends", "compute", "--repeat", 1, "--json").json
    first = cli("plan", net, "--backend", "compute", "--json").json["steps"][0]
    assert first["layouts"] == {"x0": "packed", "out": "R"}
    np.save(digits, np.zeros((1, 1, 28, 28), np.float32))
    assert "digits.npy: expected uint8, got float32" in cli("run", net, digits).refusal


def test_the_bundled_digits_on_the_smallest_device(cli: Glnn) -> None:
    found = [
        cli("run", "lenet", "--backend", backend, "--limits", "es31-minimum", "--json").json
        for backend in ("compute", "feedback")
    ]
    assert found[0]["predictions"] == found[1]["predictions"]
    assert found[0]["accuracy"] >= 0.98


def test_the_table(cli: Glnn) -> None:
    shown = cli("run", "lenet", "--backend", "cpu")
    assert "digit 9" in shown.out and "digit 10" not in shown.out
    assert "and 990 more" in shown.out
    assert "1000 samples on cpu" in shown.out
    assert "accuracy 99.10%" in shown.out


def test_top(cli: Glnn, small: Path, samples: Path) -> None:
    found = cli("run", small, samples, "--backend", "cpu", "--top", 2, "--json").json
    assert found["predictions"] == [0, 1]
    assert found["accuracy"] is None
    assert found["inputs"] == [f"{samples}[0]", f"{samples}[1]"]
    chance = 1 / (1 + np.exp(-1.5))
    (best, other) = found["top"][0]
    assert best == {"class": 0, "score": 2.5, "probability": pytest.approx(chance)}
    assert other == {"class": 1, "score": 1.0, "probability": pytest.approx(1 - chance)}
    assert [entry["class"] for entry in found["top"][1]] == [1, 0]
    more = cli("run", small, samples, "--backend", "cpu", "--top", 99, "--json").json
    assert more == found  # there are only two classes
    assert " 2. " in cli("run", small, samples, "--top", 2).out


def test_the_batch_changes_nothing(cli: Glnn, tmp_path: Path, digits: Digits) -> None:
    np.save(tmp_path / "x.npy", digits[0])
    once, thrice = (
        cli("run", "lenet", tmp_path / "x.npy", "--batch", batch, "--json").json for batch in (8, 3)
    )
    assert once["predictions"] == thrice["predictions"] == digits[1].tolist()


def test_a_forced_kernel_changes_nothing(cli: Glnn) -> None:
    forced = ("--kernel", "matmul=gemm_blocked", "--kernel", "conv2d=direct")
    found = cli("run", "lenet", "--backend", "compute", *forced, "--json").json
    assert found["accuracy"] >= 0.98


def test_the_bar_says_that_backends_are_measured(
    cli: Glnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    said: list[str] = []

    class Bar(Progress):
        def add_task(self, description: str, *more: Any, **named: Any) -> TaskID:
            said.append(description)
            return super().add_task(description, *more, **named)

        def update(self, *more: Any, **named: Any) -> None:
            said.append(named["description"])
            super().update(*more, **named)

    monkeypatch.setattr(runner, "progress", lambda shown: Bar(disable=True))
    cli("run", "lenet", "--batch", 500)
    assert said == [runner.FIRST, "classifying", "classifying"]
    said.clear()
    cli("run", "lenet", "--batch", 500, "--backend", "cpu")
    assert set(said) == {"classifying"}


def test_images(cli: Glnn, tmp_path: Path, digits: Digits) -> None:
    image = pytest.importorskip("PIL.Image")
    dark, light = tmp_path / "dark.png", tmp_path / "light.jpg"
    image.fromarray(digits[0][0]).save(dark)
    image.fromarray(255 - digits[0][2]).resize((280, 280)).convert("RGB").save(light)
    found = cli("run", "lenet", dark, light, "--top", 3, "--json").json
    assert found["predictions"] == [digits[1][0], digits[1][2]]
    assert [len(row) for row in found["top"]] == [3, 3]
    assert found["accuracy"] is None
    assert not [note for note in found["notes"] if str(dark) in note]
    inverted = f"{light}: inverted, because the background is light"
    assert inverted in found["notes"]
    assert f"{light}: resized from 280x280 to 28x28" in found["notes"]
    one = cli("run", "lenet", light).out
    assert inverted in one and "1 sample on " in one
    assert "inverted" not in cli("run", "lenet", dark).out
    kept = cli(
        "run", "lenet", light, "--no-invert", "--dump", tmp_path / "x.npz", "--tensor", "input"
    )
    assert "inverted" not in kept.out
    with np.load(tmp_path / "x.npz") as dumped:
        assert dumped["input"][0, 0, 0, 0] > 0.9


def test_arrays(cli: Glnn, tmp_path: Path, digits: Digits) -> None:
    bytes_, labels = digits
    floats = bytes_ / np.float32(255)
    ways: dict[str, Callable[[Path], None]] = {
        "grey.npy": lambda path: np.save(path, bytes_),
        "float.npy": lambda path: np.save(path, floats[:, None]),
        "one.npz": lambda path: np.savez(path, anything=floats),
        "named.npz": lambda path: np.savez(path, input=floats, other=np.zeros(3)),
    }
    for name, write in ways.items():
        write(tmp_path / name)
        found = cli("run", "lenet", tmp_path / name, "--json").json
        assert (found["predictions"], found["accuracy"]) == (labels.tolist(), None), name
        scaled = ["bytes scaled to 0..1" in note for note in found["notes"]]
        assert scaled == ([True] if name == "grey.npy" else []), name


def test_labels(cli: Glnn, tmp_path: Path, digits: Digits) -> None:
    images, labels = digits
    np.savez(tmp_path / "a.npz", image=images[:3], label=labels[:3])
    np.savez(tmp_path / "b.npz", image=images[3:5], labels=[labels[3], labels[4] + 1])
    np.save(tmp_path / "c.npy", images[5:6])
    a, b, c = (tmp_path / name for name in ("a.npz", "b.npz", "c.npy"))
    assert cli("run", "lenet", a, "--json").json["accuracy"] == 1
    both = cli("run", "lenet", a, b, "--json").json
    assert both["predictions"] == labels[:5].tolist()
    assert both["accuracy"] == pytest.approx(4 / 5)
    assert "accuracy 80.00%" in cli("run", "lenet", a, b).out
    assert cli("run", "lenet", a, c, "--json").json["accuracy"] is None  # not known of all


def test_nan_is_allowed(cli: Glnn, tmp_path: Path) -> None:
    np.save(tmp_path / "nan.npy", np.full((1, 1, 28, 28), np.nan, np.float32))
    for backend in NAMES:
        found = cli("run", "lenet", tmp_path / "nan.npy", "--backend", backend, "--json").json
        assert found["top"][0][0]["score"] == "nan"

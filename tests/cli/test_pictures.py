"""`glnn run` on pictures for models of colours: folders, labels, several outputs, Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn import images
from glnn.cli import sources
from glnn.cli.results import Classes, best_classes, probabilities
from glnn.cli.runner import ModelRunner
from glnn.cli.sources import Inputs
from glnn.core.tensor_info import TensorInfo
from glnn.layers import Conv2d, Flatten, Linear
from glnn.model import Model
from glnn.model.model import Node
from tests.cli.conftest import Glnn

Image = pytest.importorskip("PIL.Image")
NAMES = ["reddish", "greenish", "bluish"]
COLOURS = [(200, 30, 20), (10, 220, 40), (5, 60, 250), (250, 200, 100)]
CPU = ("--backend", "cpu")


def save(model: Model, path: Path, **said: Any) -> Path:
    replace(model, metadata=images.metadata(**said)).save(path)
    return path


@pytest.fixture
def mean() -> Model:
    """Of pictures of 4 x 4: scores are ten times the means of the channels."""
    linear = Linear(48, 3)
    linear.weight = np.kron(np.eye(3), np.full(16, 10 / 16)).astype(np.float32)
    linear.bias = np.zeros(3, np.float32)
    return Model.sequential([Flatten(), linear], (3, 4, 4), "mean", ["flat", "scores"])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of pictures of one colour each, 4 of any size, and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, colour in enumerate(COLOURS):
        Image.new("RGB", (8 + i, 6 + 2 * i), colour).save(folder / f"p{i}.png")
    (folder / "notes.txt").write_text("nothing")
    return folder


def test_a_model_that_says_nothing(cli: Glnn, mean: Model, photos: Path) -> None:
    net = photos / "net.json"
    mean.save(net)
    found = cli("run", net, photos / "p0.png", "--top", 3, *CPU, "--json").json
    assert [one["class"] for one in found["top"][0]] == [0, 1, 2]
    scores = np.array(COLOURS[0]) / 25.5
    assert [one["score"] for one in found["top"][0]] == pytest.approx(scores, rel=1e-5)
    chances = np.exp(scores) / np.exp(scores).sum()
    assert [one["probability"] for one in found["top"][0]] == pytest.approx(chances, rel=1e-4)
    (note,) = found["notes"]
    assert "says nothing of pictures" in note and "0..1" in note
    assert found["preprocessing"]["crop"] == 4
    shown = cli("run", net, photos / "p0.png", *CPU).out
    assert note in shown and f"{chances[0]:.4f}" in shown


def test_classes_of_convolutions(cli: Glnn, photos: Path) -> None:
    """(N, 3, 1, 1) are three classes: here the means of the channels."""
    conv = Conv2d(3, 3, 4)
    conv.weight = np.kron(np.eye(3), np.full(16, 10 / 16)).reshape(3, 3, 4, 4).astype(np.float32)
    conv.bias = np.zeros(3, np.float32)
    net = save(Model.sequential([conv], (3, 4, 4), "mean"), photos / "net.json")
    (photos / "names.txt").write_text("\n".join(NAMES))
    run = ("run", net, photos, "--top", 3, "--labels", photos / "names.txt", *CPU)
    found = cli(*run, "--drawn", photos / "drawn", "--json").json
    assert found["predictions"] == [0, 1, 2, 0]
    assert [one["label"] for one in found["top"][1]] == ["greenish", "bluish", "reddish"]
    assert found["top"][1][0]["score"] == pytest.approx(220 / 25.5, rel=1e-5)
    assert len(list((photos / "drawn").iterdir())) == 4


@pytest.mark.parametrize(
    "option", [("--labels", "names.txt"), ("--top", "5"), ("--drawn", "drawn"), ("--show",)]
)
def test_options_of_classes_are_refused_where_there_are_none(
    cli: Glnn, photos: Path, monkeypatch, option: tuple[str, ...]
) -> None:
    monkeypatch.chdir(photos)
    Model.sequential([Conv2d(3, 2, 1)], (3, 4, 4)).save("net.json")
    says = f"{option[0]} is for classes, (N, classes), or objects: net.json gives conv2d1 (N, 2, 4"
    assert says in cli("run", "net.json", "p0.png", *option, *CPU).refusal
    assert cli("run", "net.json", "p0.png", *CPU).code == 0


@pytest.mark.parametrize("ending", ["json", "onnx"])
def test_what_the_model_says(cli: Glnn, mean: Model, photos: Path, ending: str) -> None:
    how = images.Preprocessing(4, 4, scale=255, mean=(100,), std=(50, 100, 200))
    net = save(mean, photos / f"net.{ending}", preprocessing=how, labels=NAMES)
    assert images.described(glnn.load(net).metadata) == how
    run = ("run", net, photos / "p0.png", *CPU)
    found = cli(*run, "--top", 3, "--json").json
    scores = {one["label"]: one["score"] for one in found["top"][0]}
    expected = (np.array(COLOURS[0]) - 100) / np.array([50, 100, 200]) * 10
    assert scores == pytest.approx(dict(zip(NAMES, expected, strict=True)), rel=1e-5)
    assert found["notes"] == []
    assert "reddish" in cli(*run).out
    blue = cli(*run, "--colours", "bgr", "--mean", 0, "--std", 1, "--json").json
    assert blue["top"][0][0]["label"] == "bluish"
    asked = ("--preprocessing", "imagenet", "--resize", "4x4", "--crop", 4)
    seen = cli(*run, *asked, "--json").json["top"][0][0]
    assert seen["score"] == pytest.approx(10 * (200 / 255 - 0.485) / 0.229, rel=1e-5)


def test_folders_patterns_and_what_cannot_be_read(cli: Glnn, mean: Model, photos: Path) -> None:
    net = save(mean, photos / "net.json", labels=NAMES)
    right = [0, 1, 2, 0]
    found = cli("run", net, photos, "--batch", 3, *CPU, "--json").json
    assert (found["predictions"], found["failed"]) == (right, [])
    assert found["inputs"] == [str(photos / f"p{i}.png") for i in range(4)]
    some = cli("run", net, photos / "p[12].png", photos / "p0.png", *CPU, "--json").json
    assert some["predictions"] == [1, 2, 0]
    assert "no such file" in cli("run", net, photos / "q*.png").refusal
    broken = photos / "p2.png"
    broken.write_bytes(broken.read_bytes()[:40])
    assert str(broken) in cli("run", net, broken, *CPU).refusal
    done = cli("run", net, photos, *CPU)
    assert done.code == 2
    assert done.err.count("\n") == 1 and str(broken) in done.err
    assert (
        "p3.png" in done.out
        and "3 samples" in done.out
        and "could not be read: 1 picture," in done.out
    )
    (photos / "p0.png").write_bytes(b"")
    refusal = cli("run", net, broken, photos / "p0.png", *CPU)
    assert refusal.code == 2 and "none of the 2 pictures" in refusal.err


def test_pictures_are_read_as_they_are_run(
    cli: Glnn, mean: Model, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more than a batch of them, and Ctrl-C shows those that were done."""
    net = save(mean, photos / "net.json")
    order: list[str] = []
    read, run = sources.SampleReader.read, ModelRunner.run

    def reading(reader: Any, path: Path, keep: bool) -> Any:
        order.append(path.name)
        return read(reader, path, keep)

    def running(self: ModelRunner, feeds: Any) -> Any:
        order.append("run")
        if order.count("run") == 2 and interrupted:
            raise KeyboardInterrupt
        return run(self, feeds)

    monkeypatch.setattr(sources.SampleReader, "read", reading)
    monkeypatch.setattr(ModelRunner, "run", running)
    interrupted = False
    cli("run", net, photos, "--batch", 1, *CPU)
    assert order == [name for i in range(4) for name in (f"p{i}.png", "run")]
    interrupted = True
    order.clear()
    done = cli("run", net, photos, "--batch", 2, *CPU)
    assert done.code == 130
    assert "p1.png" in done.out and "p2.png" not in done.out
    assert "interrupted" in done.err


def test_pictures_of_any_size(cli: Glnn, photos: Path) -> None:
    """For a model that takes any: those of one size go together."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["scores"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, "h", "w"]), ("scores", ["n", 3]), ("mean", None))
    ]
    graph = helper.make_graph(nodes, "any", ends[:1], ends[1:])
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), photos / "any.onnx")
    found = cli("run", photos / "any.onnx", photos, "--top", 3, *CPU, "--json").json
    scores = [{one["class"]: one["score"] for one in row} for row in found["top"]]
    expected = [{i: c / 255 for i, c in enumerate(colour)} for colour in COLOURS]
    assert scores == [pytest.approx(row, rel=1e-5) for row in expected]
    (other,) = found["outputs"]  # the classes' output is not in it
    assert (other["name"], other["shape"]) == ("mean", [4, 3, 1, 1])
    assert other["least"] == pytest.approx(5 / 255, rel=1e-5)
    assert other["greatest"] == pytest.approx(250 / 255, rel=1e-5)
    assert other["mean"] == pytest.approx(np.mean(COLOURS) / 255, rel=1e-5)
    shown = cli("run", photos / "any.onnx", photos, *CPU).out
    assert "mean" in shown and "(4, 3, 1, 1)" in shown and "p3.png" in shown


def test_labels(cli: Glnn, mean: Model, photos: Path) -> None:
    net = save(mean, photos / "net.json", labels=["a", "b", "c"])
    run = ("run", net, photos / "p1.png", *CPU)
    (photos / "names.txt").write_text("\n".join(NAMES))
    named = cli(*run, "--labels", photos / "names.txt", "--json").json
    assert named["top"][0][0]["label"] == "greenish"
    for count in (2, 4):
        (photos / "names.txt").write_text("x\n" * count)
        refusal = cli(*run, "--labels", photos / "names.txt").refusal
        assert f"{count} names, the model has 3 classes" in refusal
    wrong = save(mean, photos / "wrong.json", labels=["a"])
    found = cli("run", wrong, photos / "p1.png", *CPU, "--json").json
    assert "label" not in found["top"][0][0]
    assert any("1 name, the model has 3 classes" in note for note in found["notes"])


def test_drawn(cli: Glnn, mean: Model, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = save(mean, photos / "net.json", labels=NAMES)
    Image.new("RGB", (90, 60), (30, 20, 200)).save(photos / "large.bmp")
    out = photos / "out"
    run = ("run", net, photos / "large.bmp", photos / "p0.png", *CPU)
    found = cli(*run, "--drawn", out, "--json").json
    assert found["drawn"]["files"] == [str(out / "large.bmp"), str(out / "p0.png")]
    drawn = np.asarray(Image.open(out / "large.bmp"))
    assert drawn.shape == (60, 90, 3)
    assert (drawn[-1, -1] == (30, 20, 200)).all() and (drawn != (30, 20, 200)).any()
    assert f"2 pictures in {out}" in cli(*run, "--drawn", out, "--overwrite").out
    assert "INPUTS and --drawn are the same file" in cli(*run, "--drawn", photos).refusal
    assert "two pictures are called p0.png" in cli(*run, out / "p0.png", "--drawn", "o").refusal
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "no display" in cli(*run, "--show").refusal


def test_options_that_say_nothing_here(cli: Glnn, mean: Model, photos: Path) -> None:
    net = save(mean, photos / "net.json")
    np.save(photos / "x.npy", np.zeros((2, 3, 4, 4), np.float32))
    for option in ("--resize 4", "--mean 0.5", "--no-antialias", "--preprocessing imagenet"):
        refusal = cli("run", net, photos / "x.npy", *option.split()).refusal
        assert f"{option.split()[0]} is for pictures" in refusal
    p0 = photos / "p0.png"
    for option, says in (
        ("--resize 4x", "expected pixels, as in 224"),
        ("--crop 4x5x6", "expected pixels, as in 224"),
        ("--mean a", "expected a number"),
        ("--mean 1,2", "mean: expected 3 numbers"),
        ("--crop 5", "pictures become 5 x 5, the input takes 4 x 4"),
        ("--colours L", "takes 3 channels, L has 1"),
        ("--interpolation bicubic --no-antialias", "always antialiased"),
        ("--preprocessing gone.json", "gone.json: no such file"),
    ):
        assert says in cli("run", net, p0, *option.split(), *CPU).refusal
    image = Model((Node("same", Flatten(), ("x",), "y"),), (TensorInfo("x", (1, 3)),), ("y",))
    image.save(photos / "flat.json")
    assert "takes no image" in cli("run", photos / "flat.json", p0).refusal


def test_what_was_taken_in_part_is_forgotten() -> None:
    found = Classes("scores", 1)
    found.add(Inputs(np.zeros((2, 3)), ("a", "b")), {"scores": np.eye(3, dtype=np.float32)[:2]})
    found.best += found.best[:1]  # interrupted before the names came
    found.trim()
    assert found.to_json()["predictions"] == [0, 1]
    assert len(found.best) == len(found.names) == len(found.true_labels) == 2


def test_probabilities() -> None:
    given = np.array([[0.25, 0.75], [1, 1], [-1, 2], [0.9, 0.1004], [np.nan, 0]], np.float32)
    found = probabilities(given)
    assert found[0].tolist() == [0.25, 0.75]
    assert found[1].tolist() == [0.5, 0.5]
    assert found[2, 1] == pytest.approx(1 / (1 + np.exp(-3)))
    assert found[3].tolist() == given[3].astype(float).tolist()  # as near as float16 has it
    assert np.isnan(found[4]).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_])
def test_scores_that_have_no_negative(dtype: type) -> None:
    least = np.iinfo(np.int8).min if dtype is np.int8 else 0
    (found,) = best_classes(np.array([[least, 1]]).astype(dtype), 2)
    assert [one.number for one in found] == [1, 0]


def test_what_gives_no_classes_says_what_it_leaves_out(
    cli: Glnn, photos: Path, tmp_path: Path
) -> None:
    net = tmp_path / "filter.json"
    Model.sequential([Conv2d(3, 2, 3)], (3, 8, 8)).save(net)
    for options, said in (
        (("--batch", 3), "one run takes 3 samples: the first of 4, the others are left out"),
        (("--batch", 9), "one run takes 9 samples: the 4 are repeated"),
        ((), None),
    ):
        notes = cli("run", net, photos, *options, *CPU, "--json").json["notes"]
        assert [one for one in notes if "one run" in one] == ([said] if said else [])

"""`glnn train`."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.data import digits
from glnn.layers import Add, Flatten, Linear, ReLU, Softmax
from glnn.model import Model, Node, TensorInfo
from tests.cli.conftest import Glnn
from tests.files import weights_of

NAMES = ("loss", "accuracy", "validation_loss", "validation_accuracy")
ON_CPU = ("--backend", "cpu", "--batch", 8, "--lr", 0.1)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is one to write into."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Of four numbers and two classes, its first layer shared with nobody."""
    layers = [Linear(4, 8, seed=1), ReLU(), Linear(8, 2, seed=2), Softmax(1)]
    model = Model.sequential(layers, (4,), "net", ["a", "relu", "b", "softmax"])
    model.save(tmp_path / "net.json")
    return tmp_path / "net.json"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """40 samples, whose class is whether the first two numbers add up to more than 0."""
    x = np.random.default_rng(5).standard_normal((40, 4), np.float32)
    np.savez(tmp_path / "points.npz", x=x, y=(x[:, 0] + x[:, 1] > 0).astype(np.uint8))
    return tmp_path / "points.npz"


def test_trains(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    output = tmp_path / "new.json"
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    asked = ("--epochs", 6, "--validation", 0.25, "--output", output)
    found = cli("train", net, points, *ON_CPU, *asked, "--json").json
    assert (found["model"], found["backend"], found["device"]) == ("net", "cpu", "CPU (NumPy)")
    assert (found["samples"], found["validation_samples"]) == (30, 10)
    assert (found["epochs"], found["steps"]) == (6, 24)
    rows = found["history"]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert {name: found[name] for name in NAMES} == {name: rows[-1][name] for name in NAMES}
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"] and found["accuracy"] > 0.9
    assert found["output"] == str(output) and found["checkpoint"] is found["plot"] is None
    assert found["seconds"] >= sum(row["seconds"] for row in rows)
    with np.load(points) as data:
        right = glnn.load(output)(data["x"], "cpu").argmax(1) == data["y"]
    assert right.mean() > 0.85
    assert all(path.read_bytes() == content for path, content in before.items())


def test_shows_a_table(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    shown = cli("train", net, points, *ON_CPU, "--epochs", 2, "--output", tmp_path / "new.onnx")
    assert (shown.code, shown.err) == (0, "")
    head, _, *rows, _, where, output = shown.out.splitlines()
    assert head.split() == ["epoch", "step", "loss", "accuracy", "learning", "rate", "s"]
    assert [row.split()[:2] for row in rows] == [["1", "5"], ["2", "10"]]
    assert where == "40 samples on cpu: CPU (NumPy)" and output.endswith("new.onnx")
    unsaid = cli("train", net, points, *ON_CPU, "--epochs", 1)
    assert unsaid.out.endswith("output: net-trained.json\n") and glnn.load("net-trained.json")


def test_an_onnx_model_on_the_gpu(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    glnn.load(net).save(tmp_path / "net.onnx")
    asked = (
        "--backend",
        "compute",
        "--limits",
        "es31-minimum",
        "--kernel",
        "matmul=gemm_tiled",
    )
    more = ("--freeze", "a", "--optimizer", "sgd", "--momentum", 0.9, "--schedule", "cosine")
    output = tmp_path / "new.onnx"
    found = cli("train", tmp_path / "net.onnx", points, *asked, *more, "--output", output, "--json")
    assert found.json["backend"] == "compute"
    former, new = (glnn.load(tmp_path / name).parameters() for name in ("net.onnx", "new.onnx"))
    same = {name: np.array_equal(former[name], new[name]) for name in former}
    assert same == {"a.weight": True, "a.bias": True, "b.weight": False, "b.bias": False}


def test_files_of_idx(cli: Glnn, tmp_path: Path) -> None:
    """Of MNIST's names; images are flattened, and those of the test are held out."""
    images = np.random.default_rng(0).integers(0, 255, (12, 2, 2), np.uint8)
    labels = (images.reshape(12, 4)[:, 0] > 127).astype(np.uint8)
    (tmp_path / "mnist").mkdir()
    for part, count in (("train", 12), ("t10k", 4)):
        for kind, array in (("images-idx3", images[:count]), ("labels-idx1", labels[:count])):
            begin = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
            (tmp_path / "mnist" / f"{part}-{kind}-ubyte").write_bytes(begin + array.tobytes())
    Model.sequential([Linear(4, 2)], (4,)).save(tmp_path / "net.json")
    asked = ("train", tmp_path / "net.json", tmp_path / "mnist", *ON_CPU, "--json")
    found = cli(*asked).json
    assert (found["samples"], found["validation_samples"]) == (12, 4)
    assert found["validation_loss"] is not None
    asked += ("--validation", 0, "--epochs", 1, "--overwrite")
    assert cli(*asked).json["validation_loss"] is None


def test_from_scratch(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    """Parameters by the seed: the model needs none."""
    weights_of(net).unlink()
    document = json.loads(net.read_text())
    del document["weights"]
    net.write_text(json.dumps(document))
    assert 'there is no "weights" file' in cli("train", net, points).refusal
    asked = ("train", net, points, *ON_CPU, "--epochs", 1, "--from-scratch", "--json", "--seed")
    losses = [cli(*asked, seed, "--overwrite").json["loss"] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_goes_on_from_a_checkpoint(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    """As if it had never ended."""
    kept = ("--checkpoint", tmp_path / "kept.npz")
    outputs = [tmp_path / f"{name}.json" for name in ("half", "whole", "both")]
    half, whole, both = (("train", net, points, *ON_CPU, "--json", "--output", o) for o in outputs)
    cli(*half, "--epochs", 2, *kept)
    found = cli(*both, "--epochs", 4, *kept, "--resume").json
    expected = cli(*whole, "--epochs", 4).json
    assert [row["loss"] for row in found["history"]] == [r["loss"] for r in expected["history"]]
    parameters = [glnn.load(path).parameters() for path in outputs[1:]]
    assert all(np.array_equal(parameters[0][name], parameters[1][name]) for name in parameters[0])
    assert found["checkpoint"] == str(kept[1])


def test_stops_early(cli: Glnn, net: Path, points: Path) -> None:
    asked = ("--epochs", 50, "--lr", 0, "--early-stopping", 2, "--validation", points, "--json")
    assert cli("train", net, points, "--backend", "cpu", *asked).json["epochs"] == 3


def test_draws_a_plot(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.svg"
    found = cli("train", net, points, *ON_CPU, "--epochs", 2, "--plot", plot, "--json").json
    assert found["plot"] == str(plot) and "<svg" in plot.read_text()


def test_the_bundled_network_and_the_bundled_digits(cli: Glnn, tmp_path: Path) -> None:
    images, labels = digits()
    np.savez(tmp_path / "few.npz", image=images[:20], label=labels[:20])
    asked = ("--epochs", 1, "--lr", 0, "--backend", "cpu", "--json")
    found = cli("train", "lenet", tmp_path / "few.npz", *asked).json
    assert found["accuracy"] >= 0.95 and found["output"] == "lenet-trained.json"
    Model.sequential([Linear(784, 10)], (784,)).save(tmp_path / "flat.json")
    assert cli("train", "flat.json", "digits", *asked).json["samples"] == 1000


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--optimizer", "adam", "--momentum", 0.9), "--momentum: adam has none"),
        (("--lr", -1), "Adam lr must be"),
        (("--resume",), "--resume: expected --checkpoint FILE to go on from, got none"),
        (("--every", 5), "--every: expected --checkpoint FILE to write, got none"),
        (("--output", "net.txt"), "net.txt: a model is saved as a .json or .onnx file"),
        (("--output", "no/net.json"), "--output: cannot write to no/net.json: "),
        (("--plot", "plot.txt"), "--plot: expected a file of .png, .svg, .pdf, got plot.txt"),
        (("--freeze", "c"), "no parameter or layer is called 'c'"),
        (("--freeze", "*"), "there is no parameter to train"),
        (("--validation", 2), "--validation: expected a part from 0 to 1 or data, got 2.0"),
        (("--validation", 0.001), "fraction must leave a sample of 40 on either side, got 0.001"),
        (
            ("--plot", "a.png", "--checkpoint", "a.png"),
            "a.png: --checkpoint and --plot are the same file",
        ),
        (("--validation", "no.npz"), "no.npz: no such file"),
        (("--epochs", 0), "Invalid value for '--epochs'"),
        (("--loss", "mse"), "MSELoss: the target must be float32 (40, 2), got int32"),
        (("--kernel", "matmul=no"), "no kernel"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_mistakes(cli: Glnn, net: Path, points: Path, more: tuple[object, ...], says: str) -> None:
    before = {*net.parent.iterdir()}
    for style in ((), ("--json",)):
        assert says in cli("train", net, points, "--backend", "cpu", *more, *style).refusal
    assert {*net.parent.iterdir()} == before


def test_data_that_do_not_fit(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    x = np.zeros((4, 3), np.float32)
    np.savez(tmp_path / "other.npz", x=x, y=[0, 1, 0, 1])
    for data in ((tmp_path / "other.npz",), (points, "--validation", tmp_path / "other.npz")):
        said = cli("train", net, *data).refusal
        assert said == f"{tmp_path / 'other.npz'}: x: expected shape (N, 4), got (4, 3)"
    np.savez(tmp_path / "other.npz", x=np.zeros((4, 4), np.float32), y=[0, 1, 2, 1])
    wrong = cli("train", net, tmp_path / "other.npz", "--backend", "cpu").refusal
    assert "labels must be from 0 to 1, got 2" in wrong
    assert "expected an .npz file" in cli("train", net, net).refusal
    ends = TensorInfo("x", ("N", 4)), TensorInfo("z", ("N", 4))
    two = Model((Node("sum", Add(), ("x", "z"), "sum"),), ends, ("sum",))
    two.save(tmp_path / "two.json")
    said = cli("train", tmp_path / "two.json", points).refusal
    assert said.endswith("two.json has 2 inputs, glnn train takes one")
    Model((Node("r", ReLU(), ("x",), "r"),), (TensorInfo("x", (3, 4)),), ("r",)).save("fixed.json")
    said = cli("train", "fixed.json", points).refusal
    assert said == "fixed.json takes 3 samples a run: training needs an open batch"


def test_nothing_is_overwritten_unasked(cli: Glnn, net: Path, points: Path, tmp_path: Path) -> None:
    train = ("train", net, points, *ON_CPU, "--epochs", 1)
    for option, name in (("output", "net.json"), ("plot", "a.png"), ("checkpoint", "a.npz")):
        path = tmp_path / name
        path.touch()
        content = path.read_bytes()
        said = cli(*train, f"--{option}", path).refusal
        assert said.startswith(f"--{option}: {path} is there already: ") and "--overwrite" in said
        assert path.read_bytes() == content
    said = cli(*train, "--checkpoint", points, "--overwrite").refusal  # the data never are
    assert said == f"{points}: DATA and --checkpoint are the same file"
    before = glnn.load(net).parameters()
    cli(*train, "--output", net, "--overwrite", "--json")
    after = glnn.load(net).parameters()
    assert not any(np.array_equal(before[name], after[name]) for name in before)


def test_what_a_format_cannot_say_is_said_before(cli: Glnn, net: Path, points: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node("Erf", ["h"], ["y"])]
    weight = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight]), ir_version=8
    )
    onnx.save(model, net.with_name("erf.onnx"))
    said = cli("train", net.with_name("erf.onnx"), points, "--output", net.with_name("erf.json"))
    assert said.refusal.startswith("--output: g: node ")


def test_an_interruption(
    net: Path, points: Path, environment: Mapping[str, str], tmp_path: Path, cli: Glnn
) -> None:
    """It ends with a checkpoint, says so, and can be gone on from."""
    kept, output = tmp_path / "kept.npz", tmp_path / "new.json"
    train = ["train", net, points, *ON_CPU, "--checkpoint", kept, "--output", output]
    with subprocess.Popen(
        [sys.executable, "-m", "glnn", *map(str, train), "--every", "1", "--epochs", "1000000"],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
        # What a shell has begun in the background ignores it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            until = time.monotonic() + 60
            while not kept.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and not output.exists(), said
    first, last = said.splitlines()
    begin = f"glnn: {kept} has the first "
    assert first.startswith(begin) and last == "glnn: interrupted"
    assert first.endswith(" steps: the same command with --resume goes on from there")
    steps = int(first.removeprefix(begin).split()[0])
    assert not list(tmp_path.glob(".*"))
    epochs = steps // 5 + 2
    found = cli(*train, "--epochs", epochs, "--resume", "--json").json
    assert (found["steps"], found["epochs"]) == (5 * epochs, epochs) and output.exists()


def test_what_goes_wrong_in_between_is_said(cli: Glnn, net: Path, points: Path) -> None:
    shown = cli("train", net, points, "--backend", "cpu", "--optimizer", "sgd", "--lr", 1e30)
    assert shown.code == 0
    assert "glnn: the loss is nan in the end: a lower --lr may help, unless" in shown.err
    train = ("train", net, points, *ON_CPU, "--checkpoint", "kept.npz", "--overwrite")
    cli(*train, "--epochs", 1)
    shown = cli(*train, "--epochs", 2, "--resume", "--loss", "cross-entropy", "--lr", 0.2)
    assert shown.code == 0 and "kept.npz: was trained with optimizer Adam(lr=0.1" in shown.err


def test_help_has_examples(cli: Glnn) -> None:
    shown = cli("train", "--help")
    assert shown.code == 0 and "glnn train lenet-untrained digits" in shown.out


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """A folder for each of two classes, reddish and bluish pictures of several sizes."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(7)
    for name, channel in (("red", 0), ("blue", 2)):
        folder = tmp_path / "colours" / name
        folder.mkdir(parents=True)
        for i in range(15):
            colour = random.integers(0, 120, 3)
            colour[channel] += 130
            image.new("RGB", (6 + i, 9), tuple(colour.tolist())).save(folder / f"{i}.png")
    return tmp_path / "colours"


@pytest.fixture
def eye(tmp_path: Path) -> Path:
    """A model of pictures of 4 x 4, and two classes."""
    layers = [Flatten(), Linear(48, 2, seed=1)]
    Model.sequential(layers, (3, 4, 4), "eye", ["flat", "scores"]).save(tmp_path / "eye.json")
    return tmp_path / "eye.json"


def test_trains_on_pictures_in_folders(cli: Glnn, eye: Path, colours: Path, tmp_path: Path) -> None:
    asked = ("train", eye, colours, *ON_CPU, "--epochs", 20)
    found = cli(*asked, "--json").json
    assert (found["samples"], found["validation_samples"]) == (24, 6)  # a fifth of each class
    assert found["classes"] == ["blue", "red"] and found["validation_accuracy"] == 1
    shown = cli("run", "eye-trained.json", colours / "red" / "0.png", "--backend", "cpu", "--json")
    assert shown.json["top"][0][0]["label"] == "red"
    (colours / "red" / "3.png").write_bytes(b"x")
    said = cli(*asked, "--validation", 0, "--overwrite")
    assert said.code == 0 and "classes: blue, red" in said.out and "29 samples on" in said.out
    assert said.err.startswith("glnn: left out: ") and "3.png" in said.err
    held = cli(*asked, "--validation", colours, "--overwrite", "--json")
    assert json.loads(held.out)["validation_samples"] == 29
    (colours / "green").mkdir()
    assert (
        "at most as many classes as the model gives, 2, got 3" in cli(*asked, "--overwrite").refusal
    )

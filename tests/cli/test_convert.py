"""`glnn convert`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn import images
from glnn.layers import Conv2d, Dropout, Linear, ReLU, Sigmoid, Tanh
from glnn.model import Model
from tests.cli.conftest import Glnn

X = np.array([[2, 0, 0], [5, 0, 1]], np.float32)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A model that every format can say."""
    layers = [Linear(3, 4), Sigmoid(), Linear(4, 2, bias=False), ReLU()]
    Model.sequential(layers, (3,), "chain").save(tmp_path / "chain.json")
    return tmp_path / "chain.json"


def test_through_all_formats(cli: Glnn, chain: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    expected = glnn.load(chain)(X, "cpu")
    files = [chain]
    for name, format in (
        ("rovder/a.json", "rovder"),
        ("b.onnx", "onnx"),
        ("rovder/c.json", "rovder"),
        ("d.json", "glnn"),
        ("e.onnx", "onnx"),
        ("f.onnx", "onnx"),
    ):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        asked = ("--format", "rovder") if format == "rovder" else ()
        found = cli("convert", files[-1], target, "--json", *asked).json
        assert (found["file"], found["format"]) == (str(target), format)
        beside = {path for path in target.parent.glob(f"{target.stem}[-.]*") if path != target}
        assert set(found["beside"]) == {path.name for path in beside}
        assert beside or format == "onnx"
        assert found["bytes"] == sum(path.stat().st_size for path in (target, *beside))
        files.append(target)
        assert np.array_equal(glnn.load(target)(X, "cpu"), expected), name
    assert files[-1].read_bytes() == files[-2].read_bytes()  # ONNX stays as it was
    names = {f"{net}{part}.json" for net in "ac" for part in ("", "-1_w", "-1_b", "-3_w", "-3_b")}
    assert {path.name for path in files[1].parent.glob("*.json")} == names
    assert json.loads(files[1].read_text())["layers"][0] == {
        "layer": "AffineLayer",
        "weights": "a-1_w.json",
        "biases": "a-1_b.json",
    }


def test_says_what_it_wrote(cli: Glnn, small: Path, tmp_path: Path) -> None:
    shown = cli("convert", small, tmp_path / "new.json")
    assert (shown.code, shown.err) == (0, "")
    (weights,) = tmp_path.glob("new.weights-*.npz")
    text = f"small as glnn: {tmp_path}/new.json and {weights.name} beside it, "
    assert " ".join(shown.out.split()).startswith(text)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([Linear(3, 4), Tanh()], "layer 'tanh1': a Network Definition has Linear, Sigmoid, ReLU"),
        ([Linear(3, 4), Dropout()], "layer 'dropout1': a Network Definition has "),
        ([ReLU()], "a Network Definition without a Linear layer does not say the input's size"),
    ],
)
def test_what_rovder_cannot_say_is_refused(
    cli: Glnn, tmp_path: Path, layers: list, says: str
) -> None:
    Model.sequential(layers, (3,)).save(tmp_path / "net.json")
    before = set(tmp_path.iterdir())
    assert (
        says
        in cli(
            "convert", tmp_path / "net.json", tmp_path / "out.json", "--format", "rovder"
        ).refusal
    )
    assert set(tmp_path.iterdir()) == before


def test_images_are_refused_by_rovder(cli: Glnn, tmp_path: Path) -> None:
    Model.sequential([Conv2d(1, 1, 1)], (1, 4, 4)).save(tmp_path / "net.json")
    target = ("convert", tmp_path / "net.json", tmp_path / "out.json", "--format", "rovder")
    assert "takes (N, features), the input 'input' is (N, 1, 4, 4)" in cli(*target).refusal


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("out.txt", (), "out.txt: a model is saved as a .json or .onnx file"),
        ("out.onnx", ("--format", "rovder"), "out.onnx: a model is saved as a .json file"),
        ("out.json", ("--format", "onnx", "--json"), "a model is saved as a .onnx file"),
        ("gone/out.json", (), "gone/out.json: No such file or directory"),
        ("gone/out.onnx", (), "gone/out.onnx: No such file or directory"),
        ("gone/out.json", ("--format", "rovder"), "gone/out.json: No such file or directory"),
        ("small.json", (), "IN and OUT are the same file"),
    ],
)
def test_refused(cli: Glnn, small: Path, target: str, options: tuple, says: str) -> None:
    assert says in cli("convert", small, small.parent / target, *options).refusal


def test_what_no_layer_computes_is_refused(cli: Glnn, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "net.onnx"
    info = [onnx.helper.make_tensor_value_info(name, 1, ["N", 3]) for name in "xy"]
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"], "sums")
    axis = onnx.numpy_helper.from_array(np.array(1), "axis")
    graph = onnx.helper.make_graph([node], "net", info[:1], info[1:], [axis])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), path)
    said = cli("convert", path, tmp_path / "net.json").refusal
    assert "net: node 'sums', CumSum, is no layer of glnn's: there is none for CumSum" in said
    assert cli("convert", path, tmp_path / "copy.onnx").code == 0
    assert (tmp_path / "copy.onnx").read_bytes() == path.read_bytes()


def test_weights_alone_and_into_a_model(cli: Glnn, small: Path, tmp_path: Path) -> None:
    expected = glnn.load(small).state_dict()
    shapes = {name: list(array.shape) for name, array in expected.items()}
    files = [small, *(tmp_path / f"w.{ending}" for ending in ("safetensors", "npz"))]
    for source, target in itertools.pairwise(files):
        found = cli("convert", source, target, "--json").json
        assert (found["format"], found["tensors"]) == (target.suffix[1:], shapes)
        assert found["bytes"] == target.stat().st_size
    said = cli("convert", files[2], tmp_path / "again.safetensors").out
    assert said.startswith(f"{files[2]} as safetensors: {tmp_path}/again.safetensors, ")
    doubled = {f"module.{name}": 2 * array for name, array in expected.items()}
    glnn.save_weights(doubled, tmp_path / "doubled.npz")
    target = tmp_path / "doubled.json"
    assert cli("convert", small, target, "--weights", tmp_path / "doubled.npz").code == 0
    for name, array in glnn.load(target).state_dict().items():
        assert np.array_equal(array, 2 * expected[name])


def test_a_model_without_weights_of_its_own(cli: Glnn, chain: Path, tmp_path: Path) -> None:
    glnn.save_weights(glnn.load(chain).state_dict(), tmp_path / "w.safetensors")
    expected = glnn.load(chain)(X, "cpu")
    document = json.loads(chain.read_text())
    (tmp_path / document.pop("weights")).unlink()
    chain.write_text(json.dumps(document))
    np.save(tmp_path / "x.npy", X)
    run = ("run", chain, tmp_path / "x.npy", "--backend", "cpu", "--dump", tmp_path / "y.npz")
    assert "parameters" in cli(*run).refusal
    assert cli(*run, "--weights", tmp_path / "w.safetensors").code == 0
    (output,) = glnn.load(chain, untrained=True).outputs
    with np.load(tmp_path / "y.npz") as found:
        assert np.array_equal(found[output], expected)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("w.npz", "w.npz"), "w.npz: IN and OUT are the same file"),
        (("w.npz", "net.json"), "w.npz: holds weights alone: make or load the model"),
        (("w.npz", "v.npz", "--weights", "w.npz"), "w.npz holds weights itself"),
        (("lenet", "v.npz", "--weights", "w.npz"), "w.npz: the state dict is not that of lenet"),
        (("lenet", "v.npz", "--weights", "gone.npz"), "gone.npz: no such file"),
        (("lenet", "v.npz", "--format", "onnx"), "v.npz: a model is saved as a .onnx file"),
        (("lenet", "gone/v.npz"), "OUT: cannot write to gone/v.npz: No such file or directory"),
    ],
)
def test_weights_refused(cli: Glnn, tmp_path: Path, monkeypatch, arguments, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    glnn.save_weights({"a": X}, "w.npz")
    assert says in cli("convert", *arguments).refusal
    assert [path.name for path in tmp_path.iterdir()] == ["w.npz"]


def test_a_model_is_told_of_its_pictures_and_classes(cli: Glnn, small: Path) -> None:
    (small.parent / "classes.txt").write_text("left\nright\n")
    told = small.parent / "told.json"
    asked = ("--preprocessing", "imagenet", "--labels", small.parent / "classes.txt")
    found = cli("convert", small, told, *asked, "--json").json
    said = glnn.load(told).metadata
    assert found["metadata"] == said
    assert images.described(said) == images.Preprocessing.imagenet()
    assert images.labels_of(said) == {0: "left", 1: "right"}
    again = small.parent / "again.json"
    cli("convert", told, again)
    assert glnn.load(again).metadata == said
    assert (
        "has no place for them"
        in cli("convert", small, again, "--format", "rovder", "--overwrite", *asked).refusal
    )


def test_labels_that_are_not_the_models_are_refused(cli: Glnn, small: Path) -> None:
    labels, net = small.parent / "classes.txt", small.parent / "image.json"
    labels.write_text("left\nright\n")
    Model.sequential([Conv2d(1, 2, 1)], (1, 4, 4)).save(net)
    target = small.parent / "out.json"
    says = f"--labels is for classes, (N, classes), or objects: {net} gives conv2d1 (N, 2, 4, 4)"
    assert says in cli("convert", net, target, "--labels", labels).refusal
    labels.write_text("a\nb\nc\nd\n")
    says = f"{labels}: 4 names, the model has 2 classes"
    assert says in cli("convert", small, target, "--labels", labels).refusal
    assert not target.exists()


@pytest.mark.parametrize("name", ["own.json", "own.onnx", "own.npz"])
def test_what_is_there_stays_unless_it_is_asked_for(
    cli: Glnn, small: Path, tmp_path: Path, name: str
) -> None:
    if name.endswith("onnx"):
        pytest.importorskip("onnx")
    target = tmp_path / name
    assert cli("convert", small, target).code == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = cli("convert", "lenet", target).refusal
    assert said == f"OUT: {target} is there already: --overwrite replaces it"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert cli("convert", "lenet", target, "--overwrite").code == 0
    assert target.read_bytes() != before[target]
    said = cli("convert", small, small, "--overwrite").refusal
    assert "IN and OUT are the same file" in said

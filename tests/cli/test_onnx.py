"""The verbs on .onnx files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.data import digits
from glnn.graph.operators import Pool2d
from glnn.layers import Add, Embedding, Linear, MaxPool2d
from glnn.model import Model, Node, TensorInfo
from tests.cli.conftest import Glnn

onnx = pytest.importorskip("onnx")
LENET = Path(__file__).parents[1] / "onnx" / "lenet-mnist.onnx"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Of two inputs, integers and floats."""
    nodes = (
        Node("table", Embedding(2, 4), ("ids",), "table"),
        Node("line", Linear(3, 4), ("x",), "line"),
        Node("sum", Add(), ("table", "line"), "sum"),
    )
    inputs = (TensorInfo("ids", ("N",), "tensor(int32)"), TensorInfo("x", ("N", 3)))
    Model(nodes, inputs, ("sum",), "words").save(tmp_path / "words.onnx")
    return tmp_path / "words.onnx"


@pytest.fixture
def images_of_any_size(tmp_path: Path) -> Path:
    Model.sequential([MaxPool2d(2)], (1, 4, 4)).save(tmp_path / "open.onnx")
    proto = onnx.load(tmp_path / "open.onnx")
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, name in ((2, "h"), (3, "w")):
            value.type.tensor_type.shape.dim[axis].dim_param = value.name[0] + name
    onnx.save(proto, tmp_path / "open.onnx")
    return tmp_path / "open.onnx"


def test_run_and_verify(cli: Glnn, tmp_path: Path) -> None:
    images, labels = digits()
    samples = tmp_path / "digits.npz"
    np.savez(samples, image=images[:50, None], label=labels[:50])
    found = cli("run", LENET, samples, "--json").json
    assert found["accuracy"] == 0.98 and len(found["predictions"]) == 50
    found = cli("verify", LENET, samples, "--json").json
    ops = [layer["op"] for layer in found["layers"]]
    assert found["ok"] and sum(op in ("conv2d", "pooled_conv2d") for op in ops) == 2


def test_bench(cli: Glnn) -> None:
    found = cli("bench", LENET, "--batch", 2, "--backends", "cpu", "--repeat", 1, "--json").json
    assert found["batch"] == 2 and found["backends"]["cpu"]["total_ms"] > 0


def test_a_wrong_node_is_named(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Pool2d.specialize

    def wrong(self: Pool2d, types: Any) -> Any:
        compute = right(self, types)
        return lambda *arrays: (compute(*arrays)[0] + np.float32(1),)

    monkeypatch.setattr(Pool2d, "specialize", wrong)  # of the cpu backend, not what verify expects
    shown = cli("verify", LENET, "--backend", "cpu", "--json")
    assert shown.code == 1
    assert json.loads(shown.out)["first_divergence"] == "/m/pool/AveragePool"


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_several_inputs(cli: Glnn, words: Path, tmp_path: Path, backend: str) -> None:
    """At random, or from a file."""
    asked = ("verify", words, "--backend", backend, "--json")
    assert cli(*asked, "--batch", 5).json["ok"]
    np.savez(tmp_path / "given.npz", ids=np.array([0, 1, 1]), x=np.ones((3, 3), np.float32))
    assert cli(*asked, tmp_path / "given.npz").json["ok"]


def test_sizes_left_open_are_given(cli: Glnn, images_of_any_size: Path) -> None:
    path, asked = images_of_any_size, ("--shape", "input=2,1,6,8", "--json")
    assert cli("plan", path, *asked).json["inputs"] == {"input": [2, 1, 6, 8]}
    assert cli("verify", path, *asked).json["ok"]
    assert cli("bench", path, "--backends", "cpu", "--repeat", 1, *asked).json["batch"] == 2
    session = glnn.InferenceSession(path, "cpu")
    assert session.run(None, {"input": np.zeros((1, 1, 8, 2), np.float32)})[0].shape[2:] == (4, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--shape x", "expected NAME=SIZES, as in x=1,3,64,96, got 'x'"),
        ("--shape x=1,-3", "expected NAME=SIZES, as in x=1,3,64,96, got 'x=1,-3'"),
        ("--shape y=1,3", "words.onnx has no input 'y', it takes 'ids', 'x', of sizes N"),
        ("--shape N=1,3", "--shape: N is one size, got 2: (1, 3)"),
        ("--shape x=1,4", "input 'x' must have shape (N, 3), got (1, 4)"),
        ("--shape x=2,3 --batch 1", "inputs 'ids' and 'x' must have one size N, got 1 and 2"),
        ("--shape x=2,3 --shape ids=1", "'ids' and 'x' must have one size N, got 1 and 2"),
        ("gone.npz", "gone.npz: no such file"),
        ("a.npy", "words.onnx takes 'ids', 'x': expected ids=FILE for each, or an .npz file"),
    ],
)
def test_refused(cli: Glnn, words: Path, arguments: str, says: str) -> None:
    assert says in cli("verify", words, *arguments.split()).refusal


@pytest.fixture
def convolution_of_any_size(tmp_path: Path) -> Path:
    """A 3 x 3 convolution of images (N, 3, h, w), of a graph called main_graph."""
    conv = onnx.parser.parse_node("y = Conv(x, w)")
    w = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    ends = [
        onnx.helper.make_tensor_value_info("x", 1, ["N", 3, "h", "w"]),
        onnx.helper.make_tensor_value_info("y", 1, ["N", 4, "u", "v"]),
    ]
    graph = onnx.helper.make_graph([conv], "main_graph", ends[:1], ends[1:], [w])
    opset = onnx.helper.make_opsetid("", 17)
    path = tmp_path / "convolution.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.parametrize("verb", ["bench", "verify", "plan", "view"])
def test_open_sizes_that_are_too_small(
    cli: Glnn, convolution_of_any_size: Path, monkeypatch, verb: str
) -> None:
    monkeypatch.chdir(convolution_of_any_size.parent)
    net = convolution_of_any_size.name
    refusal = cli(verb, net).refusal
    assert "the kernel of (4, 3, 3, 3) is larger than the padded x (1, 3, 1, 1)" in refusal
    assert refusal.endswith("; h and w are open: give sizes, as --shape h=64 --shape w=64")
    assert cli(verb, net, "--shape", "h=8", "--shape", "w=9").code == 0
    assert "are open" not in cli(verb, net, "--shape", "x=1,3,2,2").refusal


def test_info_of_open_sizes(cli: Glnn, convolution_of_any_size: Path) -> None:
    out = cli("info", convolution_of_any_size).out
    assert "parameters: 108 trainable, 0 others, 432 B" in out
    assert "open are N, h, w; give shapes (--shape) for the rest" in " ".join(out.split())
    out = cli("info", convolution_of_any_size, "--shape", "h=8", "--shape", "w=9").out
    assert "(N, 4, 6, 7)" in out and f"{4 * 6 * 7 * 27:,}" in out


def test_a_fixed_batch(cli: Glnn, convolution_of_any_size: Path) -> None:
    """Errors name the file, not the graph."""
    proto = onnx.load(convolution_of_any_size)
    for axis, size in ((0, 1), (2, 8), (3, 8)):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    net = convolution_of_any_size.with_name("fixed.onnx")
    onnx.save(proto, net)
    for verb in ("info", "plan"):
        assert cli(verb, net, "--batch", 1).code == 0
    for verb in ("bench", "plan", "verify"):
        says = f"--batch: {net} takes 1 sample a run, got 8"
        assert cli(verb, net, "--batch", 8).refusal == says
    assert cli("info", net, "--batch", 8).refusal.startswith(f"{net}: batch: ")
    assert f"--shape: {net} has no input 'z'" in cli("plan", net, "--shape", "z=1").refusal


def test_what_is_no_class_is_summed_up(cli: Glnn, images_of_any_size: Path) -> None:
    folder = images_of_any_size.parent
    x = np.arange(32, dtype=np.float32).reshape(1, 1, 8, 4)
    np.save(folder / "x.npy", x)
    asked = ("run", images_of_any_size, folder / "x.npy")
    (found,) = cli(*asked, "--dump", folder / "y.npz", "--trace", folder / "t", "--json").json[
        "outputs"
    ]
    name = found.pop("name")
    stated = {"shape": [1, 1, 4, 2], "type": "float32", "least": 5, "mean": 18, "greatest": 31}
    assert found == stated
    with np.load(folder / "y.npz") as archive:
        assert np.array_equal(archive[name].ravel(), [5, 7, 13, 15, 21, 23, 29, 31])
    shown = cli(*asked, "--backend", "cpu")
    assert (shown.code, shown.err) == (0, "")
    assert name in shown.out and "on cpu: CPU (NumPy)" in shown.out
    assert "needs an INPUT" in cli("run", images_of_any_size).refusal


def test_run_of_several_inputs(cli: Glnn, words: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "given.npz", ids=np.array([0, 1, 1]), x=np.ones((3, 3), np.float32))
    (found,) = cli("run", words, tmp_path / "given.npz", "--json").json["outputs"]
    assert found["shape"] == [3, 4]

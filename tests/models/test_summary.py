"""Summaries of models: shapes, parameters and multiply-adds, as text, HTML and JSON."""

from __future__ import annotations

import copy
import json
import pickle
from html.parser import HTMLParser

import numpy as np
import pytest

import glnn
from glnn.errors import ModelError, ShapeError
from glnn.layers import LSTM, BatchNorm2d, Conv2d, ConvTranspose2d, Flatten, Linear, ReLU
from glnn.model import Model
from glnn.profiling import profile
from glnn.training import SGD, CrossEntropyLoss, Trainer


class Cells(HTMLParser):
    """The texts of an HTML table's cells, row by row, and the tags that there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert not self._open  # every element is closed

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def net() -> Model:
    layers = [
        Conv2d(3, 8, 3, stride=2, padding=1, groups=1),
        BatchNorm2d(8),
        ReLU(),
        ConvTranspose2d(8, 4, 2, stride=2),
        Flatten(),
        Linear(4 * 16 * 16, 10),
    ]
    return Model.sequential(layers, (3, 16, 16), "net")


def test_counts_of_a_net(net: Model) -> None:
    said = net.summary()
    by_kind = {layer.kind: layer for layer in said.layers}
    conv, back, linear = (by_kind[k] for k in ("Conv2d", "ConvTranspose2d", "Linear"))
    # For each number of the result, or of x where it is transposed, the weights that meet there.
    assert conv.multiply_adds == 8 * 8 * 8 * 3 * 3 * 3
    assert back.multiply_adds == 8 * 8 * 8 * 4 * 2 * 2
    assert linear.multiply_adds == 1024 * 10
    assert by_kind["ReLU"].multiply_adds == by_kind["BatchNorm2d"].multiply_adds == 0
    assert said.multiply_adds == conv.multiply_adds + back.multiply_adds + 10240
    assert conv.parameters == 8 * 27 + 8 and conv.parameter_bytes == 4 * conv.parameters
    assert by_kind["BatchNorm2d"].parameters == 4 * 8
    assert said.parameters - said.trainable == 2 * 8  # running mean and variance
    assert conv.outputs == (("N", 8, 8, 8),) and conv.output_bytes == 4 * 512
    assert said.input_bytes == 4 * 3 * 16 * 16 and said.sizes == {"N": 1}


def test_sizes_that_are_given(net: Model) -> None:
    one, eight = net.summary(), net.summary(batch=8)
    assert eight.multiply_adds == 8 * (one.multiply_adds or 0)
    assert eight.layers[0].outputs == ((8, 8, 8, 8),) and eight.inputs[0].shape == (8, 3, 16, 16)
    assert eight == net.summary((8, 3, 16, 16)) == net.summary({"input": (8, 3, 16, 16)})
    assert eight == net.summary({"N": 8})


def test_the_numbers_are_those_that_are_known() -> None:
    """15.5 billion multiply-adds and 138 million parameters: Simonyan and Zisserman 2014."""
    said = glnn.load("vgg16").summary()
    assert (said.parameters, said.multiply_adds) == (138_357_544, 15_470_264_320)


def test_a_recurrent_layer_counts_what_is_computed() -> None:
    """Five units are computed as eight, a multiple of four: inputs of six, three steps."""
    (layer,) = Model.sequential([LSTM(6, 5)], (3, 6)).summary().layers
    assert layer.multiply_adds == 3 * 4 * 8 * (6 + 8)
    assert len(layer.outputs) == 3


def test_an_onnx_model_with_open_sizes() -> None:
    parser = pytest.importorskip("onnx.parser")
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[B, T, 6] x, int64[n] at) => '
        "(float[B, T, 5] y, float[K, T, 5] z) "
        "{ y = MatMul(x, w)  z = Gather(y, at) }"
    )
    w = np.ones((6, 5), np.float16).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    from glnn.model.onnx_format import model_from_proto

    model = model_from_proto(proto, "net")
    said = model.summary()
    assert said.sizes is None and said.multiply_adds is None
    assert said.totals == (
        "parameters: 30 trainable, 0 others, 120 B",
        "multiply-adds and memory of results: open are B, T, n; give shapes (--shape) for the rest",
    )
    assert str(said).splitlines()[-2:] == list(said.totals)
    assert said.layers[0].outputs == (("B", "T", 5),)
    assert (said.parameters, said.trainable, said.parameter_bytes) == (30, 30, 120)
    known = model.summary({"B": 2, "T": 7, "at": (3,)})
    assert known.multiply_adds == 2 * 7 * 6 * 5 and known.layers[0].outputs == ((2, 7, 5),)
    assert [layer.kind for layer in known.layers] == ["MatMul", "Gather"]
    assert known.layers[1].outputs == ((3, 7, 5),)
    half = model.summary(batch=2)
    assert half.inputs[0].shape == (2, "T", 6) and half.multiply_adds is None
    with pytest.raises(ModelError, match="takes shapes or sizes of x, at, B, T, n, got 'C'"):
        model.summary({"C": 2})
    with pytest.raises(ModelError, match="has 2 inputs: expected shapes by their names"):
        model.summary((2, 7, 6))


@pytest.mark.parametrize(
    ("shapes", "batch", "says"),
    [
        ((2, 4, 16, 16), None, r"must have shape \(N, 3, 16, 16\), got \(2, 4, 16, 16\)"),
        ({"input": (3, 16)}, None, "must have 4 dimensions"),
        ({"input": (2, 3, 16, 16)}, 3, "the size N is 3 and 2"),
        (None, 0, "must not be empty"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(net: Model, shapes, batch, says) -> None:
    with pytest.raises(ShapeError, match=says):
        net.summary(shapes, batch=batch)


def test_a_fixed_batch_may_be_said() -> None:
    model = fixed_batch()
    assert model.summary(batch=4) == model.summary()
    with pytest.raises(ShapeError, match=r"^batch: net takes a batch of 4 alone, got 8$"):
        model.summary(batch=8)


def fixed_batch() -> Model:
    """Return a model of an ONNX file that takes x (4, 6) alone."""
    parser = pytest.importorskip("onnx.parser")
    from glnn.model.onnx_format import model_from_proto

    text = "net (float[4, 6] x) => (float[4, 6] y) { y = Relu(x) }"
    return model_from_proto(
        parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), "net"
    )


def test_sizes_that_are_given_are_shown_where_the_batch_is_open() -> None:
    """A convolution's sizes have no name; those that follow from the batch stay unknown."""
    parser = pytest.importorskip("onnx.parser")
    numpy_helper = pytest.importorskip("onnx.numpy_helper")
    from glnn.model.onnx_format import model_from_proto

    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[N, 3, H, W] x) => '
        "(float[N, 4, U, V] y, float[A, V] z) "
        "{ y = Conv(x, w)  z = Flatten<axis = 3>(y) }"
    )
    w = np.ones((4, 3, 3, 3), np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    model = model_from_proto(proto, "net")
    conv, flat = model.summary({"H": 8, "W": 11}).layers
    assert conv.outputs == (("N", 4, 6, 9),)
    assert flat.outputs[0][0] not in (24, 48) and flat.outputs[0][1] == 9
    assert model.summary().layers[0].outputs[0][:2] == ("N", 4)


def test_random_weights_are_named_as_such(net: Model) -> None:
    """Until all are given; a copy goes its own way."""
    said = "random weights: none were loaded or trained"
    assert said in str(net.summary()) and said in str(net) and net.summary().random_weights
    other = pickle.loads(pickle.dumps(net))
    net.load_state_dict(net.state_dict())
    assert said not in str(net.summary()) and not net.has_random_weights
    assert net.info.random_weights is False and other.info.random_weights is True
    assert other.has_random_weights and copy.deepcopy(other).has_random_weights
    net.begin(3)
    assert net.has_random_weights
    Trainer(net, CrossEntropyLoss(), SGD(lr=0.1), backend="cpu").fit(
        np.ones((2, 3, 16, 16), np.float32), np.arange(2), epochs=1, progress=False
    )
    assert not net.has_random_weights
    assert glnn.load("lenet-untrained").has_random_weights
    assert not glnn.load("lenet").has_random_weights


def test_it_is_text_html_and_json(net: Model) -> None:
    said = net.summary(batch=2)
    rows = Cells(said._repr_html_()).rows
    lines = str(said).splitlines()
    assert rows[0] == ["layer", "kind", "output", "parameters", "multiply-adds"]
    assert rows[-1] == ["linear1", "Linear", "(2, 10)", "10,250", "20,480"]
    assert lines[1].split("  ")[0] == "layer" and lines[7].split()[-2:] == ["10,250", "20,480"]
    assert lines[-3] == "parameters: 10,622 trainable, 16 others"
    assert lines[-1].startswith("memory: inputs 6.0 KiB, results ")
    document = json.loads(json.dumps(said.to_dict()))
    assert document["layers"][0]["outputs"] == [[2, 8, 8, 8]]
    assert document["multiply_adds"] == said.multiply_adds


def test_names_cannot_bring_elements_of_html() -> None:
    name = "<script>alert(1)</script>&\x1b[31m"
    model = Model.sequential({name: Linear(2, 3)}, (2,), "<img src=x onerror=alert(1)>")
    for text in (model._repr_html_(), model.summary()._repr_html_()):
        cells = Cells(text)
        assert cells.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert cells.rows[1][0] == name.replace("\x1b", "\\x1b")


def test_what_notebooks_show_of_plans_profiles_and_trainings(net: Model) -> None:
    assert [row[0] for row in Cells(net._repr_html_()).rows[1:]] == [n.name for n in net.nodes]
    session = glnn.InferenceSession(net, backend="cpu")
    x = np.ones((2, 3, 16, 16), np.float32)
    plan = session.plan({"input": x.shape})
    steps = Cells(plan._repr_html_()).rows
    assert [row[0] for row in steps[1:]] == [step.name for step in plan.steps]
    assert steps[0][:3] == ["step", "op", "kernel"]
    times = profile(plan, {"input": x}, repeat=1)
    shown = Cells(times._repr_html_()).rows
    assert len(shown) == 1 + len(plan.steps) and "wall ms" in shown[0]
    history = Trainer(net, CrossEntropyLoss(), SGD(lr=0.1), backend="cpu").fit(
        x, np.arange(2), epochs=2, progress=False
    )
    epochs = Cells(history._repr_html_()).rows
    assert [row[0] for row in epochs] == ["epoch", "1", "2"]

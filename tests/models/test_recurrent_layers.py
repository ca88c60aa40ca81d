"""LSTM, GRU, RNN and their cells against loops in float64, alone and in models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError, GlnnError
from glnn.layers import GRU, LSTM, RNN, Flatten, GRUCell, Layer, Linear, LSTMCell, ReLU, RNNCell
from glnn.model import Model
from glnn.model.node import Node
from glnn.training import Adam, Trainer

Arrays = dict[str, np.ndarray]


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> str:
    try:
        return open_backend(request.param).name
    except DeviceError as failure:
        pytest.skip(str(failure))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def step(kind: str, p: Arrays, end: str, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """One step of one sample by PyTorch's formulae: h and c after it."""
    none = np.zeros(len(p["weight_ih" + end]))
    ours = p["weight_ih" + end] @ x + p.get("bias_ih" + end, none)
    theirs = p["weight_hh" + end] @ h + p.get("bias_hh" + end, none)
    if kind.startswith("LSTM"):
        i, f, g, o = np.split(ours + theirs, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        return (p["weight_hr" + end] @ h if "weight_hr" + end in p else h), c
    if kind.startswith("GRU"):
        (a, b, e), (u, v, w) = np.split(ours, 3), np.split(theirs, 3)
        r, z = sigmoid(a + u), sigmoid(b + v)
        return (1 - z) * np.tanh(e + r * w) + z * h, c
    return (np.maximum if kind == "relu" else lambda y, _: np.tanh(y))(ours + theirs, 0), c


def expected(layer: Any, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, ...]:
    """The output and the last states for x (t, n, i) and initial states (d layers, n, ...)."""
    kind = getattr(layer, "nonlinearity", type(layer).__name__)
    p = {name: array.astype(np.float64) for name, array in layer.parameters.items()}
    ends = ("", "_reverse") if layer.bidirectional else ("",)
    y, h, c = x.astype(np.float64), h.astype(np.float64), c.astype(np.float64)
    for number in range(layer.num_layers):
        both = []
        for place, end in enumerate(ends):
            row = number * len(ends) + place
            out = np.zeros((*y.shape[:2], h.shape[2]))
            times = range(len(y)) if not place else range(len(y) - 1, -1, -1)
            for n in range(y.shape[1]):
                for t in times:
                    of = f"_l{number}{end}"
                    h[row, n], c[row, n] = step(kind, p, of, y[t, n], h[row, n], c[row, n])
                    out[t, n] = h[row, n]
            both.append(out)
        y = np.concatenate(both, 2)
    return y, h, c


def flat(found: Any) -> list[np.ndarray]:
    """All arrays of nested tuples, in order."""
    return [found] if isinstance(found, np.ndarray) else [a for one in found for a in flat(one)]


def close(found: Any, wanted: Any) -> None:
    for got, want in zip(flat(found), flat(wanted), strict=True):
        assert got.shape == want.shape and got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


CASES: list[tuple[Layer, int, int]] = [
    (LSTM(3, 5), 4, 2),
    (LSTM(5, 4, 2, batch_first=True, bidirectional=True), 3, 3),
    (LSTM(2, 7, 2, False, bidirectional=True, proj_size=3), 2, 2),
    (LSTM(1, 1), 1, 1),
    (GRU(3, 5, 2, batch_first=True), 3, 2),
    (GRU(4, 3, bias=False, bidirectional=True), 2, 3),
    (RNN(3, 6, bidirectional=True), 3, 2),
    (RNN(2, 3, 2, "relu", False), 4, 1),
]


@pytest.mark.parametrize(("layer", "t", "n"), CASES, ids=lambda one: str(one)[:60])
@pytest.mark.parametrize("given", [False, True])
def test_sequences(backend: str, layer: Any, t: int, n: int, given: bool) -> None:
    rng = np.random.default_rng(t * n)
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = layer.proj_size or layer.hidden_size, layer.hidden_size
    x = rng.standard_normal((t, n, layer.input_size)).astype(np.float32)
    h, c = (rng.standard_normal((rows, n, size)).astype(np.float32) * given for size in sizes)
    hx = None if not given else (h, c) if isinstance(layer, LSTM) else h
    y, *ends = expected(layer, x, h, c)
    ends = ends if isinstance(layer, LSTM) else ends[:1]
    if layer.batch_first:
        x, y = x.swapaxes(0, 1), y.swapaxes(0, 1)
    found = layer(x, hx, backend=backend)
    assert isinstance(found[1], tuple) is isinstance(layer, LSTM)  # as PyTorch's
    close(found, (y, *ends))


@pytest.mark.parametrize(
    "layer", [LSTMCell(3, 5), LSTMCell(3, 2, False), GRUCell(2, 3), RNNCell(2, 5, True, "relu")]
)
def test_cells(backend: str, layer: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, layer.input_size)).astype(np.float32)
    h, c = rng.standard_normal((2, 3, layer.hidden_size)).astype(np.float32)
    p = {name: array.astype(np.float64) for name, array in layer.parameters.items()}
    kind = getattr(layer, "nonlinearity", type(layer).__name__)
    each = [step(kind, p, "", *one) for one in zip(x, h, c, strict=True)]
    wanted = [np.stack(one) for one in zip(*each, strict=True)]
    hx = (h, c) if isinstance(layer, LSTMCell) else h
    close(layer(x, hx, backend=backend), wanted if isinstance(layer, LSTMCell) else wanted[0])
    none = np.zeros_like(h[0], np.float64)
    first = step(kind, p, "", x[0], none, none)
    alone = layer(x[0], backend="cpu")
    close(alone, first if isinstance(layer, LSTMCell) else first[0])


@pytest.mark.parametrize("layer", [LSTM(3, 4, 2), GRU(3, 4, bidirectional=True)])
def test_one_sequence_is_a_batch_of_one(layer: Any) -> None:
    x = np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    many = layer(x[:, None], backend="cpu")
    for one, other in zip(flat(layer(x, backend="cpu")), flat(many), strict=True):
        assert np.array_equal(one, other[:, 0])


def model() -> Model:
    """Two layers of which the second begins where the first ends, and a head on its last h."""
    nodes = (
        Node("read", LSTM(3, 4, batch_first=True), ("x",), "read"),
        Node("write", LSTM(2, 4, batch_first=True), ("z", "read.h_n", "read.c_n"), "written"),
        Node("relu", ReLU(), ("written.c_n",), "relu"),
    )
    inputs = TensorInfo("x", ("N", 4, 3)), TensorInfo("z", ("N", 2, 2))
    return Model(nodes, inputs, ("written", "read.h_n", "relu"))


def test_further_results_are_tensors_of_a_model(backend: str, tmp_path: Path) -> None:
    net, rng = model(), np.random.default_rng(3)
    feeds = {
        info.name: rng.standard_normal((3, *info.shape[1:])).astype(np.float32)
        for info in net.inputs
    }
    read, write = (node.layer for node in net.nodes[:2])
    _, (h, c) = read(feeds["x"], backend="cpu")
    y, (_, last) = write(feeds["z"], (h, c), backend="cpu")
    wanted = [y, h, np.maximum(last, 0)]
    assert net.tensors["written.h_n"].shape == (1, "N", 4)
    assert net.infer({"x": (3, 4, 3), "z": (3, 2, 2)})["read.c_n"] == (1, 3, 4)
    assert "(N, 2, 4) (1, N, 4) (1, N, 4)" in str(net)
    files = [tmp_path / "net.json", tmp_path / "net.onnx"] if backend == "cpu" else []
    for file in files:
        net.save(file)
    for source in (net, *files):
        session = glnn.InferenceSession(source, backend)
        assert [one.name for one in session.get_outputs()] == list(net.outputs)
        close(session.run(None, feeds), wanted)
    # Two batches in one session, and a parameter that is assigned between.
    session = glnn.InferenceSession(net, backend)
    one = {name: array[:1] for name, array in feeds.items()}
    close(session.run(None, one), [a[:1] if a is y else a[:, :1] for a in wanted])
    read.weight_hh_l0 = np.zeros((16, 4), np.float32)
    assert np.abs(session.run(None, feeds)[1] - h).max() > 1e-3
    assert session.intermediates(feeds, ["read.c_n"])["read.c_n"].shape == (1, 3, 4)


def test_a_chain_passes_on_the_first_result() -> None:
    net = Model.sequential([GRU(3, 4, batch_first=True), Flatten(), Linear(8, 2)], (2, 3))
    assert net.tensors["linear1"].shape == ("N", 2)
    x = np.ones((2, 2, 3), np.float32)
    y, _ = net.nodes[0].layer(x, backend="cpu")
    close(net(x, "cpu"), net.nodes[2].layer(y.reshape(2, 8), backend="cpu"))


def test_a_trainer_trains_through_time() -> None:
    """The loss falls on what only the first step tells, in layers between which it drops."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 2, 2)).astype(np.float32)
    layers = [LSTM(2, 8, 2, batch_first=True, dropout=0.1), Flatten(), Linear(16, 2)]
    net = Model.sequential(layers, (2, 2))
    trainer = Trainer(net, optimizer=Adam(lr=0.05), backend="cpu")
    trainer.fit(x, (x[:, 0, 0] > 0).astype(np.int64), epochs=4, batch_size=16, progress=False)
    first, *_, last = (row.loss for row in trainer.history)
    assert last < 0.5 * first


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSTM(0, 2), "LSTM input_size must be an integer of at least 1"),
        (lambda: LSTM(3, 2, proj_size=2), "LSTM proj_size must be less than hidden_size 2, got 2"),
        (lambda: GRU(2, 3, dropout=2), "GRU dropout must be a number from 0 to 1"),
        (lambda: RNN(2, 3, nonlinearity="selu"), "RNN nonlinearity must be tanh or relu, got 'sel"),
        (lambda: RNNCell(2, 3, nonlinearity=1), "RNNCell nonlinearity must be tanh or relu, got"),
        (lambda: LSTM(2, 3)(X, X), r"LSTM hx must be \(h_0, c_0\), got"),
        (lambda: LSTM(3, 3)(X, backend="cpu"), r"x must have shape \(t, n, 3\) or \(t, 3\), got"),
        (lambda: GRU(2, 3)(X, X, backend="cpu"), r"GRU: h_0 must have shape \(1, 3, 3\), got \(4,"),
        (lambda: GRUCell(2, 3)(X[0], X[0], backend="cpu"), r"h_0 must have shape \(3, 3\), got"),
        (
            lambda: LSTM(2, 3)(X[:0], backend="cpu"),
            "must be from 1 to 4096 steps, got 0",
        ),
        (
            lambda: GRU(2, 1, 1000).infer((17, 1, 2)),
            "from 1 to 16 steps, got 17",
        ),
        (lambda: GRU(2, 1, 10**9), "GRU num_layers must be at most 1000, got 1000000000"),
        (lambda: setattr(LSTM(2, 3), "weight_ih_l0", X), r"must have shape \(12, 2\), got \(4, 3"),
        (lambda: setattr(LSTM(2, 3), "weight_ih_l1", X), "LSTM has no attribute 'weight_ih_l1'"),
        (lambda: setattr(LSTM(2, 3), "num_layers", 2), "LSTM num_layers is read-only"),
        (lambda: Model((Node("a", GRU(2, 3), ("x", "x", "x"), "a"),), (INFO,), ("a",)), "1 or 2"),
        (lambda: Model(TWO, (INFO,), ("a",)), "the tensor 'a.h_n' is already there"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(GlnnError, match=message):
        make()


X = np.zeros((4, 3, 2), np.float32)
INFO = TensorInfo("x", ("N", 4, 2))
TWO = (Node("a.h_n", ReLU(), ("x",), "a.h_n"), Node("a", GRU(2, 3), ("x",), "a"))


def test_what_the_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "layers.md"
    names: dict[str, Any] = {}
    for part in page.read_text("utf-8").split("```python\n")[1:]:
        exec(part.split("```")[0], names)
    assert capsys.readouterr().out == "(3, 5, 32) (4, 3, 16)\n"
    assert names["model"].tensors["write.h_n"].shape == (1, "N", 16)
    assert names["scores"].shape == (3, 10)

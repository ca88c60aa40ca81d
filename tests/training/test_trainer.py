"""Training as a user sees it: what is learnt, what is refused, what is left behind."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import glnn
from glnn.compiler.states import States
from glnn.core.tensor_info import BATCH, TensorInfo
from glnn.data import digits
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.layers import Add, Flatten, Linear, ReLU
from glnn.model import Model
from glnn.model.node import Node
from glnn.training import (
    SGD,
    Callback,
    CrossEntropyLoss,
    Evaluation,
    MSELoss,
    StepLR,
    Trainer,
)


def of_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits as float32 of (n, 784), and their labels."""
    image, label = digits()
    return (image[:count].reshape(-1, 784) / 255).astype(np.float32), label[:count]


def perceptron(hidden: int = 24) -> Model:
    return Model.sequential([Linear(784, hidden, seed=1), ReLU(), Linear(hidden, 10)], (784,))


def descended(w, b, x, y, lr, steps) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Gradient descent on mean((x w' + b - y)^2), worked out by hand, in float64."""
    w, b, x, y = (np.asarray(one, np.float64) for one in (w, b, x, y))
    losses = []
    for _ in range(steps):
        error = x @ w.T + b - y
        losses.append((error**2).mean())
        w = w - lr * 2 * error.T @ x / error.size
        b = b - lr * 2 * error.sum(axis=0) / error.size
    return w, b, losses


def test_steps_descend_as_worked_out_by_hand(name, rng) -> None:
    x, y = rng((9, 4)), rng((9, 2))
    layer = Linear(4, 2, seed=3)
    w, b, losses = descended(layer.weight, layer.bias, x, y, 0.1, 7)
    trainer = Trainer(Model.sequential([layer], (4,)), MSELoss(), SGD(lr=0.1), name)
    assert np.isnan(trainer.loss)
    for number, loss in enumerate(losses, start=1):
        trainer.step(x, y)
        assert trainer.loss == pytest.approx(loss, rel=1e-5) and trainer.steps == number
    assert trainer.model is not None and trainer.model.nodes[0].layer is layer
    assert np.allclose(layer.weight, w, atol=1e-6) and np.allclose(layer.bias, b, atol=1e-6)


def test_an_epoch_is_the_same_steps(name, mlp, samples) -> None:
    x, y = samples
    one, other = (Trainer(mlp(), optimizer=SGD(0.1), backend=name) for _ in range(2))
    history = one.fit(x, y, epochs=2, batch_size=16, shuffle=False)
    losses = []
    for start in (0, 16, 32, 48) * 2:  # the last one has 2
        other.step(x[start : start + 16], y[start : start + 16])
        losses.append(other.loss)
    for found, expected in zip(one.weights().values(), other.weights().values(), strict=True):
        assert found.tobytes() == expected.tobytes()
    sizes = np.array([16, 16, 16, 2])
    means = [float(sizes @ losses[:4]) / 50, float(sizes @ losses[4:]) / 50]
    assert history.column("loss") == pytest.approx(means, rel=1e-5)
    assert history.column("step") == [4, 8] and history.column("epoch") == [1, 2]
    assert one.steps == 8 and one.history is history


def test_evaluation_is_what_numpy_says(name, mlp, samples) -> None:
    x, y = samples
    model = mlp()
    weights = {key: np.asarray(array, np.float64) for key, array in model.parameters().items()}
    hidden = np.maximum(x @ weights["linear1.weight"].T + weights["linear1.bias"], 0)
    scores = hidden @ weights["linear2.weight"].T + weights["linear2.bias"]
    logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    found = Trainer(model, backend=name).evaluate(x, y, batch_size=16)
    assert found.loss == pytest.approx(-logarithms[np.arange(50), y].mean(), rel=1e-5)
    assert found.accuracy == (scores.argmax(axis=1) == y).mean() and found.count == 50


def test_of_probabilities_there_is_no_accuracy(mlp, samples) -> None:
    """Also where the model was trained with classes."""
    x, y = samples
    shares = np.eye(3, dtype=np.float32)[y]
    trainer = Trainer(mlp(), backend="cpu")
    row = trainer.fit(x, y, 1, 16, validation=(x, shares))[-1]
    assert row.accuracy is not None and row.validation_accuracy is None
    assert row.validation_loss == pytest.approx(trainer.evaluate(x, y).loss, rel=1e-6)


def test_weights_are_there_before_the_first_step(mlp) -> None:
    trainer, expected = Trainer(mlp(), backend="cpu"), mlp().parameters()
    assert {name: a.tolist() for name, a in trainer.weights().items()} == {
        name: np.asarray(a).tolist() for name, a in expected.items()
    }
    trainer = Trainer(mlp(), backend="cpu")
    trainer.assign({"linear1.bias": np.ones(7, np.float32)})
    assert (trainer.model.parameters()["linear1.bias"] == 1).all()


def test_evaluation_changes_nothing(name, mlp, samples) -> None:
    x, y = samples

    class Evaluating(Callback):
        def on_step_end(self, trainer) -> None:
            trainer.evaluate(x[:20], y[:20])

    one, other = (Trainer(mlp(), backend=name) for _ in range(2))
    rows = [t.fit(x, y, 2, 16, callbacks=c)[-1] for t, c in ((one, [Evaluating()]), (other, []))]
    assert rows[0].loss == rows[1].loss and rows[0].accuracy == rows[1].accuracy
    for found, expected in zip(one.weights().values(), other.weights().values(), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_digits_are_learnt(name) -> None:
    x, y = of_digits(1000)
    trainer = Trainer(perceptron(), optimizer=SGD(lr=0.1, momentum=0.9), backend=name)
    history = trainer.fit(x, y, epochs=10, batch_size=50, validation=0.2)
    assert history[-1].validation_accuracy > 0.87 and history[-1].accuracy > 0.98
    assert history[-1].loss < history[0].loss / 3
    scores = trainer.model(x, backend="cpu")
    assert (scores.argmax(axis=1) == y).mean() > 0.85


def test_curves_of_backends_agree(name) -> None:
    x, y = of_digits(1000)
    curves = []
    for backend in ("cpu", name):
        trainer = Trainer(perceptron(), optimizer=SGD(lr=0.05, momentum=0.9), backend=backend)
        curves.append([])
        for step in range(100):
            start = 10 * step
            trainer.step(x[start : start + 10], y[start : start + 10])
            curves[-1].append(trainer.loss)
    assert np.abs(np.subtract(*curves)).max() < 1e-3
    assert np.mean(curves[0][-10:]) < np.mean(curves[0][:10]) / 2


def test_the_same_seed_gives_the_same_bits(name, mlp, samples) -> None:
    x, y = samples
    found = []
    for seed in (0, 0, 1):
        trainer = Trainer(mlp(), backend=name, seed=seed)
        trainer.fit(x, y, epochs=2, batch_size=8)
        found.append(b"".join(array.tobytes() for array in trainer.weights().values()))
    assert found[0] == found[1] != found[2]


def test_frozen_parameters_stay(name, mlp, samples) -> None:
    model = mlp()
    before = {key: array.copy() for key, array in model.parameters().items()}
    trainer = Trainer(model, backend=name, frozen=("linear1", "*2.bias"))
    trainer.fit(*samples, batch_size=16)
    same = {key for key, array in model.parameters().items() if np.array_equal(array, before[key])}
    assert same == {"linear1.weight", "linear1.bias", "linear2.bias"}


def test_a_model_of_two_inputs(name, rng) -> None:
    nodes = (
        Node("a", Linear(3, 2, seed=1), ("left",), "a"),
        Node("b", Linear(4, 2, seed=2), ("right",), "b"),
        Node("sum", Add(), ("a", "b"), "sum"),
    )
    inputs = (TensorInfo("left", (BATCH, 3)), TensorInfo("right", (BATCH, 4)))
    model = Model(nodes, inputs, ("sum",))
    x, y = {"left": rng((20, 3)), "right": rng((20, 4))}, rng((20, 2))
    both = np.concatenate([x["left"], x["right"]], axis=1)
    start = model.parameters()
    w = np.concatenate([start["a.weight"], start["b.weight"]], axis=1)
    w, _, losses = descended(w, start["a.bias"] + start["b.bias"], both, y, 0.1, 1)
    trainer = Trainer(model, MSELoss(), SGD(lr=0.1), name)
    history = trainer.fit(x, y, batch_size=20)
    assert history[0].loss == pytest.approx(losses[0], rel=1e-5) and history[0].accuracy is None
    found = trainer.model.parameters()
    assert np.allclose(np.concatenate([found["a.weight"], found["b.weight"]], axis=1), w, atol=1e-6)
    with pytest.raises(ShapeError, match="x must map 'left', 'right' to arrays, got ndarray"):
        trainer.step(both, y)
    with pytest.raises(ShapeError, match="one size N, got 20 and 4"):
        trainer.step({**x, "right": x["right"][:4]}, y)


def test_saved_models_are_the_trained_ones(mlp, samples, tmp_path) -> None:
    x, y = samples
    trainer = Trainer(mlp(), backend="cpu")
    trainer.fit(x, y, epochs=2)
    expected = trainer.model(x, backend="cpu")
    trainer.model.save(tmp_path / "net.json")
    assert np.array_equal(glnn.load(tmp_path / "net.json")(x, backend="cpu"), expected)
    pytest.importorskip("onnx")
    trainer.model.save(tmp_path / "net.onnx")
    assert np.allclose(glnn.load(tmp_path / "net.onnx")(x, backend="cpu"), expected, atol=1e-6)


def test_assigned_weights_are_trained_on(name, mlp, samples) -> None:
    one, other = (Trainer(mlp(), optimizer=SGD(0.1), backend=name) for _ in range(2))
    x, y = samples
    one.step(x, y)
    one.step(x, y)
    other.step(x[:3], y[:3])
    other.assign(Trainer(mlp(), backend="cpu")._steps.weights() or mlp().parameters())
    other.step(x, y)
    other.step(x, y)
    for found, expected in zip(one.weights().values(), other.weights().values(), strict=True):
        assert np.array_equal(found, expected)
    with pytest.raises(ModelError, match="there is no parameter 'c1'"):
        other.assign({"c1": np.zeros(1)})
    with pytest.raises(ShapeError):
        other.assign({"linear1.weight": np.zeros((7, 5))})


def test_weights_before_the_first_step(mlp) -> None:
    model = mlp()
    trainer = Trainer(model, backend="cpu")
    assert trainer.model is model and trainer.steps == 0 and not len(trainer.history)


ARRAY = np.zeros((4, 5), np.float32)
LABELS = np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (ARRAY.tolist(), LABELS, "input 'input' must be a float32 NumPy array, got list"),
        (ARRAY.astype(np.float64), LABELS, "must be a float32 NumPy array, got float64 array"),
        (ARRAY[:, :4], LABELS, r"input 'input' must have shape \(N, 5\), got \(4, 4\)"),
        (ARRAY[0], LABELS, r"must have 2 dimensions, \(N, 5\), got \(5,\)"),
        (ARRAY[:0], LABELS[:0], "must not be empty|at least one sample"),
        (ARRAY, LABELS[:3], r"x has 4 samples, y has shape \(3,\)"),
        (ARRAY, LABELS.tolist(), "y must be a NumPy array, got list"),
        (ARRAY, LABELS + 3, r"labels must be from 0 to 2, got 3 at \(0,\)"),
        (ARRAY, LABELS - 1, "labels must be from 0 to 2, got -1"),
        (ARRAY, np.full(4, 200, np.uint8), "labels must be from 0 to 2, got 200"),
        (ARRAY, np.zeros((4, 2), np.float32), r"or float32 \(4, 3\), got float32 \(4, 2\)"),
        (ARRAY, np.zeros(4, complex), "complex128"),
        (ARRAY, LABELS[:, None], r"must be int32 \(4,\) or .*, got int32 \(4, 1\)"),
        ({"x": ARRAY}, LABELS, "missing input 'input'"),
    ],
)
def test_arrays_that_do_not_fit(mlp, x, y, message) -> None:
    trainer = Trainer(mlp(), backend="cpu")
    for call in (trainer.step, trainer.fit, trainer.evaluate):
        with pytest.raises(ShapeError, match=message) as raised:
            call(x, y)
        assert "\n" not in str(raised.value)
    assert trainer.steps == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive int, got 0"),
        ({"batch_size": 1.5}, "batch_size must be a positive int, got 1.5"),
        ({"accumulate": True}, "accumulate must be a positive int, got True"),
        ({"validation": 1.0}, r"validation must be \(x, y\), a part between 0 and 1"),
        ({"validation": 0.01}, "leaves 4 to train on and 0 to validate"),
        ({"validation": (ARRAY, LABELS[:1])}, "x has 4 samples, y has shape"),
        ({"callbacks": [print]}, "callbacks must be a list of Callbacks"),
        ({"resume": True}, "resume and every need a checkpoint"),
        ({"checkpoint": "a.npz", "every": 0}, "steps must be a positive int or None, got 0"),
    ],
)
def test_arguments_of_fit_that_do_not_fit(mlp, arguments, message) -> None:
    with pytest.raises(GlnnError, match=message):
        Trainer(mlp(), backend="cpu").fit(ARRAY, LABELS, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mse"}, "loss must be a Loss, got 'mse'"),
        ({"loss": CrossEntropyLoss}, "loss must be a Loss, got <class"),
        ({"optimizer": 0.1}, "optimizer must be an Optimizer, got 0.1"),
        ({"frozen": (3,)}, r"frozen must be a list of names, got \(3,\)"),
        ({"frozen": None}, "frozen must be a list of names, got None"),
        ({"schedule": 0.1}, "schedule must be an LRScheduler or None, got 0.1"),
        ({"kernels": "tiled"}, "kernels must map ops to kernels' names, got 'tiled'"),
        ({"seed": -1}, "seed must be an int from 0"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"frozen": ("c9",)}, "no parameter or layer is called 'c9'"),
        ({"frozen": ("linear1", "linear2")}, "there is no parameter to train"),
    ],
)
def test_arguments_that_do_not_fit(mlp, arguments, message) -> None:
    with pytest.raises(GlnnError, match=message):
        Trainer(mlp(), **{"backend": "cpu", **arguments}).step(ARRAY, LABELS)
    with pytest.raises(GlnnError, match="model must be a Model, got 'lenet'"):
        Trainer("lenet")  # type: ignore[arg-type]


def test_a_misspelt_layer_is_found_at_once(mlp) -> None:
    with pytest.raises(ModelError, match="frozen: no parameter or layer is called 'linear3'"):
        Trainer(mlp(), backend="cpu", frozen=("linear1", "linear3"))


def test_bytes_and_labels_of_other_types(name) -> None:
    flat = Model.sequential([Flatten(), Linear(6, 3, seed=1)], (2, 3))
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3) / 24
    y = np.array([0, 1, 2, 0])
    losses = set()
    for dtype in (np.uint8, np.int16, np.int32, np.int64, np.uint64):
        losses.add(Trainer(flat, backend=name).evaluate(x, y.astype(dtype)).loss)
    assert len(losses) == 1
    one_hot = np.eye(3, dtype=np.float64)[y]
    found = Trainer(flat, backend=name).evaluate(x, one_hot)
    assert found == Evaluation(pytest.approx(losses.pop(), rel=1e-6), None, 4)


def test_nothing_is_read_back_within_an_epoch(name, mlp, samples, monkeypatch) -> None:
    trainer = Trainer(mlp(), backend=name)
    calls: list[str] = []
    read = States.read

    def noting(self, names=None):
        calls.append(f"step {trainer.steps}")
        return read(self, names)

    monkeypatch.setattr(States, "read", noting)
    trainer.fit(*samples, 3, 10)
    assert calls == ["step 5", "step 10", "step 15", "step 15"]  # of epochs, then the weights
    calls.clear()
    trainer.step(*samples)
    assert not calls


def test_learning_rates_of_a_schedule(name, mlp, samples) -> None:
    schedule = StepLR(4, gamma=0.5)
    trainer = Trainer(mlp(), optimizer=SGD(0.2), backend=name, schedule=schedule)
    history = trainer.fit(*samples, 3, 25)
    assert history.column("learning_rate") == pytest.approx([0.2, 0.1, 0.1], rel=1e-6)
    x, y = samples  # the last two steps had half the rate: halving all of them is another thing
    plain = Trainer(mlp(), optimizer=SGD(0.2), backend=name)
    plain.fit(*samples, 3, 25)
    assert plain.evaluate(x, y).loss != trainer.evaluate(x, y).loss


def test_arrays_may_lie_as_they_like(name, mlp, samples) -> None:
    x, y = samples
    wide = np.zeros((50, 10), np.float32)
    wide[:, ::2] = x
    long = np.repeat(y, 3)
    found = []
    for one, other in ((x, y), (np.asfortranarray(x), y), (wide[:, ::2], long[::3])):
        trainer = Trainer(mlp(), backend=name)
        trainer.step(one, other)
        trainer.step(one, other)  # not looked at closely
        trainer.fit(one, other, 1, 20, shuffle=False)
        found.append(b"".join(array.tobytes() for array in trainer.weights().values()))
    assert found[0] == found[1] == found[2]


def test_labels_are_looked_at_in_each_step(name, mlp, samples) -> None:
    x, y = samples
    trainer = Trainer(mlp(), CrossEntropyLoss(ignore_index=-1), backend=name)
    trainer.step(x, y)
    for wrong in (3, -2):
        with pytest.raises(ShapeError, match=f"labels must be from 0 to 2, got {wrong} at"):
            trainer.step(x, np.where(np.arange(50) == 7, wrong, y))
        trainer.step(x, y)
    assert trainer.steps == 3
    ignoring, other = np.where(y == 1, -1, y), Trainer(mlp(), backend=name)
    trainer = Trainer(mlp(), CrossEntropyLoss(ignore_index=-1), backend=name)
    trainer.evaluate(x, y)  # whose labels are like those
    found = trainer.evaluate(x, ignoring)
    assert found.loss == pytest.approx(other.evaluate(x[y != 1], y[y != 1]).loss, rel=1e-5)


def test_ctrl_c_ends_after_the_step(name, mlp, samples, tmp_path, ctrl_c) -> None:
    class Pressing(Callback):
        def on_step_end(self, trainer) -> None:
            if trainer.steps == 3:
                ctrl_c()

    model, path = mlp(), tmp_path / "c.npz"
    trainer = Trainer(model, backend=name)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*samples, 5, 8, callbacks=[Pressing()], checkpoint=path)
    assert trainer.steps == 3
    for key, array in trainer.weights().items():  # which nobody had to ask for
        assert np.array_equal(model.parameters()[key], array)
    with np.load(path, allow_pickle=False) as archive:
        assert archive["state/step"] == 3
        assert np.array_equal(archive["state/linear1.weight"], model.nodes[0].layer.weight)
    trainer.fit(*samples, 1, 8)  # and Ctrl-C is as it was
    assert len(trainer.history) == 1
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_the_bar_is_only_for_terminals(mlp, samples, capsys, monkeypatch) -> None:
    Trainer(mlp(), backend="cpu").fit(*samples, 2)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("glnn.training.trainer.BAR_INTERVAL", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    Trainer(mlp(), backend="cpu").fit(*samples, 2)
    out, shown = capsys.readouterr()
    assert not out and "epoch 2/2" in shown and "samples/s" in shown and "accuracy" in shown
    Trainer(mlp(), backend="cpu").fit(*samples, 2, progress=False)
    assert capsys.readouterr() == ("", "")

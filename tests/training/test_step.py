"""Training steps: against float64 and PyTorch, in parts, clipped, frozen, refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.core.types import DType
from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.gradients import differentiation
from glnn.graph.operators import Matmul
from glnn.layers import Add, BatchNorm2d, Conv2d, Dropout, Flatten, Linear, ReLU
from glnn.model import Model, TensorInfo
from glnn.model.node import Node
from glnn.training import (
    SGD,
    Adam,
    CrossEntropyLoss,
    MSELoss,
    OneCycleLR,
    RMSprop,
    StepLR,
    accumulating,
    applying,
    evaluating,
    training_step,
)
from tests.training.steps import exactly, ran

BATCH = 6
RNG = np.random.default_rng(1515)
X = RNG.standard_normal((BATCH, 5), np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2], np.int32)
IMAGES = RNG.standard_normal((BATCH, 2, 5, 5), np.float32)


def images() -> Model:
    return Model.sequential(
        [
            *(Conv2d(2, 4, 3, bias=False, seed=1), BatchNorm2d(4, momentum=0.3), ReLU()),
            *(Flatten(), Linear(36, 3, seed=2)),
        ],
        (2, 5, 5),
        names=["c", "bn", "relu", "flat", "l"],
    )


def test_what_a_step_graph_says(mlp) -> None:
    step = training_step(mlp(), CrossEntropyLoss(), SGD(0.1, momentum=0.9), BATCH)
    inputs = [value.name for value in step.graph.inputs]
    assert inputs[:2] == ["input", "target"] and set(inputs[2:]) == set(step.states)
    parameters = {f"linear{i}.{name}" for i in (1, 2) for name in ("weight", "bias")}
    slots = {f"{name}/momentum_buffer" for name in parameters}
    totals = {"total_loss", "counted", "seen", "correct"}
    assert set(step.states) == parameters | slots | totals | {"step", "loss"}
    assert step.updates.keys() == step.states.keys()
    assert {value.name for value in step.graph.outputs} == set(step.updates.values())
    assert step.states["step"].dtype == step.states["seen"].dtype == np.int32
    few = training_step(mlp(), CrossEntropyLoss(), SGD(0.1), BATCH, totals=False)
    assert set(few.states) == parameters | {"step", "loss"}
    few = training_step(mlp(), CrossEntropyLoss(), SGD(0.1), BATCH, totals=False, counting=False)
    assert set(few.states) == set(few.updates) == parameters | {"loss"}
    least = {"totals": False, "counting": False, "schedule": StepLR(3)}
    assert "step" in training_step(mlp(), CrossEntropyLoss(), SGD(0.1), BATCH, **least).updates


def test_one_step_by_hand(mlp, name) -> None:
    """Of a perceptron, its gradients written down in float64."""
    model = mlp()
    step = training_step(model, CrossEntropyLoss(), SGD(0.5), BATCH)
    got = ran(step, {}, name, input=X, target=LABELS)
    w1, b1, w2, b2 = (p.astype(np.float64) for p in model.parameters().values())
    first = X @ w1.T + b1
    hidden = np.maximum(first, 0)
    scores = hidden @ w2.T + b2
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    by = (shares - np.eye(3)[LABELS]) / BATCH
    by_first = by @ w2 * (first > 0)
    expected = {
        "linear1.weight": w1 - 0.5 * by_first.T @ X,
        "linear1.bias": b1 - 0.5 * by_first.sum(0),
        "linear2.weight": w2 - 0.5 * by.T @ hidden,
        "linear2.bias": b2 - 0.5 * by.sum(0),
    }
    for parameter, array in expected.items():
        np.testing.assert_allclose(got[parameter], array, atol=1e-6, rtol=1e-5)
    loss = -np.log(shares[np.arange(BATCH), LABELS]).mean()
    assert got["loss"] == pytest.approx(loss, rel=1e-5)
    assert got["total_loss"] == pytest.approx(BATCH * loss, rel=1e-5)
    assert got["seen"] == BATCH and got["step"] == 1
    assert got["correct"] == (scores.argmax(1) == LABELS).sum()


def test_batch_statistics_by_hand(name) -> None:
    """Of a single batch normalisation, whose loss is the mean of its squares."""
    model = Model.sequential([BatchNorm2d(2, momentum=0.3)], (2, 5, 5), names=["bn"])
    step = training_step(model, MSELoss(), SGD(0.5), BATCH)
    target = np.zeros_like(IMAGES)
    got = ran(step, {}, name, input=3 * IMAGES + 1, target=target)
    x = (3 * IMAGES + 1).astype(np.float64)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    numbers = x.size / 2
    np.testing.assert_allclose(got["bn.running_mean"], 0.3 * mean, rtol=1e-5)
    unbiased = var * numbers / (numbers - 1)
    np.testing.assert_allclose(got["bn.running_var"], 0.7 + 0.3 * unbiased, rtol=1e-5)
    y = (x - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    assert got["loss"] == pytest.approx((y**2).mean(), rel=1e-5)
    by = 2 * y / y.size
    np.testing.assert_allclose(got["bn.weight"], 1 - 0.5 * (by * y).sum((0, 2, 3)), rtol=1e-5)
    again = ran(step, got, name, input=IMAGES, target=target)
    mean = 0.7 * got["bn.running_mean"] + 0.3 * IMAGES.mean((0, 2, 3))
    np.testing.assert_allclose(again["bn.running_mean"], mean, rtol=1e-5, atol=1e-6)


def test_momentum_none_is_the_mean_of_all_batches(name) -> None:
    model = Model.sequential([BatchNorm2d(2, momentum=None)], (2, 5, 5), names=["bn"])
    step = training_step(model, MSELoss(), SGD(0.0), BATCH)
    states: dict = {}
    batches = [RNG.standard_normal(IMAGES.shape, np.float32) + i for i in range(3)]
    for batch in batches:
        states = ran(step, states, name, input=batch, target=np.zeros_like(batch))
    expected = np.mean([batch.mean((0, 2, 3)) for batch in batches], 0)
    np.testing.assert_allclose(states["bn.running_mean"], expected, rtol=1e-5)
    assert states["passes"] == 3


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.01)], ids=repr)
def test_pytorch(name, optimizer) -> None:
    torch = pytest.importorskip("torch")
    model = images()
    theirs = torch.nn.Sequential(
        *(
            torch.nn.Conv2d(2, 4, 3, bias=False),
            torch.nn.BatchNorm2d(4, momentum=0.3),
            torch.nn.ReLU(),
        ),
        *(torch.nn.Flatten(), torch.nn.Linear(36, 3)),
    )
    places = {"c": "0", "bn": "1", "l": "4"}

    def called(parameter: str) -> str:
        layer, _, own = parameter.partition(".")
        return f"{places[layer]}.{own}"

    given = {called(n): torch.tensor(np.array(p)) for n, p in model.parameters().items()}
    theirs.load_state_dict(given, strict=False)
    kind = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[type(optimizer).__name__]
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    stepping = kind(theirs.parameters(), lr=optimizer.lr, **more)
    step, states = training_step(model, CrossEntropyLoss(), optimizer, BATCH), {}
    for i in range(5):
        x, y = np.roll(IMAGES, i, 0), np.roll(LABELS, 2 * i)
        states = ran(step, states, name, input=x, target=y)
        stepping.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y).long())
        loss.backward()
        stepping.step()
        assert states["loss"] == pytest.approx(loss.item(), rel=1e-4)
    expected = theirs.state_dict()
    for parameter in model.parameters():
        array = expected[called(parameter)].numpy()
        np.testing.assert_allclose(states[parameter], array, atol=1e-4, rtol=1e-3)


def test_parts_are_as_one_batch(mlp, name) -> None:
    """Of unlike sizes, with labels that are ignored, weights, and a rate that changes."""
    labels = LABELS.copy()
    labels[4] = -100
    loss = CrossEntropyLoss((0.5, 1.0, 2.0))
    schedule, options = OneCycleLR(0.1, 4), {"clip_norm": 0.5}
    whole = training_step(mlp(), loss, Adam(), BATCH, schedule=schedule, **options)
    update = applying(mlp(), loss, Adam(), schedule=schedule, **options)
    expected, states = {}, {}
    for _ in range(2):
        expected = ran(whole, expected, name, input=X, target=labels)
        for start, end in ((0, 3), (3, 4), (4, 6)):
            part = accumulating(mlp(), loss, end - start)
            states = ran(part, states, name, input=X[start:end], target=labels[start:end])
        states = ran(update, states, name)
    assert states["accumulated"] == 0 and states["step"] == 2
    for parameter in mlp().parameters():
        np.testing.assert_allclose(states[parameter], expected[parameter], atol=2e-6, rtol=1e-5)


def test_gradients_are_clipped(mlp, name) -> None:
    model = mlp()
    before = model.parameters()

    def gradients(**options) -> dict:
        step = training_step(model, MSELoss(reduction="sum"), SGD(1.0), BATCH, **options)
        target = np.full((BATCH, 3), 9, np.float32)
        got = ran(step, {}, name, input=X, target=target)
        return {parameter: before[parameter] - got[parameter] for parameter in before}

    free = gradients()
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in free.values()))
    assert norm > 20
    for parameter, gradient in gradients(clip_norm=0.5).items():
        np.testing.assert_allclose(gradient, free[parameter] * 0.5 / norm, atol=1e-6)
    for parameter, gradient in gradients(clip_norm=2 * norm).items():
        np.testing.assert_allclose(gradient, free[parameter], rtol=1e-5, atol=1e-5)
    for parameter, gradient in gradients(clip_value=3.0).items():
        np.testing.assert_allclose(gradient, np.clip(free[parameter], -3, 3), atol=1e-5)


def test_frozen_parameters_stay() -> None:
    def trained(*frozen: str) -> set[str]:
        step = training_step(images(), CrossEntropyLoss(), SGD(), BATCH, frozen=frozen)
        return {name for name in step.updates if "." in name}

    everything = {"c.weight", "l.weight", "l.bias", "bn.weight", "bn.bias"}
    everything |= {"bn.running_mean", "bn.running_var"}
    assert trained() == everything
    assert trained("c") == everything - {"c.weight"}
    assert trained("l.bias", "c.w*") == everything - {"l.bias", "c.weight"}
    assert trained("bn") == everything - {"bn.weight", "bn.bias"}  # statistics go on
    assert trained("*.bias") == everything - {"bn.bias", "l.bias"}
    step = evaluating(images(), CrossEntropyLoss(), BATCH, frozen=("c", "bn"))
    assert {"c.weight", "bn.weight"}.isdisjoint(step.states) and "bn.running_var" in step.states
    with pytest.raises(ModelError, match="no parameter or layer is called 'd1'"):
        trained("d1")
    with pytest.raises(ModelError, match="there is no parameter to train"):
        trained("*")


def test_evaluation_is_inference(name) -> None:
    model = Model.sequential(
        [BatchNorm2d(2), Dropout(0.9), Flatten(), Linear(50, 3, seed=3)], (2, 5, 5)
    )
    step = evaluating(model, CrossEntropyLoss(), BATCH)
    states: dict = {}
    for _ in range(2):
        states = ran(step, states, name, input=IMAGES, target=LABELS)
    scores = model(IMAGES, backend="cpu").astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    loss = -logs[np.arange(BATCH), LABELS].sum()
    assert states["total_loss"] == pytest.approx(2 * loss, rel=1e-4)
    assert states["seen"] == states["counted"] == 2 * BATCH
    assert states["correct"] == 2 * (scores.argmax(1) == LABELS).sum()
    assert step.updates.keys() == {"total_loss", "counted", "seen", "correct"}


def test_names_of_states_are_kept_free() -> None:
    model = Model.sequential(
        [Linear(5, 4), ReLU(), Linear(4, 3)], (5,), names=["loss", "b", "step"]
    )
    step = training_step(model, CrossEntropyLoss(), SGD(0.1), BATCH)
    states = ran(step, {}, "cpu", input=X, target=LABELS)
    assert states["loss"].shape == () and states["step"] == 1
    wide = exactly(step, {}, input=X, target=LABELS)
    assert states["loss"] == pytest.approx(wide["loss"], rel=1e-5)


def test_what_does_not_fit_is_refused(mlp) -> None:
    model, loss = mlp(), CrossEntropyLoss()
    with pytest.raises(ShapeError, match="the target must be"):
        training_step(model, MSELoss(), SGD(), BATCH, target=DType.int32)
    for arguments in ({"clip_norm": 0}, {"clip_value": -1.0}, {"clip_norm": "large"}):
        with pytest.raises(ShapeError, match="clip_"):
            training_step(model, loss, SGD(), BATCH, **arguments)
    for batch, arguments in ((0, {}), (1.5, {}), (2, {"seed": "one"}), (2, {"schedule": 0.1})):
        with pytest.raises(ShapeError):
            training_step(model, loss, SGD(), batch, **arguments)
    alone = Model.sequential([BatchNorm2d(5)], (5,))
    with pytest.raises(ShapeError, match="more than one number"):
        training_step(alone, MSELoss(), SGD(), 1)
    assert evaluating(alone, MSELoss(), 1) and applying(alone, MSELoss(), SGD())  # there is none


def test_an_operator_without_gradient_is_named(mlp, monkeypatch) -> None:
    rules = {kind: rule for kind, rule in differentiation.RULES.items() if kind is not Matmul}
    monkeypatch.setattr(differentiation, "RULES", rules)
    with pytest.raises(UnsupportedOpError, match="'linear2': Matmul has no gradient"):
        training_step(mlp(), CrossEntropyLoss(), SGD(), BATCH)


def test_gradients_through_batch_statistics() -> None:
    """Against central differences of the loss, in float64."""
    part = accumulating(images(), CrossEntropyLoss(), BATCH)
    found = exactly(part, {}, input=IMAGES, target=LABELS)
    for parameter in ("c.weight", "bn.weight", "bn.bias"):
        before = part.states[parameter].astype(np.float64)
        expected = np.zeros(before.shape)
        for place in np.ndindex(before.shape):
            for sign in (-1, 1):
                near = before.copy()
                near[place] += sign * 1e-5
                loss = exactly(part, {parameter: near}, input=IMAGES, target=LABELS)["loss"]
                expected[place] += sign * loss * BATCH / 2e-5
        np.testing.assert_allclose(found[f"{parameter}/gradient"], expected, atol=1e-5)


def test_every_context(backend) -> None:
    """As few operands as the least device binds are enough for all that a step has at once."""
    layers = [BatchNorm2d(2), Flatten(), Dropout(0.3), Linear(50, 3, seed=3)]
    model = Model.sequential(layers, (2, 5, 5))
    loss = CrossEntropyLoss((0.5, 1.0, 2.0), label_smoothing=0.1)
    schedule = OneCycleLR(0.1, 4)
    options = {"weight_decay": 0.1, "momentum": 0.5, "centered": True}
    step = training_step(model, loss, RMSprop(**options), BATCH, schedule=schedule, clip_norm=0.5)
    expected, got = {}, {}
    for _ in range(2):
        expected = ran(step, expected, "cpu", input=IMAGES, target=LABELS)
        got = ran(step, got, backend, input=IMAGES, target=LABELS)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, atol=2e-5, rtol=1e-3)


def test_a_layer_that_stands_twice(name) -> None:
    """Its gradients add up, and its running statistics go on from the one to the other."""
    shared, norm = Linear(5, 5, seed=4), BatchNorm2d(5, momentum=0.5)
    layers = [shared, norm, shared, norm]
    model = Model.sequential(layers, (5,), names=["a", "n", "b", "m"])
    step = training_step(model, MSELoss(reduction="sum"), SGD(0.5), BATCH)
    assert {n for n in step.updates if "." in n} == {
        *("a.weight", "a.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var")
    }
    states = ran(step, {}, name, input=X, target=np.ones((BATCH, 5), np.float32))
    w, b = shared.weight.astype(np.float64), shared.bias.astype(np.float64)

    def normal(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)

    first = X @ w.T + b
    second = normal(first) @ w.T + b
    mean = 0.5 * (0.5 * first.mean(0)) + 0.5 * second.mean(0)
    np.testing.assert_allclose(states["n.running_mean"], mean, atol=1e-5)
    assert states["loss"] == pytest.approx(((normal(second) - 1) ** 2).sum(), rel=1e-4)


def test_a_model_of_two_inputs(name) -> None:
    nodes = (
        Node("l", Linear(5, 3, seed=1), ("left",), "l"),
        Node("r", Linear(4, 3, seed=2), ("right",), "r"),
        Node("sum", Add(), ("l", "r"), "sum"),
    )
    inputs = (TensorInfo("left", ("N", 5)), TensorInfo("right", ("N", 4)))
    model = Model(nodes, inputs, ("sum",))
    step = training_step(model, CrossEntropyLoss(), SGD(0.1), BATCH)
    assert [value.name for value in step.graph.inputs][:3] == ["left", "right", "target"]
    states = ran(step, {}, name, left=X, right=X[:, :4], target=LABELS)
    wide = exactly(step, {}, left=X, right=X[:, :4], target=LABELS)
    for parameter in model.parameters():
        np.testing.assert_allclose(states[parameter], wide[parameter], atol=1e-6)
    several = Model(nodes, inputs, ("l", "sum"))
    with pytest.raises(ModelError, match="2 outputs"):
        training_step(several, CrossEntropyLoss(), SGD(0.1), BATCH)
    called = Model.sequential([Linear(5, 3)], (5,))
    (node,) = called.nodes
    wrong = Model(
        (replace(node, inputs=("target",)),), (TensorInfo("target", ("N", 5)),), called.outputs
    )
    with pytest.raises(ModelError, match="no input may be called 'target'"):
        training_step(wrong, CrossEntropyLoss(), SGD(0.1), BATCH)


def test_updates_join_what_makes_the_gradients(opened) -> None:
    """A product makes a weight's momentum and the weight, a sum those of a bias."""
    layers = [Linear(12, 8, seed=1), ReLU(), Linear(8, 4, seed=2)]
    model = Model.sequential(layers, (12,))
    step = training_step(model, CrossEntropyLoss(), SGD(0.1, momentum=0.9), 8, totals=False)
    backend = opened("compute")
    states = States(backend)
    step.add_to(states)
    shapes = {v.name: v.type.shape for v in step.graph.inputs if v.name not in states}
    plan = Plan(step.graph, backend, shapes, states=states, updates=step.updates)
    updates = [one.op.name for one in plan.steps if "SGD" in one.name]
    assert sorted(updates) == ["matmul", "matmul", "reduce", "reduce"]

"""States that lie one behind the other: one launch updates them, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.backends.compute import Compute
from glnn.compiler.memory_budget import Outline
from glnn.compiler.plan import Plan
from glnn.compiler.state_binding import StateSpecs
from glnn.compiler.states import States, aligned
from glnn.core.types import Array, Shape, TensorType
from glnn.errors import DeviceError, LimitError
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise, Reduce, Transpose
from glnn.graph.passes import Pass
from glnn.layers import BatchNorm2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU
from glnn.model import Model
from glnn.training import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    CosineAnnealingLR,
    CrossEntropyLoss,
    Optimizer,
    RMSprop,
    StepGraph,
    Trainer,
    evaluating,
    training_step,
)

pytestmark = pytest.mark.usefixtures("poisoned")
X, Y, Z = Arg(0), Arg(1), Arg(2)
PLAIN, APART = frozenset({Pass.GROUP}), frozenset({Pass.CONSUMERS})
SHAPES: tuple[Shape, ...] = ((3, 43), (129,), (7, 3), (64,), (1,), (2, 32), (65,), (127,))


def together(step: StepGraph, backend: Backend, *, alone: bool = False) -> States:
    """The states of `step`; alone: each in memory of its own."""
    states = States(backend)
    (replace(step, together=()) if alone else step).add_to(states)
    return states


def planned(step: StepGraph, states: States, without: frozenset[Pass] = frozenset()) -> Plan:
    given = (value for value in step.graph.inputs if value.name not in states)
    shapes = {value.name: value.type.shape for value in given}
    updates = step.updates
    return Plan(step.graph, states.backend, shapes, without=without, states=states, updates=updates)


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """To the bit."""
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array.view(np.int32), expected[name].view(np.int32), name)


def mlp() -> Model:
    layers = [Linear(7, 13), ReLU(), Linear(13, 5), ReLU(), Linear(5, 3)]
    return Model.sequential(layers, (7,), name="mlp")


def net() -> Model:
    layers = [
        *(Conv2d(1, 3, 3), BatchNorm2d(3), ReLU(), MaxPool2d(2)),
        *(Conv2d(3, 5, 2), BatchNorm2d(5), ReLU(), Flatten(), Linear(20, 3)),
    ]
    return Model.sequential(layers, (1, 8, 8), name="net")


def batch(step: StepGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x, target = step.graph.inputs[:2]
    return {
        x.name: rng.standard_normal(x.type.shape).astype(np.float32),
        target.name: rng.integers(0, 3, target.type.shape).astype(target.type.dtype.numpy),
    }


OPTIMISERS = {
    "sgd": (SGD(0.1), {}),
    "momentum": (SGD(0.1, momentum=0.9, weight_decay=0.1), {}),
    "nesterov": (SGD(0.1, momentum=0.9, nesterov=True), {"clip_norm": 0.5}),
    "adam": (Adam(0.01), {"clip_value": 0.1}),
    "adamw": (AdamW(0.01), {"schedule": CosineAnnealingLR(5)}),
    "rmsprop": (RMSprop(0.01, momentum=0.5, centered=True), {}),
    "adagrad": (Adagrad(0.1, lr_decay=0.1), {"frozen": ("linear1.weight",)}),
}


@pytest.mark.parametrize("model", [mlp, net])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_is_the_same_to_the_bit(compute, name, model) -> None:
    optimizer, options = OPTIMISERS[name]
    step = training_step(model(), CrossEntropyLoss(), optimizer, 6, **options)
    found: list[dict[str, Array]] = []
    counts: list[int] = []
    for alone, without in ((False, frozenset[Pass]()), (False, PLAIN), (True, frozenset[Pass]())):
        states = together(step, compute, alone=alone)
        plan = planned(step, states, without)
        for i in range(3):
            plan.run(batch(step, i), ())
        found.append(states.read())
        counts.append(len(plan.steps))
    same(found[0], found[1])
    same(found[0], found[2])
    assert counts[1] <= counts[2]  # updates of states that lie alone join nothing
    if (name, model) == ("sgd", mlp):  # what makes a gradient updates the parameter itself
        assert counts[0] == counts[1]
    else:
        assert counts[0] < counts[1]


def test_launches(compute) -> None:
    """Parameters take one launch; each product and each sum updates a momentum itself, and where
    passes are not left out the parameter, too.
    """
    step = training_step(mlp(), CrossEntropyLoss(), SGD(0.1, momentum=0.9), 6, totals=False)
    plan = planned(step, together(step, compute), APART)
    joined = [one for one in plan.steps if one.joins]
    assert [len(one.joins) for one in joined] == [6]
    assert [one.name.rsplit(" and ")[1] for one in joined] == ["5 more"]
    momenta = [one.op.name for one in plan.steps if one.name.endswith(".bias: SGD")]
    assert momenta == ["reduce"] * 3
    plain = planned(step, together(step, compute), PLAIN | APART)
    assert len(plain.steps) - len(plan.steps) == 5
    made = {one.output for one in plan.steps if not one.joins}
    made |= {name for one in joined for name in one.joins}
    assert made == {one.output for one in plain.steps}
    biases = [
        one for one in planned(step, together(step, compute)).steps if "bias: SGD" in one.name
    ]
    assert [one.op.name for one in biases] == ["reduce"] * 3


@pytest.mark.parametrize("optimizer", [Adam(0.01), RMSprop(0.01)], ids=["adam", "rmsprop"])
def test_each_slot_takes_one_launch(compute, optimizer: Optimizer) -> None:
    """Where products make gradients without gaps, as they do where rows have whole vec4."""
    layers = [Linear(8, 12), ReLU(), Linear(12, 4), ReLU(), Linear(4, 3)]
    model = Model.sequential(layers, (8,), name="mlp")
    step = training_step(model, CrossEntropyLoss(), optimizer, 6, totals=False)
    plan = planned(step, together(step, compute), APART)
    joined = [len(one.joins) for one in plan.steps if one.joins]
    assert set(joined) == {6}
    # With few storage blocks what one launch cannot read is computed in several, each for all.
    assert len(joined) == 1 + len(optimizer.slots) or compute.binds < 5
    products = [one for one in plan.steps if one.op.name == "pointwise" and "linear" in one.name]
    assert len(products) == len(joined)


def test_where_states_lie(compute) -> None:
    arrays = {str(shape): np.full(shape, i, np.float32) for i, shape in enumerate(SHAPES)}
    states = States(compute)
    states.add_together(arrays)
    places = [states.group_offsets[name] for name in arrays]
    assert {first for first, _ in places} == {str(SHAPES[0])}
    for (_, at), (_, behind), array in zip(places, places[1:], arrays.values(), strict=False):
        assert at % 64 == 0 and behind == at + aligned(array.size)
    assert states.nbytes == 4 * sum(aligned(array.size) for array in arrays.values())
    same(states.read(), arrays)
    states.write({str(SHAPES[1]): np.full(SHAPES[1], -1, np.float32)})
    same(states.read(), {**arrays, str(SHAPES[1]): np.full(SHAPES[1], -1, np.float32)})


@pytest.mark.parametrize("name", ["feedback", "cpu"])
def test_others_have_states_alone(name) -> None:
    try:
        backend = open_backend(name)
    except DeviceError as error:
        pytest.skip(str(error))
    step = training_step(mlp(), CrossEntropyLoss(), SGD(0.1, momentum=0.9), 6)
    states = together(step, backend)
    assert not states.group_offsets
    assert not any(one.joins for one in planned(step, states).steps)


def test_no_more_than_a_launch_takes(compute, monkeypatch) -> None:
    """Where a storage block holds three of them, three are updated at once."""
    monkeypatch.setattr(Compute, "adjoining", property(lambda _: 4 * 3 * 64))
    arrays = {f"w{i}": np.full(50 + i, i, np.float32) for i in range(8)}
    arrays["large"] = np.ones(1000, np.float32)
    arrays |= {"none": np.ones((0, 3), np.float32), "whole": np.ones(3, np.int32)}
    states = States(compute)
    states.add_together(arrays)
    assert set(states.group_offsets) == {f"w{i}" for i in range(8)}
    step = Changes()
    for name, array in arrays.items():
        if array.size and array.dtype == np.float32:
            step.update(name, step.of(call("add", X, X), step.given(name, array.shape)))
    plan = step.plan(states)
    assert [len(one.joins) for one in plan.steps] == [3, 3, 2, 0]
    plan.run({}, ())
    floats = {k: 2 * v if v.dtype == np.float32 else v for k, v in arrays.items()}
    same(states.read(), floats)


def test_states_are_shared_by_plans_of_other_batches(compute) -> None:
    model, loss, optimizer = net(), CrossEntropyLoss(), SGD(0.1, momentum=0.9)
    steps = [training_step(model, loss, optimizer, size) for size in (6, 4)]
    steps.append(evaluating(model, loss, 5))
    found: list[dict[str, Array]] = []
    for alone in (False, True):
        states = together(steps[0], compute, alone=alone)
        plans = [planned(step, states) for step in steps]
        for i, plan in enumerate(2 * plans):
            plan.run(batch(steps[i % 3], i), ())
        found.append(states.read())
        assert all(
            len(state.memories) == 1 for state in map(states.__getitem__, states.group_offsets)
        )
    same(*found)


def test_a_checkpoint_has_them_by_name(tmp_path, compute) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 7)).astype(np.float32), np.arange(12) % 3
    path, model = tmp_path / "saved.npz", mlp()
    begun = {name: np.array(array) for name, array in model.parameters().items()}
    trainer = Trainer(model, optimizer=Adam(0.01), backend="compute")
    trainer.fit(x, y, epochs=1, batch_size=5, checkpoint=path)
    after = trainer.model.parameters()
    assert all((after[name] != begun[name]).any() for name in begun)
    with np.load(path) as saved:
        for name, array in after.items():
            (held,) = (saved[key] for key in saved.files if key.endswith(name))
            np.testing.assert_array_equal(held, array)
    other = Trainer(mlp(), optimizer=Adam(0.01), backend="compute")
    other.restore(path)
    for trained in (trainer, other):
        trained.step(x[:5], y[:5])
    same(trainer.model.parameters(), other.model.parameters())


def test_where_memory_is_short_they_are_updated_one_by_one(compute) -> None:
    step = training_step(mlp(), CrossEntropyLoss(), SGD(0.1, momentum=0.9), 6)
    states = together(step, compute)
    shapes = {value.name: value.type.shape for value in step.graph.inputs}
    held = planned(step, states).outline
    known = StateSpecs.bind(states, step.updates, step.graph, compute)
    free = Outline.create(step.graph, compute, shapes, states=known)
    short = Outline.create(step.graph, compute, shapes, states=known, available=0)
    assert len(free.steps) == len(held.steps) < len(short.steps)
    assert not any(one.joins for one in short.steps)


class Changes:
    """A graph being made that updates states."""

    def __init__(self) -> None:
        self.builder = Builder("changes")
        self.values: dict[str, Value] = {}
        self.updates: dict[str, str] = {}
        self.ends: list[Value] = []

    def given(self, name: str, shape: Shape) -> Value:
        if name not in self.values:
            self.values[name] = self.builder.input(name, TensorType(shape))
        return self.values[name]

    def of(self, expr: Expr, *values: Value) -> Value:
        return self.builder.add(Pointwise(expr), *values, name=f"work {len(self.ends)}")[0]

    def update(self, state: str, value: Value) -> None:
        self.updates[state] = value.name
        self.ends.append(value)

    def plan(self, states: States) -> Plan:
        graph = self.builder.graph(list(dict.fromkeys(self.ends)))
        given = (value for value in graph.inputs if value.name not in states)
        shapes = {value.name: value.type.shape for value in given}
        return Plan(graph, states.backend, shapes, states=states, updates=self.updates)


@pytest.mark.parametrize("seed", range(24))
def test_whatever_reads_and_updates_them(compute, seed) -> None:
    """Small whole numbers, which all backends add up exactly, and steps at random: states that take
    what others had, gradients that two share, updates that others than their neighbours' wait for.
    """
    rng = np.random.default_rng(seed)
    shapes = [SHAPES[i] for i in rng.integers(0, len(SHAPES), 6)]
    shapes += [shapes[i] for i in rng.integers(0, 6, 3)]
    arrays = {
        f"{slot}{i}": rng.integers(-8, 8, shape).astype(np.float32)
        for slot in "wmv"
        for i, shape in enumerate(shapes)
    }
    step, chance = Changes(), rng.random
    made: dict[str, Value] = {}
    order = rng.permutation(len(shapes))
    for i in order:
        shape = shapes[i]
        w, m, v = (step.given(f"{slot}{i}", shape) for slot in "wmv")
        x = step.given(f"x{i}", (2, *shape))
        gradient = step.builder.add(Reduce("sum", (0,)), x, name=f"sum {i}")[0]
        alike = [j for j, other in enumerate(shapes) if other == shape and f"g{j}" in made]
        if alike and chance() < 0.5:
            gradient = made[f"g{alike[0]}"]
        made[f"g{i}"] = gradient
        buffer = step.of(call("add", call("mul", 0.5, X), Y), m, gradient)
        other = step.given(f"{rng.choice(list('wmv'))}{i}", shape) if chance() < 0.2 else w
        beside = [j for j, one in enumerate(shapes) if one == shape and j != i]
        if beside and chance() < 0.3:  # what another is at first
            other = step.given(f"{rng.choice(list('wmv'))}{beside[0]}", shape)
        step.update(f"m{i}", buffer)
        step.update(f"w{i}", step.of(call("sub", X, call("mul", 2.0, Y)), other, buffer))
        if chance() < 0.7:
            step.update(f"v{i}", step.of(call("maximum", X, Y), v, w if chance() < 0.5 else m))
        elif beside:
            step.update(f"v{i}", step.given(f"v{beside[0]}", shape))
    feeds = [
        {
            f"x{i}": rng.integers(-3, 4, (2, *shape)).astype(np.float32)
            for i, shape in enumerate(shapes)
        }
        for _ in range(3)
    ]
    found: list[dict[str, Array]] = []
    for backend in (compute, open_backend("cpu")):
        states = States(backend)
        for slot in "wmv":
            states.add_together({f"{slot}{i}": arrays[f"{slot}{i}"] for i in range(len(shapes))})
        plan = step.plan(states)
        for feed in feeds:
            plan.run(feed, ())
        found.append({name: array + 0.0 for name, array in states.read().items()})
    same(*found)


def test_what_somebody_reads_after_a_run_stays_where_it_is(compute) -> None:
    step = Changes()
    arrays = {f"w{i}": np.full(3, i, np.float32) for i in range(3)}
    states = States(compute)
    states.add_together(arrays)
    gradients: list[Value] = []
    for i in range(3):
        x = step.given(f"x{i}", (4, 3))
        gradients.append(step.builder.add(Reduce("sum", (0,)), x, name=f"sum {i}")[0])
        step.update(f"w{i}", step.of(call("add", X, Y), step.given(f"w{i}", (3,)), gradients[i]))
    step.ends.append(gradients[1])
    plan = step.plan(states)
    assert [one.joins for one in plan.steps if one.joins] == []
    results = plan.run({f"x{i}": np.full((4, 3), i + 1, np.float32) for i in range(3)})
    np.testing.assert_array_equal(results[gradients[1].name], np.full(3, 8, np.float32))
    same(states.read(), {f"w{i}": np.full(3, 5 * i + 4, np.float32) for i in range(3)})


def test_a_shifted_content_is_what_was_there_before(compute) -> None:
    """Each takes the content of the one behind it: no launch may do that to all at once."""
    step = Changes()
    arrays = {f"w{i}": np.full(64, i, np.float32) for i in range(6)}
    states = States(compute)
    states.add_together(arrays)
    values = [step.given(name, (64,)) for name in arrays]
    for one, behind in pairwise(values):
        step.update(one.name, step.of(call("add", X, 1.0), behind))
    plan = step.plan(states)
    for i in range(1, 4):
        plan.run({}, ())
        expected = [min(k + 2 * i, 5 + min(5 - k, i)) for k in range(6)]
        same(states.read(), {f"w{k}": np.full(64, n, np.float32) for k, n in enumerate(expected)})


def test_views_of_gradients_come_along(compute) -> None:
    """What is turned, or seen in another shape, after it was computed."""
    step, shapes = Changes(), ((4, 8), (3, 5), (8, 4))
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.random(shape, np.float32) for i, shape in enumerate(shapes)}
    feeds = {f"x{i}": rng.random((1, *shape[::-1]), np.float32) for i, shape in enumerate(shapes)}
    states = States(compute)
    states.add_together(arrays)
    for i, shape in enumerate(shapes):
        x = step.given(f"x{i}", (1, *shape[::-1]))
        rows = step.builder.add(Reduce("sum", (0,)), x, name=f"sum {i}")[0]
        turned = step.builder.add(Transpose((1, 0)), rows, name=f"turned {i}")[0]
        step.update(f"w{i}", step.of(call("sub", X, Y), step.given(f"w{i}", shape), turned))
    step.plan(states).run(feeds, ())
    same(states.read(), {f"w{i}": arrays[f"w{i}"] - feeds[f"x{i}"][0].T for i in range(3)})


def test_memory_for_all_of_them_is_asked_for_at_once(monkeypatch) -> None:
    try:
        backend = open_backend("compute")
    except DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("GLNN_MEMORY", "1M")
    states = States(backend)
    with pytest.raises(LimitError, match=r"state 'a' needs 1048832 bytes .*, 1048576 are free"):
        states.add_together(
            {"a": np.ones(1 << 17, np.float32), "b": np.ones((1 << 17) + 1, np.float32)}
        )
    assert states.names == ()
    states.add_together({"a": np.ones(1 << 16, np.float32), "b": np.ones(3, np.float32)})
    step = Changes()
    for name, shape in (("a", (1 << 16,)), ("b", (3,))):
        step.update(name, step.of(call("mul", X, 2.0), step.given(name, shape)))
    plan = step.plan(states)
    assert plan.nbytes == 4 * ((1 << 16) + 4) <= states.nbytes
    (whole,) = plan.steps
    assert whole.nbytes[0] == plan.nbytes and whole.memory == 0

"""Updates and gradients of losses that join the kernels of what they read, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import Backend
from glnn.backends.compute import Compute
from glnn.compiler import memory_budget
from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.core.types import Array, TensorType
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Matmul, Pointwise
from glnn.graph.passes import Pass
from glnn.layers import Linear, ReLU
from glnn.model import Model
from glnn.training import (
    SGD,
    Adam,
    AdamW,
    CrossEntropyLoss,
    Loss,
    MSELoss,
    Optimizer,
    RMSprop,
    StepGraph,
    training_step,
)
from tests import oracle
from tests.training.steps import exactly

pytestmark = pytest.mark.usefixtures("poisoned")
OPTIMIZERS = {
    "momentum": SGD(0.1, momentum=0.9),
    "decayed": SGD(0.1, momentum=0.9, weight_decay=0.3),
    "nesterov": SGD(0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": Adam(0.01, weight_decay=0.1),
    "adamw": AdamW(0.01),
    "rmsprop": RMSprop(0.01, momentum=0.5, centered=True),
}
LOSSES = {
    "squares": MSELoss(),
    "classes": CrossEntropyLoss(ignore_index=None),
    "ignored": CrossEntropyLoss(reduction="sum", ignore_index=1),
    "smoothed": CrossEntropyLoss(label_smoothing=0.2, weight=(1.0, 2.0, 0.5, 1.0, 3.0)),
}


def mlp(last: int = 5) -> Model:
    layers = [Linear(12, 8, seed=1), ReLU(), Linear(8, last, seed=2)]
    return Model.sequential(layers, (12,), name="mlp")


def planned(
    step: StepGraph, backend: Backend, without: frozenset[Pass] = frozenset()
) -> tuple[Plan, States]:
    """The plan of a step, and its states."""
    states = States(backend)
    step.add_to(states)
    given = {v.name: v.type.shape for v in step.graph.inputs if v.name not in states}
    updates = step.updates
    plan = Plan(step.graph, backend, given, states=states, updates=updates, without=without)
    return plan, states


def batches(step: StepGraph, count: int) -> list[dict[str, Array]]:
    rng = np.random.default_rng(7)
    result = []
    for _ in range(count):
        feeds = {}
        for value in step.graph.inputs[:2]:
            shape = value.type.shape
            if value.type.dtype.kind == "float":
                feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
            else:
                feeds[value.name] = rng.integers(0, 5, shape).astype(np.int32)
        result.append(feeds)
    return result


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_against_float64(opened, optimizer, loss) -> None:
    backend = opened("compute")
    made: Optimizer = OPTIMIZERS[optimizer]
    criterion: Loss = LOSSES[loss]
    step = training_step(mlp(), criterion, made, 9, totals=False)
    (plan, states), expected = planned(step, backend), dict(step.states)
    for feeds in batches(step, 3):
        plan.run(feeds, ())
        expected = exactly(step, expected, **feeds)
    for name, array in states.read().items():
        assert oracle.error(array, expected[name]) <= 2e-5, name


def test_a_step_of_a_perceptron_has_few_launches(opened) -> None:
    """Each product of the way back stores a momentum and a parameter, softmax the loss's gradient;
    a launch for each wait but the sums of biases and of the loss, which nothing waits for.
    """
    backend = opened("compute")
    if not isinstance(backend, Compute) or backend.binds < 7:
        pytest.skip("it has few storage blocks")
    loss, optimizer = CrossEntropyLoss(ignore_index=None), SGD(0.1, momentum=0.9)
    step = training_step(mlp(10), loss, optimizer, 9, totals=False, counting=False)
    plan, _ = planned(step, backend)
    assert sorted(one.op.name for one in plan.steps) == ["matmul"] * 5 + ["reduce"] * 3 + [
        "softmax"
    ]
    commands = [name for name, *_ in plan.executable.commands.commands]
    assert commands.count("dispatch") == 9 and commands.count("barrier") == 5
    apart, _ = planned(step, backend, frozenset({Pass.CONSUMERS}))
    assert len(apart.steps) == 11
    commands = [name for name, *_ in apart.executable.commands.commands]
    assert commands.count("barrier") == 7


def test_where_others_would_be_apart_none_joins(opened, monkeypatch) -> None:
    """A launch for all parameters is one for fewer, too: of the schedule in which updates join the
    kernels of gradients and the one in which they do not, that of fewer launches is taken.
    """
    backend, lengths = opened("compute"), list[int]()
    fuse = memory_budget.fuse_updates

    def recorded(schedule, *arguments) -> None:
        fuse(schedule, *arguments)
        lengths.append(len(schedule.entries))

    monkeypatch.setattr(memory_budget, "fuse_updates", recorded)
    loss, optimizer = CrossEntropyLoss(ignore_index=None), SGD(0.1, momentum=0.9)
    step = training_step(mlp(), loss, optimizer, 9, totals=False)
    plan, _ = planned(step, backend)
    joined, apart = lengths
    assert len(plan.steps) == joined < apart

    join = memory_budget.join_consumers

    def poor(schedule, live_out, *, in_place) -> bool:
        """Join them, and leave more launches than there were."""
        found = join(schedule, live_out, in_place=in_place)
        if in_place:
            schedule.entries = [*schedule.entries, *schedule.entries[-1:] * 9]
        return found

    lengths.clear()
    monkeypatch.setattr(memory_budget, "join_consumers", poor)
    plan, _ = planned(step, backend)
    assert len(plan.steps) == apart < lengths[0]


def test_inference_joins_nothing(opened) -> None:
    """What is measured of training alone is done there alone, whatever states a session has."""
    backend = opened("compute")
    builder = Builder("two readers")
    count = builder.input("count", TensorType((3,)))
    (after,) = builder.add(Pointwise(call("add", Arg(0), 1.0)), count, name="after")
    x, w = builder.input("x", TensorType((8, 12))), builder.input("w", TensorType((16, 12)))
    (y,) = builder.add(Matmul(), x, w, name="y")
    (z,) = builder.add(Pointwise(call("exp", Arg(0))), y, name="z")
    states = States(backend)
    states.add("count", np.zeros(3, np.float32))
    shapes, updates = {"x": (8, 12), "w": (16, 12)}, {"count": after.name}
    plan = Plan(builder.graph([y, z, after]), backend, shapes, states=states, updates=updates)
    names = sorted(one.op.name for one in plan.steps if one.op.name != "reorder")
    assert names == ["matmul", "pointwise", "pointwise"]

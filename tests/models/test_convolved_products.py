"""Training of convolutions whose kernels take weights, which each step changes, as they lie."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler.plan import Plan
from glnn.compiler.states import States
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array
from glnn.graph.operators.move import Move
from glnn.layers import Add, Conv2d, Flatten, Linear, ReLU
from glnn.model import Model, Node
from glnn.training import SGD, CrossEntropyLoss, training_step
from tests.training.steps import exactly

pytestmark = pytest.mark.usefixtures("poisoned")
SAMPLES = 5
PRODUCT = {"conv2d_input_gradient": "product"}


def pointwise(channels: int) -> Model:
    """Convolutions of one tap around a depthwise one and beside it, with biases."""
    c = channels
    nodes = [
        Node("c1", Conv2d(16, c, 1, seed=1), ("x",), "c1"),
        Node("r1", ReLU(), ("c1",), "r1"),
        Node("d", Conv2d(c, c, 3, padding=1, groups=c, seed=2), ("r1",), "d"),
        Node("c2", Conv2d(c, c, 1, seed=3), ("d",), "c2"),
        Node("sum", Add(), ("c2", "r1"), "sum"),
        Node("r2", ReLU(), ("sum",), "r2"),
        Node("flat", Flatten(), ("r2",), "flat"),
        Node("l", Linear(30 * c, 4, seed=4), ("flat",), "l"),
    ]
    return Model(tuple(nodes), (TensorInfo("x", ("N", 16, 5, 6)),), ("l",), "pointwise")


@pytest.mark.parametrize("channels", [33, 36, 40])
@pytest.mark.parametrize("kernels", [{}, PRODUCT])
def test_steps_are_those_of_float64(compute, channels, kernels) -> None:
    model = pointwise(channels)
    if kernels:  # which takes no depthwise one
        model = Model.sequential(
            [Conv2d(16, channels, 1, seed=1), ReLU(), Conv2d(channels, 20, 1, seed=3), ReLU(),
             Flatten(), Linear(30 * 20, 4, seed=4)],
            (16, 5, 6), "products",
        )  # fmt: skip
    step = training_step(model, CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES, totals=False)
    states = States(compute)
    step.add_to(states)
    given = (value for value in step.graph.inputs if value.name not in states)
    shapes = {value.name: value.type.shape for value in given}
    plan = Plan(step.graph, compute, shapes, kernels, states=states, updates=step.updates)
    moved = {one.name.split()[0] for one in plan.steps if isinstance(one.op, Move)}
    if channels % 4 == 0:  # else a product takes no columns as they lie
        assert "c1.weight" not in moved and "d.weight" not in moved
        assert not kernels or {one.via for one in plan.steps} >= {"pointwise", "product"}
        assert not kernels or moved == set()
    expected: dict[str, Array] = dict(step.states)
    for i in range(3):
        rng = np.random.default_rng(i)
        feeds = {shape: rng.standard_normal(size, np.float32) for shape, size in shapes.items()}
        feeds["target"] = rng.integers(0, 4, SAMPLES).astype(np.int32)
        plan.run(feeds, ())
        expected = exactly(step, expected, **feeds)
    for name, array in states.read().items():
        exact = np.asarray(expected[name], np.float64)
        error = np.abs(array - exact).max() / max(np.abs(exact).max(), 1e-6)
        assert error < 2e-4, (name, error)

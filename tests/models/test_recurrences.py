"""Recurrent layers whose steps are one operator, and those one on another, against float64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import lower
from glnn.compiler.fusion_cost_model import join_check
from glnn.compiler.plan import Plan
from glnn.core.tensor_info import TensorInfo
from glnn.errors import DeviceError
from glnn.graph.operators import Recurrence
from glnn.graph.passes import Pass
from glnn.layers import GRU, LSTM, RNN
from glnn.model import Model
from glnn.model.node import Node
from tests.models.test_recurrent_layers import close, expected

CASES: list[tuple[Any, int, int, list[int] | None]] = [  # layer, steps, samples, joined layers
    (LSTM(3, 4), 1, 2, []),
    (LSTM(3, 5), 7, 3, [1]),
    (GRU(2, 7, 3), 3, 1, [1, 1, 1]),
    (RNN(4, 1, 2, bidirectional=True), 67, 2, [1, 1]),
    (LSTM(5, 129, 2), 3, 1, [2]),
    (GRU(3, 171, 3, bias=False), 7, 3, [3]),
    (RNN(6, 259, 2, nonlinearity="relu"), 3, 4, [2]),
    (GRU(4, 172, 2), 3, 2, [2]),
    (LSTM(2, 132, 2), 3, 7, [2]),
    (LSTM(3, 132, 2, bidirectional=True), 3, 1, [1, 1]),
    (LSTM(4, 140, 2, proj_size=3), 3, 1, [1, 1]),
]
MORE: list[tuple[Any, int, int, list[int] | None]] = [
    (kind(3, hidden, layers, bidirectional=both), steps, samples, None)
    for kind in (LSTM, GRU, RNN)
    for hidden in (1, 3, 4, 7, 20, 64, 129, 256)
    for layers in (1, 2, 3)
    for both in (False, True)
    for steps, samples in ((1, 7), (3, 1), (7, 3), (64, 1))
    if os.environ.get("GLNN_EXHAUSTIVE")
]


@pytest.fixture(params=[None, "es31-minimum"])
def compute(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend on which launches are worth any operations."""
    worthy = {"compute": lambda *sizes: True}
    monkeypatch.setattr(lower, "join_check", lambda backend: worthy.get(backend.name))
    try:
        yield open_backend("compute", limits=request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


def model(layer: Any, t: int, n: int) -> Model:
    """The layer, of t steps of n samples, with all of its results."""
    inputs = (TensorInfo("x", (t, n, layer.input_size)),)
    return Model((Node("r", layer, ("x",), "r"),), inputs, ("r", *(f"r.{m}" for m in layer.more)))


def joined(plan: Plan) -> list[int]:
    """How many layers each operator of all steps has."""
    return [step.op.layers for step in plan.steps if isinstance(step.op, Recurrence)]


@pytest.mark.parametrize(("layer", "t", "n", "layers"), [*CASES, *MORE], ids=str)
def test_as_loops_in_float64(compute: Backend, layer: Any, t: int, n: int, layers: Any) -> None:
    rng = np.random.default_rng(t * n)
    x = rng.standard_normal((t, n, layer.input_size)).astype(np.float32)
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = layer.proj_size or layer.hidden_size, layer.hidden_size
    zeros = [np.zeros((rows, n, size)) for size in sizes]
    wanted = expected(layer, x, *zeros)[: 1 + len(layer.more)]
    plan = Plan(model(layer, t, n).graph, compute, {"x": x.shape})
    assert layers is None or joined(plan) == layers
    close(tuple(plan.run({"x": x}).values()), wanted)


def test_left_out_it_is_a_step_after_the_other(compute: Backend) -> None:
    layer = LSTM(3, 132, 2)
    x = np.random.default_rng(0).standard_normal((5, 1, 3)).astype(np.float32)
    graph = model(layer, 5, 1).graph
    plan = Plan(graph, compute, {"x": x.shape})
    apart = Plan(graph, compute, {"x": x.shape}, without=frozenset({Pass.RECURRENCES}))
    assert joined(plan) == [2] and joined(apart) == []
    assert sum(step.op.name == "recurrent_step" for step in apart.steps) == 10
    assert len(plan.steps) < 10
    for one, other in zip(plan.run({"x": x}).values(), apart.run({"x": x}).values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_states_that_follow_from_the_layer_below_keep_layers_apart(compute: Backend) -> None:
    """As where a decoder begins where an encoder ended, and reads what that said, too."""
    below, above = LSTM(3, 132), LSTM(132, 132)
    nodes = (
        Node("below", below, ("x",), "below"),
        Node("above", above, ("below", "below.h_n", "below.c_n"), "above"),
    )
    net = Model(nodes, (TensorInfo("x", (3, 1, 3)),), ("above",))
    x = np.random.default_rng(1).standard_normal((3, 1, 3)).astype(np.float32)
    plan = Plan(net.graph, compute, {"x": x.shape})
    assert joined(plan) == [1, 1]
    zero = np.zeros((1, 1, 132))
    y, h, c = expected(below, x, zero, zero)
    (found,) = plan.run({"x": x}).values()
    close(found, expected(above, y.astype(np.float32), h.astype(np.float32), c)[0])


def test_few_launches_are_not_worth_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        joins = join_check(open_backend("compute"))
    except DeviceError as failure:
        pytest.skip(str(failure))
    assert joins is not None and joins(1, 64, 1, 1, 4) and not joins(1, 64, 64, 4, 1024)
    on_host = join_check(open_backend("cpu"))  # steps are one operator, layers stay apart
    assert on_host is not None and not on_host(1, 64, 1, 1, 4)
    monkeypatch.setattr(lower, "join_check", lambda backend: lambda *sizes: False)
    x = np.zeros((3, 1, 3), np.float32)
    plan = Plan(model(LSTM(3, 132, 2), 3, 1).graph, open_backend("compute"), {"x": x.shape})
    assert joined(plan) == [1, 1]


@pytest.mark.parametrize(
    ("samples", "units", "processors", "layers", "joined"),
    [
        # what an H200 took for 64 steps: 176 us joined; 240 and 331 apart; 925 and at least 660
        (1, 256, 132, 2, True),
        (8, 256, 132, 2, True),
        (32, 256, 132, 2, False),
        (1, 512, 132, 2, False),  # more parts of a step than multiprocessors
        (1, 256, 46, 2, False),
        (1, 256, 132, 3, False),
        (1, 168, 132, 3, True),
        (1, 256, 170, 2, True),
        (1, 340, 170, 2, False),  # registers hold the weights of one layer, not of two
        (1, 256, 0, 2, True),  # where nobody knows how many there are, a step is a launch
        (32, 256, 0, 2, False),
    ],
)
def test_layers_whose_steps_run_at_once_are_joined(
    monkeypatch: pytest.MonkeyPatch,
    samples: int,
    units: int,
    processors: int,
    layers: int,
    joined: bool,
) -> None:
    """The uppermost of so many LSTM layers with those below it, on NVIDIA."""
    device = open_backend("compute").device
    assert device is not None
    names = {"vendor": "NVIDIA Corporation", "multiprocessors": processors}
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, **names))
    joins = join_check(open_backend("compute"))
    assert joins is not None and joins(layers - 1, 64, samples, 4, units) is joined


@pytest.mark.parametrize(("layers", "expected_layers"), [(3, [2, 1]), (4, [2, 2]), (5, [2, 2, 1])])
def test_a_layer_that_gains_nothing_begins_another_operator(
    monkeypatch: pytest.MonkeyPatch, layers: int, expected_layers: list[int]
) -> None:
    monkeypatch.setattr(lower, "join_check", lambda backend: lambda layers, *sizes: layers < 2)
    layer = LSTM(3, 132, layers)
    x = np.random.default_rng(2).standard_normal((3, 2, 3)).astype(np.float32)
    wanted = expected(layer, x, *np.zeros((2, layers, 2, 132)))
    plan = Plan(model(layer, 3, 2).graph, open_backend("compute"), {"x": x.shape})
    assert joined(plan) == expected_layers
    close(tuple(plan.run({"x": x}).values()), wanted)

"""Normalisations in training: a launch for two sums, read where they lie, joined updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import Executor, update_fusion
from glnn.compiler.plan import Plan
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.compiler.states import States
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array, DType, TensorType
from glnn.errors import LimitError
from glnn.graph.builder import Builder
from glnn.graph.compose.batch_norm import NORMALIZED
from glnn.graph.expression import Arg, Scalar, call, formula
from glnn.graph.operators import Pointwise, Reduce, Slice
from glnn.graph.passes import BackendTraits, Pass, optimize
from glnn.layers import Add, BatchNorm2d, Conv2d, Flatten, LayerNorm, Linear, MaxPool2d, ReLU
from glnn.model import Model, Node
from glnn.training import SGD, CrossEntropyLoss, StepGraph, training_step

pytestmark = pytest.mark.usefixtures("poisoned")
SAMPLES = 6


def residual(channels: int) -> Model:
    """Two convolutions with norms that are added, so that both norms have the same gradient."""
    c = channels
    nodes = [
        Node("c1", Conv2d(3, c, 3, padding=1, bias=False, seed=1), ("x",), "c1"),
        Node("n1", BatchNorm2d(c), ("c1",), "n1"),
        Node("r1", ReLU(), ("n1",), "r1"),
        Node("c2", Conv2d(c, c, 3, stride=2, padding=1, bias=False, seed=2), ("r1",), "c2"),
        Node("n2", BatchNorm2d(c), ("c2",), "n2"),
        Node("c3", Conv2d(c, c, 1, stride=2, bias=False, seed=3), ("r1",), "c3"),
        Node("n3", BatchNorm2d(c), ("c3",), "n3"),
        Node("sum", Add(), ("n2", "n3"), "sum"),
        Node("r2", ReLU(), ("sum",), "r2"),
        Node("flat", Flatten(), ("r2",), "flat"),
        Node("l", Linear(9 * c, 4, seed=4), ("flat",), "l"),
    ]
    return Model(tuple(nodes), (TensorInfo("x", ("N", 3, 5, 6)),), ("l",), "residual")


def normed(width: int) -> Model:
    """Layer normalisations of the rows of two residual branches, and a product of each."""
    w = width
    nodes = [
        Node("n1", LayerNorm(w), ("x",), "n1"),
        Node("l1", Linear(w, w, seed=1), ("n1",), "l1"),
        Node("a1", Add(), ("l1", "x"), "a1"),
        Node("n2", LayerNorm(w), ("a1",), "n2"),
        Node("l2", Linear(w, w, seed=2), ("n2",), "l2"),
        Node("a2", Add(), ("l2", "a1"), "a2"),
        Node("n3", LayerNorm(w), ("a2",), "n3"),
        Node("flat", Flatten(), ("n3",), "flat"),
        Node("l", Linear(5 * w, 4, seed=4), ("flat",), "l"),
    ]
    return Model(tuple(nodes), (TensorInfo("x", ("N", 5, w)),), ("l",), "normed")


def batch(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((SAMPLES, 3, 5, 6)).astype(np.float32)
    return {"x": x + np.float32(3), "target": rng.integers(0, 4, SAMPLES).astype(np.int32)}


def planned(
    step: StepGraph, backend: Backend, without: frozenset[Pass] = frozenset(), alone: bool = False
) -> tuple[Plan, States]:
    states = States(backend)
    (replace(step, together=()) if alone else step).add_to(states)
    given = (value for value in step.graph.inputs if value.name not in states)
    shapes = {value.name: value.type.shape for value in given}
    plan = Plan(step.graph, backend, shapes, without=without, states=states, updates=step.updates)
    return plan, states


def exactly(step: StepGraph, states: Mapping[str, Array], feeds: Mapping[str, Array]) -> dict:
    """The states after a step, by the references of the operators in float64."""
    given = {**states, **feeds}
    wide = [
        array.astype(np.float64) if array.dtype.kind == "f" else array
        for array in (given[value.name] for value in step.graph.inputs)
    ]
    names = (value.name for value in step.graph.outputs)
    found = dict(zip(names, step.graph.reference(*wide), strict=True))
    return {**states, **{name: found[output] for name, output in step.updates.items()}}


@pytest.mark.parametrize("channels", [5, 16, 66])
@pytest.mark.parametrize("alone", [False, True])
def test_steps_are_those_of_float64(compute, channels, alone) -> None:
    step = training_step(
        residual(channels), CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES, totals=False
    )
    plan, states = planned(step, compute, alone=alone)
    expected: dict[str, Array] = dict(step.states)
    for i in range(3):
        plan.run(batch(i), ())
        expected = exactly(step, expected, batch(i))
    for name, array in states.read().items():
        exact = np.asarray(expected[name], np.float64)
        error = np.abs(array - exact).max() / max(np.abs(exact).max(), 1e-6)
        assert error < 2e-4, (name, error)


@pytest.mark.parametrize("width", [7, 12, 68])
def test_steps_of_normalised_rows_are_those_of_float64(compute, width) -> None:
    step = training_step(
        normed(width), CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES, totals=False
    )
    plan, states = planned(step, compute)
    ops = [one.op for one in plan.steps]
    assert sum(op.name == "channel_sums" for op in ops) == 3
    if width % 4 == 0:  # the gradients by rows, but for that of the input, with what is added
        assert sum(op.name == "normalize_gradient" for op in ops) == 2
        assert not any(isinstance(op, Reduce) and op.kind == "mean" for op in ops)
    momenta = {f"n{i}.bias: SGD: pointwise" for i in (1, 2, 3)}
    joined = [momenta.intersection(one.joins) for one in plan.steps]
    assert [names for names in joined if names] == [momenta]  # by one launch
    expected: dict[str, Array] = dict(step.states)
    for i in range(3):
        x = np.random.default_rng(i).normal(3, 1, (SAMPLES, 5, width)).astype(np.float32)
        feeds = {**batch(i), "x": x}
        plan.run(feeds, ())
        expected = exactly(step, expected, feeds)
    for name, array in states.read().items():
        exact = np.asarray(expected[name], np.float64)
        error = np.abs(array - exact).max() / max(np.abs(exact).max(), 1e-6)
        assert error < 2e-4, (name, error)


def test_what_no_kernel_does_together_leaves_the_schedule_as_it_is(
    compute: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices whose rows would have lain side by side, too."""
    step = training_step(residual(16), CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES)
    rows: list[tuple[str, ...]] = []
    join = update_fusion._join

    def refuse(lowered: LoweredOp) -> None:
        raise LimitError("too many results")

    def join_in_vain(schedule: Schedule, run: update_fusion.Run) -> set[str]:
        before = dict(schedule.tensors), list(schedule.entries)
        with monkeypatch.context() as patched:
            patched.setattr(schedule, "add", refuse)
            assert join(schedule, run) == set()
        assert (schedule.tensors, schedule.entries) == before
        rows.append(run[0].rows)
        return set()

    monkeypatch.setattr(update_fusion, "_join", join_in_vain)
    plan, _ = planned(step, compute)
    assert any(rows) and not any(one.joins for one in plan.steps)


def test_two_sums_are_one_launch_and_no_slice_is_made(compute) -> None:
    step = training_step(
        residual(16), CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES, totals=False
    )
    plan, _ = planned(
        step, compute, frozenset({Pass.CONSUMERS})
    )  # which joins others' pointwise work
    apart, _ = planned(step, compute, frozenset({Pass.CONSUMERS, Pass.CHANNEL_SUMS}))
    assert _counts(plan) == (6, 0, 0)
    assert _counts(apart) == (0, 11, 0)  # of one gradient of two norms the sum is there once
    launches = [sum("SGD" not in step.name for step in one.steps) for one in (plan, apart)]
    assert launches[1] - launches[0] >= 5
    joined = [one.joins for one in plan.steps if one.name == "n1 and 2 more"]
    assert [len(names) for names in joined] == [3]  # the running means, by one launch


def test_normalisations_wait_for_no_sums(compute: Backend) -> None:
    """They take their own, so that fewer launches wait for others; results are the same."""
    step = training_step(residual(16), CrossEntropyLoss(), SGD(0.1, momentum=0.9), SAMPLES)
    plan, states = planned(step, compute)
    apart, others = planned(step, compute, frozenset({Pass.BATCH_NORM}))
    ops = [one.op.name for one in plan.steps]
    assert compute.device is not None
    blocks = compute.device.capabilities.max_compute_shader_storage_blocks
    gradients = 3 if blocks > 4 else 0  # dy, x, mean, variance and the result
    assert ops.count("batch_normalize") == 3
    assert ops.count("batch_normalize_gradient") == gradients
    assert not any(one.op.name.startswith("batch_normalize") for one in apart.steps)
    barriers = [
        [name for name, *_ in one.executable.commands.commands].count("barrier")
        for one in (plan, apart)
    ]
    assert barriers[0] <= barriers[1] - gradients
    for one in (plan, apart):
        one.run(batch(5), ())
    found = states.read()
    for name, array in others.read().items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_large_images_are_normalised_behind_their_sums(compute: Backend) -> None:
    """By all workgroups: the few that have all of a channel would take longer than a launch."""
    nodes = [
        Node("c", Conv2d(3, 8, 3, padding=1, bias=False, seed=1), ("x",), "c"),
        Node("n", BatchNorm2d(8), ("c",), "n"),
        Node("p", MaxPool2d(64), ("n",), "p"),
        Node("flat", Flatten(), ("p",), "flat"),
        Node("l", Linear(8, 4, seed=4), ("flat",), "l"),
    ]
    model = Model(tuple(nodes), (TensorInfo("x", ("N", 3, 64, 64)),), ("l",), "large")
    step = training_step(model, CrossEntropyLoss(), SGD(0.1), 64, totals=False)
    plan, _ = planned(step, compute)
    assert not any(one.op.name.startswith("batch_normalize") for one in plan.steps)


def test_what_only_looks_like_a_batch_normalisation_stays_as_it_is() -> None:
    """Its mean is of something else, or x is used beside what is normalised."""
    images = TensorType((6, 5, 4, 3), DType.float32)
    for case in ("own", "another's mean", "x beside"):
        builder = Builder()
        x, y = builder.input("x", images), builder.input("y", images)
        (mean,) = builder.add(
            Reduce("mean", (0, 2, 3), True), y if case == "another's mean" else x, name="mean"
        )
        squared = Reduce("mean", (0, 2, 3), True, formula("square(a - b)"))
        (variance,) = builder.add(squared, x, mean, name="variance")
        expr = NORMALIZED(Arg(0), Arg(1), Arg(2), Scalar(0.5))
        beside = call("mul", expr, Arg(0) if case == "x beside" else Arg(3))
        (made,) = builder.add(Pointwise(beside), x, mean, variance, y, name="made")
        graph = builder.graph([made])
        types = graph.infer_types({one.name: images for one in (x, y)})
        short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: True))
        fused = any(node.operator.name == "batch_normalize" for node in short.nodes)
        assert fused == (case == "own"), case
        rng = np.random.default_rng(0)
        feeds = {name: rng.normal(2, 1, images.shape).astype(np.float32) for name in ("x", "y")}
        wide = {name: array.astype(np.float64) for name, array in feeds.items()}
        middle = wide["y" if case == "another's mean" else "x"].mean((0, 2, 3), keepdims=True)
        spread = np.square(wide["x"] - middle).mean((0, 2, 3), keepdims=True)
        factor = wide["x" if case == "x beside" else "y"]
        expected = (wide["x"] - middle) / np.sqrt(spread + 0.5) * factor
        (got,) = Executor(graph, "compute").run(feeds).values()
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max(), case


def _counts(plan: Plan) -> tuple[int, int, int]:
    """The steps that make two sums, that reduce channels to one number each, and that slice."""
    ops = [one.op for one in plan.steps]
    sums = sum(op.name == "channel_sums" for op in ops)
    reductions = sum(isinstance(op, Reduce) and op.axes == (0, 2, 3) for op in ops)
    return sums, reductions, sum(isinstance(op, Slice) for op in ops)


def test_feedback_keeps_its_reductions() -> None:
    step = training_step(residual(5), CrossEntropyLoss(), SGD(0.1), SAMPLES, totals=False)
    plan, _ = planned(step, open_backend("feedback"))
    assert _counts(plan)[:2] == (0, 11)


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16, DType.float64])
def test_statistics_of_other_types_are_reductions(dtype: DType) -> None:
    """ChannelSums has float32 alone, which a mean and a variance in float64 are not."""
    builder = Builder()
    x = builder.input("x", TensorType((6, 5, 4, 3), dtype))
    (mean,) = builder.add(Reduce("mean", (0, 2, 3), True), x, name="mean")
    squared = Reduce("mean", (0, 2, 3), True, formula("square(a - b)"))
    (variance,) = builder.add(squared, x, mean, name="variance")
    graph = builder.graph([mean, variance])
    types = graph.infer_types({x.name: x.type})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: True))
    fused = any(node.operator.name == "channel_sums" for node in short.nodes)
    assert fused == (dtype is DType.float32)
    assert [types[value].dtype for value in short.outputs] == [dtype, dtype]
    given = np.random.default_rng(3).normal(3, 1, x.type.shape).astype(dtype.numpy)
    wide = given.astype(np.float64)
    tolerance = 1e-2 if dtype is DType.float16 else 1e-5
    expected = wide.mean((0, 2, 3), keepdims=True), wide.var((0, 2, 3), keepdims=True)
    results = Executor(graph, "compute").run({"x": given})
    for found, right in zip(results.values(), expected, strict=True):
        assert found.dtype == dtype.numpy
        np.testing.assert_allclose(found, right, rtol=tolerance)


def test_sums_of_which_one_needs_the_other_stay_apart() -> None:
    """dy (x - m), where m is the sum of dy itself: one launch cannot make both."""
    builder, images = Builder(), TensorType((6, 5, 4, 3), DType.float32)
    x, dy = builder.input("x", images), builder.input("dy", images)
    (total,) = builder.add(Reduce("sum", (0, 2, 3), True), dy, name="total")
    products = Reduce("sum", (0, 2, 3), True, formula("a * (b - c)"))
    (moment,) = builder.add(products, dy, x, total, name="moment")
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=images.shape).astype(np.float32) for name in ("x", "dy")}
    wide, other = (feeds[name].astype(np.float64) for name in ("dy", "x"))
    sums = wide.sum((0, 2, 3), keepdims=True)
    expected = sums, (wide * (other - sums)).sum((0, 2, 3), keepdims=True)
    got = Executor(builder.graph([total, moment]), "compute").run(feeds)
    for one, exact in zip(got.values(), expected, strict=True):
        assert np.abs(one - exact).max() <= 1e-5 * np.abs(exact).max()

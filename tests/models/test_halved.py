"""Tensors that steps exchange as halves: which, what that saves, and how right results are."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import Plan
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError
from glnn.graph.builder import Builder, constant
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operators import Concat, Conv2d, Matmul, Pointwise, Pool2d, Reshape, Softmax
from glnn.graph.passes import Pass
from tests import oracle
from tests.references import results

SHAPES = {"x": (2, 5, 9, 11)}
ADD, RELU = Pointwise(call("add", Arg(0), Arg(1))), Pointwise(call("relu", Arg(0)))
GATE = Pointwise(call("mul", Arg(0), call("sigmoid", Arg(1))))


def network() -> Graph:
    """A stem, a depthwise and a pointwise convolution, a residual, a gate, a concatenation of
    channels in whole fours, pools, a product and a softmax.
    """
    draw, builder = np.random.default_rng(7), Builder("network")
    x = builder.input("x", TensorType(("N", *SHAPES["x"][1:])))

    def conv(given, o, c, kernel, name, groups=1, **how):
        weight = draw.standard_normal((o, c // groups, kernel, kernel), np.float32) / c
        fixed = constant(weight, f"{name} weight")
        op = Conv2d(groups=groups, padding=(kernel // 2,) * 4, **how)
        return builder.add(op, given, fixed, name=name)[0]

    stem = builder.add(RELU, conv(x, 36, 5, 3, "stem"), name="stem relu")[0]
    deep = conv(stem, 36, 36, 3, "deep", groups=36)
    wide = conv(deep, 36, 36, 1, "wide")
    (whole,) = builder.add(ADD, wide, stem, name="residual")
    (means,) = builder.add(Pool2d("average", None), whole, name="means")
    (gated,) = builder.add(GATE, whole, means, name="gated")
    left, right = conv(gated, 32, 36, 1, "left"), conv(gated, 40, 36, 1, "right")
    (both,) = builder.add(Concat(), left, right, name="both")
    (pooled,) = builder.add(Pool2d("max", (3, 3), (2, 2), (1, 1, 1, 1)), both, name="pooled")
    (last,) = builder.add(Pool2d("average", None), pooled, name="last")
    (flat,) = builder.add(Reshape((-1, 72)), last, name="flat")
    weight = constant(draw.standard_normal((11, 72), np.float32), "weight")
    (scores,) = builder.add(Matmul(), flat, weight, name="scores")
    return builder.graph([builder.add(Softmax(1), scores, name="shares")[0], pooled])


def opened(name: str, limits: str | None = None) -> Backend:
    try:
        return open_backend(name, limits=limits)
    except DeviceError as closed:
        pytest.skip(str(closed))


def planned(backend: Backend, *without: Pass, keep: bool = False) -> Plan:
    return Plan(
        network(),
        backend,
        SHAPES,
        precision=DType.float16,
        without=frozenset(without),
        keep=keep,
    )


def stored(plan: Plan) -> set[str]:
    """The tensors of steps that are stored as float16."""
    tensors = plan.outline.schedule.tensors
    return {step.output for step in plan.steps if tensors[step.output].type.dtype is DType.float16}


@pytest.mark.parametrize("limits", [None, "es31-minimum"])
def test_results_are_near_those_of_floats(limits) -> None:
    backend = opened("compute", limits)
    x = {"x": np.random.default_rng(1).standard_normal(SHAPES["x"], np.float32)}
    expected = results(network(), x)
    wide, halves = planned(backend, Pass.HALVES), planned(backend)
    assert not stored(wide) and len(stored(halves)) >= 7
    got = halves.run(x)
    for name, array in expected.items():
        assert got[name].dtype == np.float32
        assert oracle.error(got[name], array) <= 2e-3
    assert [step.kernel for step in halves.steps] == [step.kernel for step in wide.steps]
    assert halves.outline.tensors < 0.8 * wide.outline.tensors
    moved = [sum(step.cost.bytes for step in plan.steps) for plan in (halves, wide)]
    assert moved[0] < 0.7 * moved[1]


def test_ends_and_what_has_a_reader_of_floats_stay() -> None:
    """Inputs, outputs and what a softmax reads are float32; so is what is asked for on the way."""
    plan = planned(opened("compute"), keep=True)
    tensors = plan.outline.schedule.tensors
    for name in ("x", "shares", "pooled", "scores"):
        assert tensors[name].type.dtype is DType.float32
    assert tensors["both"].type.dtype is DType.float16
    x = {"x": np.random.default_rng(2).standard_normal(SHAPES["x"], np.float32)}
    plan.run(x)
    found = plan.value("both")
    assert found.dtype == np.float32 and found.shape == (2, 72, 9, 11)
    np.testing.assert_array_equal(found, found.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("name", ["feedback", "cpu"])
def test_other_backends_store_floats(name) -> None:
    assert not stored(planned(opened(name)))


def test_of_floats_nothing_is_rounded() -> None:
    plan = Plan(network(), opened("compute"), SHAPES)
    assert not stored(plan)


def test_tokens_between_products_are_halves() -> None:
    """Rows that one product makes and another reads, a GELU between them."""
    draw, builder = np.random.default_rng(3), Builder("mlp")
    value = builder.input("x", TensorType(("N", 21)))
    for i, (n, k) in enumerate(((37, 21), (19, 37))):
        weight = constant(draw.standard_normal((n, k), np.float32) / 6, f"w{i}")
        bias = constant(draw.standard_normal(n).astype(np.float32), f"b{i}")
        (value,) = builder.add(Matmul(), value, weight, name=f"product {i}")
        (value,) = builder.add(Pointwise(BIASED.expr), value, bias, name=f"bias {i}")
        (value,) = builder.add(Pointwise(call("gelu", Arg(0))), value, name=f"gelu {i}")
    graph, x = builder.graph([value]), draw.standard_normal((129, 21), np.float32)
    apart = frozenset({Pass.PERCEPTRON})  # which makes one step of both where that pays
    backend = opened("compute")
    plan = Plan(graph, backend, {"x": x.shape}, precision=DType.float16, without=apart)
    assert len(stored(plan)) == 1
    (expected,) = results(graph, {"x": x}).values()
    assert oracle.error(plan.run({"x": x})[value.name], expected) <= 2e-3

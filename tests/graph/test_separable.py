"""Depthwise and pointwise convolutions become one operator where they can, and give the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.backends.compute import Compute
from glnn.compiler import Executor, Plan
from glnn.compiler.fusion_cost_model import Case, is_separable_profitable
from glnn.core.types import DType, TensorType
from glnn.gl import Device
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Pool2d, SeparableConv2d
from glnn.graph.passes import BackendTraits, Pass, optimize, quantization
from glnn.kernels import kernels_for
from glnn.kernels.cost_model import device_rates
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.graph.nets import Net

IMAGE = (2, 6, 7, 5)
WINDOW = Conv2d((2, 1), (1, 1, 1, 1), groups=6)
SAME = Conv2d(padding=(1, 1, 1, 1), groups=6)
KERNEL = {"separable_conv2d": "tiled_few_pixels"}


class Channels(Net):
    """With convolutions of six channels."""

    def depthwise(self, x: Value, operator: Conv2d = WINDOW, kernel: int = 3) -> Value:
        return self(operator, x, self.fixed(6, 1, kernel, kernel))

    def pointwise(self, x: Value, o: int = 6) -> Value:
        return self(Conv2d(), x, self.fixed(o, x.type.shape[1], 1, 1))


def plain(net: Channels, x: Value) -> Value:
    return net.pointwise(net.depthwise(x))


def bottleneck(net: Channels, x: Value) -> Value:
    """An inverted residual block (Sandler et al. 2018)."""
    y = net.depthwise(net.of("relu(a)", net.pointwise(x)), SAME)
    y = net.of("minimum(relu(a * b + c), 6.0)", y, net.fixed(6, 1, 1), net.fixed(1, 6, 1, 1))
    return net.of("a + b + c", net.pointwise(y), net.fixed(6, 1, 1), x)


def sloped(net: Channels, x: Value) -> Value:
    """A PReLU between the two, a number for each channel."""
    y = net.of("where(a > 0.0, a, a * b)", net.depthwise(x), net.fixed(6, 1, 1))
    return net.of("sigmoid(a)", net.pointwise(y, 9))


JOINED: dict[str, Callable[[Channels, Value], Value]] = {
    "plain": plain,
    "bottleneck": bottleneck,
    "sloped": sloped,
}


def read_twice(net: Channels, x: Value) -> Value:
    y = net.depthwise(x)
    return net.of("a + b", net.pointwise(y), y)


def full_between(net: Channels, x: Value) -> Value:
    return net.pointwise(net.of("relu(a) + b", net.depthwise(x, SAME), x))


def two_taps(net: Channels, x: Value) -> Value:
    return net(Conv2d(), net.depthwise(x), net.fixed(6, 6, 2, 1))


def strided(net: Channels, x: Value) -> Value:
    return net(Conv2d((1, 2)), net.depthwise(x), net.fixed(6, 6, 1, 1))


def padded(net: Channels, x: Value) -> Value:
    return net(Conv2d(padding=(0, 1, 0, 0)), net.depthwise(x), net.fixed(6, 6, 1, 1))


def grouped(net: Channels, x: Value) -> Value:
    return net(Conv2d(groups=2), net.depthwise(x), net.fixed(6, 3, 1, 1))


def multiplied(net: Channels, x: Value) -> Value:
    return net.pointwise(net(WINDOW, x, net.fixed(12, 1, 3, 3)))


def of_two_channels(net: Channels, x: Value) -> Value:
    y = net(Conv2d(groups=3), x, net.fixed(6, 2, 3, 3))
    return net.pointwise(y)


def pooled(net: Channels, x: Value) -> Value:
    """The pool is part of the pointwise convolution by then."""
    return net(Pool2d(), net.pointwise(net.depthwise(x, SAME)))


def pooled_between(net: Channels, x: Value) -> Value:
    return net.pointwise(net(Pool2d(), net.depthwise(x, SAME)))


def changing(net: Channels, x: Value) -> Value:
    weight = net.builder.input("weight", TensorType((6, 6, 1, 1)))
    return net(Conv2d(), net.depthwise(x), weight)


APART = (
    *(read_twice, full_between, two_taps, strided, padded, grouped, multiplied, of_two_channels),
    *(pooled, pooled_between, changing),
)


def made(block: Callable[[Channels, Value], Value]) -> Graph:
    net = Channels(5)
    x = net.builder.input("x", TensorType(IMAGE))
    return net.builder.graph([block(net, x)])


def steps(graph: Graph, pays: bool = True) -> list[Node]:
    """The nodes that a run computes."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    short = optimize(graph, types, BackendTraits(8, is_profitable=lambda *_: pays))
    return [node for node in short.nodes if node.outputs[0] not in short.fixed]


def feeds(graph: Graph, rng) -> dict[str, np.ndarray]:
    return {value.name: rng(value.type.shape) for value in graph.inputs}


@pytest.mark.parametrize("block", JOINED.values(), ids=list(JOINED))
def test_one_operator_does_both(block, rng) -> None:
    graph = made(block)
    operators = [node.operator for node in steps(graph)]
    assert sum(isinstance(one, SeparableConv2d) for one in operators) == 1
    assert not any(isinstance(one, Conv2d) and one.groups > 1 for one in operators)
    assert not any(isinstance(n.operator, SeparableConv2d) for n in steps(graph, pays=False))
    given = feeds(graph, rng)
    (expected,) = graph.reference(*(x.astype(np.float64) for x in given.values()))
    (found,) = Executor(graph, "compute", kernels=KERNEL).run(given).values()
    assert oracle.error(found, expected) <= 1e-5


@pytest.mark.parametrize(("precision", "near"), [(DType.float16, 2e-3), (DType.int8, 2e-2)])
def test_weights_may_be_rounded(monkeypatch, rng, precision, near) -> None:
    monkeypatch.setattr(quantization, "LEAST_QUANTIZED", 1)
    graph = made(bottleneck)
    given = feeds(graph, rng)
    (expected,) = graph.reference(*(x.astype(np.float64) for x in given.values()))
    executor = Executor(graph, "compute", kernels=KERNEL, precision=precision)
    (found,) = executor.run(given).values()
    assert 1e-5 < oracle.error(found, expected) <= near


@pytest.mark.parametrize("block", APART)
def test_others_stay(block) -> None:
    assert not any(isinstance(node.operator, SeparableConv2d) for node in steps(made(block)))


def ops(
    graph: Graph, given: dict[str, np.ndarray], *without: Pass, device: Device | None = None
) -> list[str]:
    """What the steps of a plan are."""
    backend = open_backend("compute", device)
    shapes = {name: x.shape for name, x in given.items()}
    plan = Plan(graph, backend, shapes, without=without)
    expected = graph.reference(*(x.astype(np.float64) for x in given.values()))
    (found,) = plan.run(given).values()
    assert oracle.error(found, expected[0]) <= 1e-5
    return [step.op.name for step in plan.steps]


def meant_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels suit wherever they can run."""
    monkeypatch.setattr(Compute, "suits", lambda self, *asked: self.why_not(*asked) is None)


def test_it_is_for_those_that_gain(monkeypatch, rng) -> None:
    graph = made(bottleneck)
    given = feeds(graph, rng)
    assert "separable_conv2d" not in ops(graph, given)
    meant_for_all(monkeypatch)
    assert "separable_conv2d" in ops(graph, given)
    assert "separable_conv2d" not in ops(graph, given, Pass.SEPARABLE)


def residual(net: Channels, x: Value) -> Value:
    """Nothing between the two, a bias and x behind them."""
    y = net.pointwise(net.depthwise(x, SAME))
    return net.of("a + b + c", y, net.fixed(6, 1, 1), x)


@pytest.mark.parametrize(
    ("block", "joined"), [(plain, True), (bottleneck, False), (residual, False)]
)
def test_what_no_kernel_takes_is_taken_apart(monkeypatch, rng, block, joined) -> None:
    """Four storage blocks have no room for a bias between the two, or for what comes behind."""
    meant_for_all(monkeypatch)
    graph = made(block)
    with Device(limits="es31-minimum") as device:
        found = ops(graph, feeds(graph, rng), device=device)
    assert ("separable_conv2d" in found) == joined
    assert joined or found.count("conv2d") >= 2


@pytest.mark.parametrize(
    ("channels", "wanted", "side", "kernel", "pays"),
    [(960, 320, 7, 3, True), (32, 16, 112, 3, True), (256, 1024, 28, 7, False)],
)
def test_what_is_made_anew_costs_less_than_a_launch(channels, wanted, side, kernel, pays) -> None:
    half = kernel // 2
    shapes = {
        "x": (1, channels, side, side),
        "depthwise": (channels, 1, kernel, kernel),
        "weight": (wanted, channels, 1, 1),
    }
    spec = OpSpec.create(SeparableConv2d(padding=(half,) * 4), shapes, {})
    (declared,) = (
        k for k in kernels_for("separable_conv2d", "compute") if k.name == "tiled_few_pixels"
    )
    kernel = declared.for_architecture("NVIDIA")
    case = Case(spec, kernel, device_rates("NVIDIA"), lambda *_: kernel)
    assert is_separable_profitable(case) is pays

"""Concatenations and slices of channels that are only placed: fewer steps, the same to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn import layers
from glnn.backends.compute import Compute
from glnn.backends.cpu import Cpu
from glnn.compiler.plan import Plan
from glnn.core.layout import Strip, parse
from glnn.core.tensor_info import TensorInfo
from glnn.core.types import Array, TensorType
from glnn.errors import DeviceError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Matmul,
    Pointwise,
    Pool2d,
    Reshape,
    Slice,
    Transpose,
)
from glnn.graph.passes import Pass
from glnn.model.model import Model, Node
from glnn.session import InferenceSession
from tests.oracle import error
from tests.references import results

pytestmark = pytest.mark.usefixtures("poisoned")
SAME = (1, 1, 1, 1)


class Net:
    """A graph in the making, of images of 13 x 11, or their halves."""

    def __init__(self, images: int = 2) -> None:
        self.builder = Builder("net")
        self._rng = np.random.default_rng(5)
        self.x = self.builder.input("x", TensorType((images, 3, 13, 11)))

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=operator.name)[0]

    def conv(self, x: Value, o: int, size: int = 3, *, groups: int = 1, relu: bool = True) -> Value:
        c = x.type.shape[1]
        padding = SAME if size == 3 else (0, 0, 0, 0)
        weight = self._rng.standard_normal((o, c // groups, size, size)) / np.sqrt(c * size)
        y = self(Conv2d(padding=padding, groups=groups), x, fixed(weight))
        y = self(Pointwise(call("add", Arg(0), Arg(1))), y, fixed(self._rng.random((o, 1, 1))))
        return self(Pointwise(call("relu", Arg(0))), y) if relu else y

    def split(self, x: Value, *sizes: int) -> list[Value]:
        """Channels of x, so many at a time."""
        ends = np.cumsum(sizes)
        pairs = zip(ends - sizes, ends, strict=True)
        return [self(Slice((int(a),), (int(b),), (1,), (1,)), x) for a, b in pairs]

    def join(self, *given: Value) -> Value:
        return self(Concat(1), *given)

    def added(self, a: Value, b: Value) -> Value:
        return self(Pointwise(call("add", Arg(0), Arg(1))), a, b)

    def scaled(self, x: Value) -> Value:
        """What no convolution before it takes."""
        scale = fixed(self._rng.random((x.type.shape[1], 1, 1)))
        return self(Pointwise(call("relu", call("mul", Arg(0), Arg(1)))), x, scale)

    def planar(self, x: Value) -> Value:
        """What lies row by row: an output."""
        return self(Pool2d("average", None), x)


def fixed(array: Array) -> Value:
    return constant(array.astype(np.float32))


Block = Callable[[Net, Value], Value]


def fire(net: Net, x: Value) -> Value:
    """Of SqueezeNet (Iandola et al. 2016)."""
    return net.conv(net.join(net.conv(x, 32, 1), net.conv(x, 36)), 32, 1)


def last_channels(net: Net, x: Value) -> Value:
    """What comes last may have any number of channels."""
    return net.conv(net.join(net.conv(x, 32, 1), net.conv(x, 35)), 32)


def dense(net: Net, x: Value) -> Value:
    """Of a DenseNet (Huang et al. 2017): all layers write into one memory, which grows."""
    for _ in range(3):
        x = net.join(x, net.conv(net.conv(net.scaled(x), 32, 1), 12))
    return net.conv(net.scaled(x), 32, 1)


def pooled(net: Net, x: Value) -> Value:
    """Pools and convolutions of each channel by itself read and write strips, too."""
    one = net(Pool2d("max", (3, 3), (1, 1), SAME), x)
    two = net.conv(x, 32, groups=32)
    both = net.join(one, two, net.conv(x, 32))
    return net.join(net(Pool2d("average", (2, 2)), both), net.conv(net(Pool2d(), both), 32, 1))


def halves(net: Net, x: Value) -> Value:
    """Slices that are read where they lie."""
    a, b = net.split(net.conv(x, 72), 32, 40)
    return net.join(net.conv(a, 32), net.conv(b, 32, 1), net.scaled(b))


def rest(net: Net, x: Value) -> Value:
    """A slice of no whole vec4 is followed by channels of somebody else."""
    a, _ = net.split(net.conv(x, 72), 34, 38)
    return net.conv(a, 32)


def shuffled(net: Net, x: Value) -> Value:
    """Channels of both halves take turns."""
    n, c, *image = x.type.shape
    groups = net(Reshape((n, 2, c // 2, *image)), x)
    return net(Reshape((n, c, *image)), net(Transpose((0, 2, 1, 3, 4)), groups))


def shuffles(net: Net, x: Value, half: int = 16) -> Value:
    """Of ShuffleNet V2 (Ma et al. 2018): half of the channels stay as they are in each block."""
    x = shuffled(net, net.join(net.conv(x, half), net.conv(net.conv(x, half, 1), half)))
    for _ in range(2):
        stays, taken = net.split(x, half, half)
        x = shuffled(net, net.join(stays, net.conv(net.conv(taken, half, 1), half)))
    return net.conv(x, 32, 1)


def read_again(net: Net, x: Value) -> Value:
    """The channels behind those that stay are needed once others could be in their place."""
    stays, taken = net.split(shuffled(net, x), 16, 16)
    y = net.conv(net.join(stays, net.conv(taken, 16)), 16)
    return net.added(y, net.conv(taken, 16, 1))


def part_read_again(net: Net, x: Value) -> Value:
    """What is joined and cut again is needed once others could be in the place of the second."""
    a, b = net.conv(x, 16), net.conv(x, 20, 1)
    stays, taken = net.split(net.join(a, b), 12, 24)
    y = net.conv(net.join(stays, net.conv(taken, 24)), 16)
    return net.added(y, net.conv(b, 16))


COPIES: dict[str, Block] = {
    "part read again": part_read_again,
    "shuffles": shuffles,
    "read again": read_again,
    "residual": lambda net, x: net.conv(
        net.join(x, net.added(net.conv(x, 32), net.scaled(x)), net.conv(x, 8)), 32, 1
    ),
    "sliced again": lambda net, x: net.conv(
        net.join(*net.split(net.conv(x, 64), 32, 32), net.conv(x, 32, 1)), 32, 1
    ),
    "in two": lambda net, x: net.added(
        net.conv(net.join(x, net.conv(x, 32, 1)), 32), net.conv(net.join(net.scaled(x), x), 32)
    ),
}
"""Where some channels cannot be written to where they belong, as they belong elsewhere, too."""
WAYS: dict[str, Block] = {
    one.__name__: one for one in (fire, last_channels, dense, pooled, halves, rest)
} | COPIES


def graph_of(block: Block, images: int = 2) -> Graph:
    net = Net(images)
    return net.builder.graph([net.planar(block(net, net.conv(net.x, 32)))])


def feeds(images: int = 2) -> dict[str, Array]:
    x = np.random.default_rng(1).standard_normal((images, 3, 13, 11))
    return {"x": x.astype(np.float32)}


def planned(graph: Graph, backend: Compute | Cpu, *without: Pass) -> Plan:
    shapes = {value.name: value.type.shape for value in graph.inputs}
    return Plan(graph, backend, shapes, without=frozenset(without))


def moves(plan: Plan) -> int:
    """The launches that only move channels."""
    return sum(step.op.name in ("concat", "move", "slice") for step in plan.steps)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_to_the_bit(compute, way, images) -> None:
    graph, given = graph_of(WAYS[way], images), feeds(images)
    plan, plain = planned(graph, compute), planned(graph, compute, Pass.SUBVIEWS)
    found, other = plan.run(given), plain.run(given)
    again = plan.run(given)
    for name, expected in results(graph, given).items():
        assert error(found[name], expected) <= 1e-5
        np.testing.assert_array_equal(found[name], other[name])
        np.testing.assert_array_equal(found[name], again[name])


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_moved(compute, way) -> None:
    graph = graph_of(WAYS[way])
    plan, plain = planned(graph, compute), planned(graph, compute, Pass.SUBVIEWS)
    assert moves(plain) > 0
    if way not in COPIES:
        assert moves(plan) == 0 and len(plan.steps) == len(plain.steps) - moves(plain)
    else:
        assert moves(plan) > 0 and not any(step.op.name == "concat" for step in plan.steps)


@pytest.mark.parametrize("half", [16, 18])
def test_channels_that_stay_are_not_copied(compute, half) -> None:
    """A shuffle is one move, both halves of which are read where they lie, and others overwrite the
    second one; each begins with a whole vec4."""
    graph = graph_of(lambda net, x: shuffles(net, x, half))
    plan = planned(graph, compute)
    (found,), (expected,) = plan.run(feeds()).values(), results(graph, feeds()).values()
    assert error(found, expected) <= 1e-5
    assert [step.op.name for step in plan.steps].count("move") == moves(plan) == 3
    lies = [step.layouts["out"] for step in plan.steps if "/" in step.layouts["out"]]
    second = {16: "nhwC4c 16/32", 18: "nhwC4c 20/40"}[half]
    assert lies.count(second) == 3 and len(lies) == 4


def every_other(net: Net, x: Value) -> Value:
    return net(Slice((0,), (x.type.shape[1],), (1,), (2,)), x)


def both_begin(net: Net, x: Value) -> Value:
    """Two slices from the same channel on, of which one is a part of the other."""
    return net.join(*(net.conv(net.split(x, n, 36 - n)[0], 16, 1) for n in (18, 9)))


def test_other_readers_of_eighteen_channels(compute) -> None:
    """Where `pad_concats` may pad a part and where it may not: results are right either way."""
    for block in (
        lambda net, a, b: net.added(net.conv(shuffled(net, net.join(a, b)), 18), a),
        lambda net, a, b: net.conv(shuffled(net, net.join(net.scaled(net.added(a, b)), b)), 18),
        lambda net, a, b: net.conv(net.split(net.join(a, b), 9, 18, 9)[1], 18),
        lambda net, a, b: net.conv(net.join(a, b), 18),
        lambda net, a, b: shuffled(
            net, net.join(a, every_other(net, net.join(b, net.conv(b, 18))))
        ),
        lambda net, a, b: both_begin(net, net.join(a, b)),
        lambda net, a, b: net.conv(shuffled(net, net.join(a, a)), 18),
    ):
        graph = graph_of(
            lambda net, x, block=block: block(net, net.conv(x, 18), net.conv(x, 18, 1))
        )
        (found,) = planned(graph, compute).run(feeds()).values()
        (expected,) = results(graph, feeds()).values()
        assert error(found, expected) <= 1e-5


def test_a_dense_block_is_one_memory(compute) -> None:
    plan, plain = (planned(graph_of(dense), compute, *w) for w in ((), (Pass.SUBVIEWS,)))
    lies = {step.layouts["out"]: step.memory for step in plan.steps}
    placed = {layout: memory for layout, memory in lies.items() if "/" in layout}
    assert set(placed) == {f"nhwC4c {at}/68" for at in (0, 32, 44, 56)}
    assert len(set(placed.values())) == 1
    assert plan.outline.tensors <= plain.outline.tensors


def test_outputs_have_memory_of_their_own(compute) -> None:
    """What is read after a run is not written by halves."""
    net = Net()
    x = net.conv(net.x, 32)
    a, b = net.conv(x, 32), net.conv(x, 32, 1)
    joined = net.join(a, b)
    graph = net.builder.graph([joined, a, net.planar(net.join(joined, x))])
    plan, given = planned(graph, compute), feeds()
    found, expected = plan.run(given), results(graph, given)
    for name, array in expected.items():
        assert error(found[name], array) <= 1e-5
    for step in plan.steps:
        if step.output in (joined.name, a.name):
            assert not isinstance(parse(step.layouts["out"]), Strip)


def test_the_same_operand_twice(compute) -> None:
    net = Net()
    x = net.conv(net.x, 32)
    graph, given = net.builder.graph([net.planar(net.conv(net.join(x, x), 32))]), feeds()
    (found,), (expected,) = (
        planned(graph, compute).run(given).values(),
        results(graph, given).values(),
    )
    assert error(found, expected) <= 1e-5


def inception(net: Net, x: Value) -> Value:
    """Three branches that begin alike, of which one goes into the concatenation."""
    one = net.conv(x, 32, 1)
    two, three = net.conv(net.conv(x, 48, 1), 32), net.conv(net.conv(x, 64, 1), 32)
    return net.conv(net.join(one, two, three), 32, 1)


def test_branches_that_begin_alike_are_one_launch(compute) -> None:
    graph, given = graph_of(inception), feeds()
    plan, plain = planned(graph, compute), planned(graph, compute, Pass.STACK)
    assert len(plan.steps) == len(plain.steps) - 1 and moves(plan) == 0
    (found,), (other,) = plan.run(given).values(), plain.run(given).values()
    (expected,) = results(graph, given).values()
    assert error(found, expected) <= 1e-5
    np.testing.assert_allclose(found, other, rtol=1e-5)


def attention(shared: bool) -> Graph:
    """Queries, keys and values; shared: of the same numbers."""
    builder, rng = Builder("attention"), np.random.default_rng(3)
    x, y = (builder.input(name, TensorType((7, 20))) for name in ("x", "y"))

    def add(operator: Operator, *given: Value) -> Value:
        return builder.add(operator, *given, name=operator.name)[0]

    def heads(of: Value) -> Value:
        weight, bias = fixed(rng.standard_normal((32, 20))), fixed(rng.standard_normal(32))
        rows = add(Pointwise(call("add", Arg(0), Arg(1))), add(Matmul(), of, weight), bias)
        return add(Transpose((1, 0, 2)), add(Reshape((7, 4, 8)), rows))

    parts = [heads(x if shared or i < 2 else y) for i in range(3)]
    return builder.graph([add(Concat(0), *parts)])


def test_queries_keys_and_values_are_one_product(compute) -> None:
    graph = attention(shared=True)
    rng = np.random.default_rng(2)
    given = {name: rng.standard_normal((7, 20)).astype(np.float32) for name in ("x", "y")}
    plan, plain = planned(graph, compute), planned(graph, compute, Pass.STACK)
    products = [sum(step.op.name == "matmul" for step in one.steps) for one in (plan, plain)]
    assert products == [1, 3] and len(plan.steps) == len(plain.steps) - 2
    (found,), (expected,) = plan.run(given).values(), results(graph, given).values()
    assert error(found, expected) <= 1e-5
    other = planned(attention(shared=False), compute)
    assert sum(step.op.name == "matmul" for step in other.steps) == 2


def test_weights_that_are_assigned_reach_what_is_stacked() -> None:
    convolutions = {
        "stem": layers.Conv2d(3, 32, 3),
        "a": layers.Conv2d(32, 32, 1, seed=1),
        "b": layers.Conv2d(32, 32, 1, seed=2),
        "c": layers.Conv2d(32, 32, 3, seed=3),
        "d": layers.Conv2d(32, 32, 3, seed=4),
    }
    reads = {"stem": "input", "a": "stem", "b": "stem", "c": "a", "d": "b"}
    nodes = [Node(name, layer, (reads[name],), name) for name, layer in convolutions.items()]
    nodes.append(Node("sum", layers.Add(), ("c", "d"), "sum"))
    model = Model(tuple(nodes), (TensorInfo("input", ("N", 3, 9, 8)),), ("sum",), "branches")
    try:
        session = InferenceSession(model, "compute")
    except DeviceError as closed:
        pytest.skip(str(closed))
    x = np.random.default_rng(2).standard_normal((2, 3, 9, 8)).astype(np.float32)
    (before,) = session.run(None, {"input": x})
    assert error(before, model(x, backend="cpu")) <= 1e-5
    assert any("and 1 more" in step.name for step in session.plan({"input": x.shape}).steps)
    convolutions["b"].weight = 2 * convolutions["b"].weight
    (after,) = session.run(None, {"input": x})
    assert error(after, model(x, backend="cpu")) <= 1e-5
    assert error(after, before) > 1e-3

"""Channels that are only placed, stored as halves: all of a memory alike, and results right."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import Plan
from glnn.core.layout import Strip
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Concat, Conv2d, Pointwise, Pool2d, Slice, Softmax
from glnn.graph.passes import Pass
from tests import oracle
from tests.references import results

pytestmark = pytest.mark.usefixtures("poisoned")
SHAPES = {"x": (2, 3, 9, 7)}
WAYS = ("conv", "conv", "pool", "join", "join", "slice", "scale", "shares")


class Net:
    """A graph that is drawn: convolutions, pools, sums, slices and concatenations of what is there.

    A softmax reads and makes floats, so that some of what lies among others is not halves.
    """

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.builder = Builder("drawn")
        x = self.builder.input("x", TensorType(SHAPES["x"]))
        self.there = [self.conv(x, 32, 3), self.conv(x, 36, 3)]

    def conv(self, x: Value, o: int, size: int) -> Value:
        c = x.type.shape[1]
        weight = self.draw.standard_normal((o, c, size, size)) / np.sqrt(c) / size
        op = Conv2d(padding=(size // 2,) * 4)
        (y,) = self.builder.add(op, x, constant(weight.astype(np.float32)), name="conv")
        return self.builder.add(Pointwise(call("relu", Arg(0))), y, name="relu")[0]

    def pick(self) -> Value:
        return self.there[self.draw.integers(len(self.there))]

    def step(self, way: str) -> Value:
        x, add = self.pick(), self.builder.add
        if way == "conv":
            return self.conv(x, int(self.draw.choice([32, 35, 40])), int(self.draw.choice([1, 3])))
        if way == "pool":
            return add(Pool2d("max", (3, 3), (1, 1), (1, 1, 1, 1)), x, name="pool")[0]
        if way == "join":
            given = [self.pick() for _ in range(self.draw.integers(2, 4))]
            return add(Concat(1), *given, name="join")[0]
        if way == "slice":
            start = 4 * int(self.draw.integers(0, 3))
            op = Slice((start,), (int(self.draw.integers(start + 9, 32)),), (1,), (1,))
            return add(op, x, name="slice")[0]
        if way == "shares":
            return add(Softmax(1), x, name="shares")[0]
        scale = constant(self.draw.random((x.type.shape[1], 1, 1)).astype(np.float32))
        return add(Pointwise(call("mul", Arg(0), Arg(1))), x, scale, name="scale")[0]

    def graph(self, steps: int) -> Graph:
        for way in self.draw.choice(WAYS, steps):
            self.there.append(self.step(str(way)))
        (joined,) = self.builder.add(Concat(1), *self.there[-3:], name="last")
        (means,) = self.builder.add(Pool2d("average", None), joined, name="means")
        return self.builder.graph([means, self.there[-1]])


@pytest.fixture(scope="module", params=[None, "es31-minimum"])
def compute(request):
    try:
        backend = open_backend("compute", limits=request.param)
    except DeviceError as closed:
        pytest.skip(str(closed))
    yield backend
    backend.device.close()


def planned(graph: Graph, backend: Backend, *without: Pass) -> Plan:
    precision = DType.float16
    return Plan(graph, backend, SHAPES, precision=precision, without=frozenset(without))


def alike(plan: Plan) -> dict[str, set[DType]]:
    """See that each memory has numbers of one type; those of strips, by the memory."""
    kinds: dict[str, set[DType]] = {}
    strips: dict[str, set[DType]] = {}
    for tensor in plan.outline.schedule.tensors.values():
        kinds.setdefault(tensor.memory, set()).add(tensor.type.dtype)
        if isinstance(tensor.layout, Strip):
            strips.setdefault(tensor.memory, set()).add(tensor.type.dtype)
    assert all(len(dtypes) == 1 for dtypes in kinds.values())
    return strips


@pytest.mark.parametrize("seed", range(2))
def test_drawn_graphs(compute, seed) -> None:
    graph = Net(seed).graph(8)
    x = {"x": np.random.default_rng(seed).standard_normal(SHAPES["x"], np.float32)}
    expected = results(graph, x)
    for without in ((), (Pass.SUBVIEWS,), (Pass.HALVES,)):
        plan = planned(graph, compute, *without)
        alike(plan)
        for _ in range(2):
            for name, got in plan.run(x).items():
                assert got.dtype == np.float32
                assert oracle.error(got, expected[name]) <= 2e-3


def test_a_concatenation_that_is_placed_is_halves(compute) -> None:
    """And floats, all of it, where one who reads a part of it needs floats."""
    found = []
    for shares in (False, True):
        net = Net(5)
        left, right = (net.conv(one, 32, 1) for one in net.there)
        (both,) = net.builder.add(Concat(1), left, right, name="both")
        ends = [net.conv(net.conv(both, 32, 1), 32, 1)]
        if shares:
            ends += net.builder.add(Softmax(1), left, name="shares")
        graph = net.builder.graph(ends)
        plan, x = planned(graph, compute), {"x": np.ones(SHAPES["x"], np.float32)}
        found.append(alike(plan).get("both", set()))
        expected = results(graph, x)
        for name, got in plan.run(x).items():
            assert oracle.error(got, expected[name]) <= 2e-3
    assert found[0] == {DType.float16} and DType.float16 not in found[1]

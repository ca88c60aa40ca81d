"""What passes join that depends on kernels: prologues, and two small products as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from glnn.backends import Backend
from glnn.compiler import Executor
from glnn.compiler.memory_budget import Outline
from glnn.compiler.plan import Plan
from glnn.core.types import Array, TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Pool2d, Reshape, Softmax
from glnn.graph.passes import Pass
from glnn.kernels.op_spec import OpSpec
from tests import oracle

IMAGES = (2, 3, 24, 32)


class Net:
    """A graph in the making, of operators called one after the other, and seeded numbers."""

    def __init__(self) -> None:
        self.builder = Builder("net")
        self._numbers = np.random.default_rng(3)

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=f"{operator.name}")[0]

    def fixed(self, *shape: int) -> Value:
        return constant(self._numbers.normal(size=shape).astype(np.float32))

    def of(self, text: str, *given: Value) -> Value:
        return self(Pointwise(formula(text)(*map(Arg, range(len(given))))), *given)

    def conv(self, x: Value, o: int, c: int, function: str = "a + b", size: int = 1) -> Value:
        """A convolution with a bias and a function behind it."""
        found = self(Conv2d(), x, self.fixed(o, c, size, size))
        return self.of(function, found, self.fixed(o, 1, 1))


def last(net: Net, x: Value) -> Value:
    """An image that lies channels last, of 37 channels, which two read."""
    return net.conv(x, 37, 3, "relu(a + b)", size=3)


def excited(net: Net, x: Value) -> Value:
    """A squeeze-and-excitation (Hu et al. 2018) before a projection."""
    x = last(net, x)
    mean = net(Pool2d("average", None), x)
    hidden = net.conv(mean, 5, 37, "relu(a + b)")
    scale = net.conv(hidden, 37, 5, "sigmoid(a + b)")
    return net.conv(net.of("a * b", x, scale), 33, 37, "relu(a + b)")


def normed(net: Net, x: Value) -> Value:
    """A normalisation and a ReLU before a convolution, as in a dense block, of a pool's result."""
    x = net(Pool2d("max", (3, 3), (1, 1)), last(net, x))
    scaled = net.of("relu(a * b + c)", x, net.fixed(37, 1, 1), net.fixed(37, 1, 1))
    return net.conv(scaled, 33, 37)


def product(net: Net, x: Value) -> Value:
    """A function and a scale of each column before a product."""
    rows = net(Softmax(-1), net(Reshape((-1, 16)), x))
    return net(
        Matmul(), net.of("maximum(a, b) * c", rows, net.fixed(16), net.fixed(1)), net.fixed(7, 16)
    )


def read_twice(net: Net, x: Value) -> Value:
    """What two read is made once."""
    x = net.of("relu(a * b + c)", last(net, x), net.fixed(37, 1, 1), net.fixed(1))
    pooled = net(Pool2d("max", (3, 3), (1, 1)), x)
    x = net.of("relu(a * b - c)", pooled, net.fixed(37, 1, 1), net.fixed(37, 1, 1))
    return net.of("a + b", net.conv(x, 33, 37), net.conv(x, 33, 37, "tanh(a + b)"))


def graph_of(block: Callable[[Net, Value], Value]) -> Graph:
    net = Net()
    return net.builder.graph([block(net, net.builder.input("x", TensorType(IMAGES)))])


def planned(graph: Graph, backend: Backend, *without: Pass) -> Plan:
    return Plan(graph, backend, {"x": IMAGES}, without=frozenset(without))


def result(plan: Plan, x: Array) -> Array:
    (found,) = plan.run({"x": x}).values()
    return found


BLOCKS = {
    "excited": (excited, 2),
    "normed": (normed, 1),
    "product": (product, 1),
    "twice": (read_twice, 0),
}
"""And how many steps are spared where there are storage blocks for all operands."""
FOUR = {"excited": 1, "normed": 0, "product": 1, "twice": 0}
"""The same where there are four: beside a bias, none is left for what a prologue takes."""
TEXELS = {"excited": 1, "normed": 0, "product": 0, "twice": 0}
"""The same where products are made of texels, by kernels that take no prologue."""


@pytest.mark.parametrize("name", ["compute", "feedback"])
@pytest.mark.parametrize("block", BLOCKS)
def test_results_agree(opened, name, block) -> None:
    made, spared = BLOCKS[block]
    graph, backend = graph_of(made), opened(name)
    x = np.random.default_rng(5).normal(size=IMAGES).astype(np.float32)
    (expected,) = graph.reference(x.astype(np.float64))
    whole = planned(graph, backend)
    apart = planned(graph, backend, Pass.PROLOGUE, Pass.PERCEPTRON)
    for plan in (whole, apart):
        assert oracle.error(result(plan, x), expected) <= 1e-5
    blocks = backend.device.capabilities.max_compute_shader_storage_blocks
    known = spared if blocks > 4 else FOUR[block]
    product = OpSpec.create(Matmul(), {"x": (64, 64), "weight": (64, 64)}, {})
    if name == "compute" and backend.choose(product).name == "gemm_blocked_texture_buffer":
        known = TEXELS[block]
    fewer = {"compute": known, "feedback": 0}[name]
    assert len(apart.steps) - len(whole.steps) == fewer


@pytest.mark.parametrize("block", BLOCKS)
def test_numpy_computes_the_same(block) -> None:
    graph = graph_of(BLOCKS[block][0])
    x = np.random.default_rng(5).normal(size=IMAGES).astype(np.float32)
    (expected,) = graph.reference(x.astype(np.float64))
    (got,) = Executor(graph, "cpu").run({"x": x}).values()
    assert oracle.error(got, expected) <= 1e-5


@pytest.mark.parametrize(
    ("renderer", "images", "few", "many"),
    [
        ("NVIDIA H200", (4, 3, 60, 80), 64, 2560),
        ("Adreno 540", IMAGES, 64, 640),
        ("llvmpipe", IMAGES, 640, 640),
    ],
)
def test_what_would_be_done_too_often_is_done_once(
    opened, taken_for, renderer, images, few, many
) -> None:
    """Each number is read for each tile of columns: for many, a launch of its own costs less.

    The row of llvmpipe asks only that nothing is spared; the other two carry the test.
    """
    backend = taken_for(opened("compute"), renderer)
    spared = {}
    for columns in (few, many):
        net = Net()
        x = net(
            Pool2d("max", (3, 3), (1, 1)), last(net, net.builder.input("x", TensorType(images)))
        )
        x = net.conv(net.of("tanh(a * b)", x, net.fixed(37, 1, 1)), columns, 37)
        graph = net.builder.graph([x])
        whole, apart = (
            backend.perform(partial(Outline.create, graph, backend, {"x": images}, without=w))
            for w in (frozenset[Pass](), frozenset({Pass.PROLOGUE}))
        )
        spared[columns] = len(apart.steps) - len(whole.steps)
    assert spared[many] == 0
    if few < many and backend.device.capabilities.max_compute_shader_storage_blocks > 4:
        assert spared[few] == 1

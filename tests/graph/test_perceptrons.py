"""Products one behind another become layers of one operator, and give the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.compiler import Executor, Plan
from glnn.core.types import TensorType
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul, Perceptron, Reshape
from glnn.graph.passes import BackendTraits, Pass, optimize
from tests import oracle
from tests.graph.nets import Net


class Rows(Net):
    """With layers of rows."""

    def layer(self, x: Value, width: int, text: str = "relu(a)") -> Value:
        product = self(Matmul(), x, self.fixed(width, x.type.shape[1]))
        return self.of(text, self.of("a + b", product, self.fixed(width)))


def classifier(net: Rows, x: Value) -> list[Value]:
    """Three layers, the last without a function."""
    scores = net.layer(net.layer(net.layer(x, 129, "tanh(a)"), 37), 7, "a + 0.0")
    return [scores]


def unbiased(net: Rows, x: Value) -> list[Value]:
    hidden = net.of("sigmoid(a)", net(Matmul(), x, net.fixed(5, x.type.shape[1])))
    return [net(Matmul(), hidden, net.fixed(3, 5))]


def mixed(net: Rows, x: Value) -> list[Value]:
    """A product of rows behind one of images of one pixel."""
    image = net(Reshape((*x.type.shape, 1, 1)), x)
    hidden = net.of("relu(a)", net(Conv2d(), image, net.fixed(6, x.type.shape[1], 1, 1)))
    return [net.layer(net(Reshape((x.type.shape[0], 6)), hidden), 5)]


def read_twice(net: Rows, x: Value) -> list[Value]:
    """What is between is an output, too."""
    hidden = net.layer(x, 9)
    return [net.layer(hidden, 5), hidden]


def gated(net: Rows, x: Value) -> list[Value]:
    """An epilogue with an operand of the result's size."""
    return [net.of("a * b", net.layer(net.layer(x, 9), x.type.shape[1]), x)]


def of_a_product(net: Rows, x: Value) -> list[Value]:
    """A weight that each run makes anew."""
    return [net(Matmul(), net.layer(x, 5), net.layer(x, 5))]


Block = Callable[[Rows, Value], list[Value]]
BLOCKS: tuple[Block, ...] = (classifier, unbiased, mixed, read_twice, gated, of_a_product)


def graph_of(block: Block, n: int = 3, c: int = 13) -> Graph:
    net = Rows(7)
    return net.builder.graph(block(net, net.builder.input("x", TensorType((n, c)))))


def steps(block: Block, *without: Pass, most: int = 3) -> list[Operator]:
    """The operators that a run computes, views aside. most: layers that pay."""
    graph = graph_of(block)
    types = graph.infer_types({"x": TensorType((3, 13))})

    def pays(operator: Operator, of: object) -> bool:
        return isinstance(operator, Perceptron) and len(operator.widths) <= most

    graph = optimize(graph, types, BackendTraits(8, is_profitable=pays), frozenset(without))
    return [
        node.operator
        for node in graph.nodes
        if node.outputs[0] not in graph.fixed and not node.operator.view
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (classifier, [(129, 37, 7)]),
        (unbiased, [(5, 3)]),
        (mixed, [None, None]),  # a view is between them
        (read_twice, [None, None]),
        (gated, [None, None]),
        (of_a_product, [None, None, None]),
    ],
)
def test_products_that_one_alone_reads_are_joined(block, expected) -> None:
    widths = [op.widths if isinstance(op, Perceptron) else None for op in steps(block)]
    assert widths == expected


def test_as_many_layers_are_joined_as_pay() -> None:
    first, second = steps(classifier, most=2)
    assert isinstance(first, Perceptron) and first.widths == (129, 37)
    assert isinstance(second, Matmul)
    assert not any(isinstance(op, Perceptron) for op in steps(classifier, Pass.PERCEPTRON))


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_results_agree(block, backend) -> None:
    graph = graph_of(block)
    x = np.random.default_rng(3).normal(scale=0.25, size=(3, 13)).astype(np.float32)
    found = Executor(graph, backend).run({"x": x})
    for value, right in zip(graph.outputs, graph.reference(x.astype(np.float64)), strict=True):
        assert oracle.error(found[value.name], right) <= 1e-5, value.name


def planned(block: Block, n: int, c: int, kernels: dict[str, str] | None = None) -> list[str]:
    plan = Plan(graph_of(block, n, c), open_backend("compute"), {"x": (n, c)}, kernels)
    return [step.op.name for step in plan.steps]


def test_large_layers_and_those_of_a_kernel_asked_for_are_products() -> None:
    assert planned(classifier, 3, 16) == ["perceptron"]
    assert planned(classifier, 3, 16, {"matmul": "gemm_blocked"}) == ["matmul"] * 3
    assert planned(classifier, 3, 4096) == ["matmul", "perceptron"]
    assert planned(classifier, 3, 4096, {"perceptron": "shared_memory"}) == ["perceptron"]

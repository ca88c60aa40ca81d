"""Products that normalise their rows count tiles apart from one another."""

from __future__ import annotations

from glnn.core.types import TensorType
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Matmul, MatmulNormalize, Normalize
from glnn.graph.operators.matmul_normalize import MOST_ROWS
from glnn.graph.passes.normalization_fusion import fuse_product_norms
from tests.graph.nets import Net, changed


def fused(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    return fuse_product_norms(graph, types, lambda operator, operands: True)


def normalized_products(rows: int, count: int) -> Graph:
    """A graph of so many, all of the same x."""
    net = Net(0)
    x = net.builder.input("x", TensorType((rows, 8)))
    products = [net(Matmul(), x, net.fixed(6, 8)) for _ in range(count)]
    norms = [net(Normalize(dims=1), one, net.fixed(6), net.fixed(6)) for one in products]
    return net.builder.graph(norms)


def test_counts_differ(rng) -> None:
    """Two whose counts were one, as equal constants are, could not run at once."""
    nodes = changed(normalized_products(5, 3), fused, rng).nodes
    operators = [type(node.operator) for node in nodes]
    assert operators.count(MatmulNormalize) == 3 and Normalize not in operators
    counts = [
        node.operator.named(node.inputs)["arrivals"].data
        for node in nodes
        if isinstance(node.operator, MatmulNormalize)
    ]
    assert all((one == one[0]).all() for one in counts)
    assert len({float(one[0]) for one in counts}) == 3


def test_more_rows_than_are_counted(rng) -> None:
    for rows, count in ((MOST_ROWS, 1), (MOST_ROWS + 1, 0)):
        nodes = changed(normalized_products(rows, 1), fused, rng).nodes
        assert sum(isinstance(node.operator, MatmulNormalize) for node in nodes) == count

"""Which results of pointwise work lie in padded rows, as products take them."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Matmul, Pointwise, Reduce, Transpose
from glnn.layout.layout import PADDED, ROW_ALIGNMENT, RowMajor
from glnn.types import DType, TensorType


def padded_for_products(graph: Graph, types: Mapping[Value, TensorType]) -> dict[str, RowMajor]:
    """The values of `graph` that pointwise work makes for products, and how they are to lie.

    Those that nobody reads who would want them without the padding: products, also turned, sums and
    further pointwise work take rows of either kind. A copy in padded rows is not made then.
    """
    found = dict[str, RowMajor]()
    for node in graph.nodes:
        value, *_ = node.outputs
        type = types[value]
        if not isinstance(node.operator, Pointwise) or value in graph.outputs:
            continue
        if type.dtype is not DType.float32 or len(type.shape) != 2:
            continue
        readers = graph.readers.get(value, ())
        if type.shape[1] % ROW_ALIGNMENT == 0 or not all(_takes(graph, one) for one in readers):
            continue
        if any(isinstance(one.operator, Matmul) and one.inputs[0] is value for one in readers):
            found[value.name] = PADDED
    return found


def _takes(graph: Graph, node: Node) -> bool:
    """Whether `node` takes rows padded or not, whichever."""
    if isinstance(node.operator, Transpose):
        readers = graph.readers.get(node.outputs[0], ())
        return all(isinstance(one.operator, Matmul) for one in readers)
    return isinstance(node.operator, Matmul | Reduce | Pointwise)

"""The memory that operators' results take, checked before NumPy computes them."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.graph.operator import Operator
from glnn.process import check_memory
from glnn.types import TensorType

WIDE = 8  # bytes of a number of a constant, which is computed in 64 bits


def check_results(
    node: str, operator: Operator, types: Sequence[TensorType], *, wide: bool = False
) -> None:
    """Raise LimitError where the host has too little memory for the results of a node.

    Args:
        node: The node's name.
        operator: Its operator.
        types: Those of its results; what is of unknown sizes counts nothing.
        wide: Whether floats are computed in 64 bits.
    """
    nbytes = 0
    for one in types:
        floats = wide and one.dtype.kind == "float" and not one.symbols
        size = WIDE // one.dtype.numpy.itemsize if floats else 1
        nbytes += size * one.nbytes
    if nbytes:
        check_memory(nbytes, lambda: described(node, operator, max(types, key=lambda t: t.nbytes)))


def described(node: str, operator: Operator, result: TensorType) -> str:
    """Return what errors of too little memory say of a node and its largest result."""
    return f"node {node!r}, {operator.label} with the result {result},"

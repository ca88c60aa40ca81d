"""Nodes of float64 by the operators of the float32 node, which NumPy computes in 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.passes.expand import expanded
from glnn.onnx.host_node import HostNode, host_graph
from glnn.types import Array, DType, TensorType

Convert = Callable[[Builder, Sequence[Value | None]], Sequence[Value]]
"""Puts a node into a graph, of a value for each operand, and returns its results."""


@dataclass(frozen=True, eq=False)
class Float64Node(HostNode):
    """A node of float64, computed by the graph of the same node of float32, in 64 bits."""

    graph: Graph
    """The graph of the float32 node, with an input for each operand and no composites."""

    name: ClassVar[str] = "widened"

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        given = [array for array in arrays if array is not None]
        with np.errstate(all="ignore"):
            found = self.graph.reference(*given)
        return tuple(
            np.asarray(array, type.dtype.numpy)
            for array, type in zip(found, self.types, strict=True)
        )


def float64_graph(
    op_type: str, convert: Convert, operands: Sequence[Value | None], dtypes: Sequence[DType]
) -> Graph:
    """Return a graph of one host operator, which computes a node in 64 bits.

    convert: puts the float32 node into a graph. operands: some are of float64. dtypes: those
    of the results, `DType.object` where nothing is known. Raises ShapeError and UnsupportedOpError
    where the float32 node is refused.
    """
    graph = _float32_graph(op_type, convert, operands)
    types = tuple(
        TensorType(value.type.dims, _result_dtype(value, dtype))
        for value, dtype in zip(graph.outputs, dtypes, strict=True)
    )
    why = f"{DType.float64.value} is the host's"
    operator = Float64Node(op_type, types, why, graph)
    return host_graph(op_type, operator, operands, types)


def _float32_graph(op_type: str, convert: Convert, operands: Sequence[Value | None]) -> Graph:
    """Return the graph of the float32 node, an input for each operand.

    Numbers of float64 that are known are inputs, too, lest they are rounded; only where the node
    must know them, and float32 has them as they are, constants.
    """
    wide = [i for i, value in enumerate(operands) if value and _is_wide(value)]
    try:
        return substituted_graph(op_type, convert, operands, wide, keep_constants=False)
    except (ShapeError, UnsupportedOpError):
        constants = [v for v in operands if v and v.kind is Kind.CONSTANT and _is_wide(v)]
        if not constants or not all(map(_is_narrow_exactly, constants)):
            raise
        return substituted_graph(op_type, convert, operands, wide, keep_constants=True)


def substituted_graph(
    op_type: str,
    convert: Convert,
    operands: Sequence[Value | None],
    float32_operands: Collection[int],
    *,
    keep_constants: bool,
) -> Graph:
    """Return the graph of a node, an input for each operand, without composites.

    float32_operands: the operands, by number, in the place of which float32 stands. keep_constants:
    whether these are constants of the node's graph where they are constants.
    """
    builder = Builder(op_type)
    here: list[Value | None] = []
    inputs: list[Value] = []
    for i, value in enumerate(operands):
        if value is None:
            here.append(None)
            continue
        dtype = DType.float32 if i in float32_operands else value.type.dtype
        operand = Value(f"operand {i}", TensorType(value.type.dims, dtype), Kind.INPUT)
        inputs.append(operand)
        if value.kind is Kind.CONSTANT and (keep_constants or i not in float32_operands):
            array = np.asarray(value.data, dtype.numpy)
            operand = Value(f"operand {i}", operand.type, Kind.CONSTANT, array)
        else:
            builder.take(operand)
        here.append(operand)
    outputs = tuple(convert(builder, here))
    made = builder.graph(list(outputs))
    made = expanded(made, {value.name: value.type for value in made.inputs})
    # What nothing reads is given all the same.
    taken = {value.name: value for value in made.inputs}
    return replace(made, inputs=tuple(taken.get(value.name, value) for value in inputs))


def _is_wide(value: Value) -> bool:
    return value.type.dtype is DType.float64


def _is_narrow_exactly(value: Value) -> bool:
    """Return True where float32 has all numbers of a constant as they are."""
    array = np.asarray(value.data)
    with np.errstate(all="ignore"):
        return np.array_equal(array.astype(np.float32).astype(np.float64), array, equal_nan=True)


def _result_dtype(value: Value, dtype: DType) -> DType:
    """The type of a result: what ONNX says, else float64 in the place of float32."""
    if dtype is not DType.object:
        return dtype
    return DType.float64 if value.type.dtype is DType.float32 else value.type.dtype

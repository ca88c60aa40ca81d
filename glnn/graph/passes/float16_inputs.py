"""Inputs of float16 that lie on the device: as float32 there, in which they are computed."""

from __future__ import annotations

from collections.abc import Collection

from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators import Pointwise

ROUND = Pointwise(call("cast_float16", Arg(0)))


def widen_inputs(graph: Graph, names: Collection[str]) -> Graph:
    """Return `graph` with float32 for the float16 inputs so called, which are rounded first.

    What comes from the host is float16, and a kernel unpacks it; what a run left on the device is
    float32. An input that is an output as well stays as it is.
    """
    inputs, nodes, rounded = list[Value](), list[Node](), dict[Value, Value]()
    for value in graph.inputs:
        widened = value.name in names and value.type.dtype is DType.float16
        if not widened or value in graph.outputs:
            inputs.append(value)
            continue
        inputs.append(Value(value.name, TensorType(value.type.dims), Kind.INPUT))
        rounded[value] = Value(f"{value.name}, rounded", value.type)
        nodes.append(Node(rounded[value].name, ROUND, (inputs[-1],), (rounded[value],)))
    nodes += [node.with_values(rounded) for node in graph.nodes]
    return Graph(tuple(nodes), tuple(inputs), graph.outputs, graph.name)

"""From a graph to a schedule: passes, then a task for each node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from glnn.backends import Backend
from glnn.compile.schedule import Schedule, Task
from glnn.compile.weights import Weight
from glnn.graph.constant import Constant, constant
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.passes import (
    fold,
    fuse,
    of_one_result,
    within_operands,
    without_dead,
    without_identities,
)
from glnn.types import Shape, TensorType

Types = Mapping[Value, TensorType]


def lowered(
    graph: Graph,
    backend: Backend,
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str],
    *,
    fused: bool,
) -> tuple[Graph, Schedule]:
    """The graph that is computed for inputs of `shapes`, by name, and the schedule that does it.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a node.
    """
    types = graph.bind(
        {v.name: TensorType(tuple(shapes[v.name]), v.type.dtype) for v in graph.inputs}
    )
    graph = within_operands(of_one_result(graph), types, backend.operands)
    if fused:
        graph = without_identities(without_dead(graph))
        graph = fuse(fold(graph, types), types, backend.operands)
    names = {value.name for value in graph.inputs}
    names |= {value.name for node in graph.nodes for value in node.outputs}
    schedule = Schedule(backend, kernels, names)
    for value in graph.inputs:
        schedule.add_input(value.name, types[value])
    known: dict[Value, Constant] = {}
    for node in graph.nodes:
        if node.outputs[0] not in graph.fixed:
            schedule.add(_task(graph, node, types, known))
    return graph, schedule


def _task(
    graph: Graph, node: Node, types: Types, known: dict[Value, Constant], layer: str | None = None
) -> Task:
    """What `node`, of the layer so called, its own name unless said, is to a schedule."""
    layer = layer or node.name
    given = node.operator.named(node.inputs)
    kinds = {name: types[value] for name, value in given.items()}
    if node.epilogue is not None:
        result = types[node.outputs[0]].shape
        for name, extent, value in zip(
            node.epilogue.names, node.epilogue.extents, node.extras, strict=True
        ):
            given[name] = value
            kinds[name] = TensorType(node.epilogue.shape(extent, result), types[value].dtype)
    fixed = graph.fixed
    return Task(
        node.name,
        node.operator,
        {name: value.name for name, value in given.items() if value not in fixed},
        {
            name: Weight(constant(graph, value, known), kinds[name])
            for name, value in given.items()
            if value in fixed
        },
        node.outputs[0].name,
        layer,
        epilogue=node.epilogue,
        more=tuple(value.name for value in node.outputs[1:]),
        apart=partial(_apart, graph, node, types, known, layer) if node.origins else None,
    )


def _apart(
    graph: Graph, node: Node, types: Types, known: dict[Value, Constant], layer: str
) -> list[Task]:
    """The nodes that were joined into `node`, as tasks of their own."""
    return [_task(graph, origin, types, known, layer) for origin in node.origins]

"""From a graph to a schedule: passes, then a task for each node."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial

from glnn.backends import Backend
from glnn.compile.schedule import Schedule
from glnn.compile.task import Task
from glnn.compile.weights import Weight
from glnn.errors import UnsupportedOpError
from glnn.graph.constant import Constant, constant
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.passes import (
    fixed_captures,
    fold,
    fuse,
    known_branches,
    narrow,
    of_one_result,
    within_operands,
    without_dead,
    without_identities,
)
from glnn.kernels.problem import Problem
from glnn.types import Shape, TensorType

Types = Mapping[Value, TensorType]


def lowered(
    graph: Graph,
    backend: Backend,
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str],
    *,
    fused: bool,
    body: bool = False,
) -> tuple[Graph, Schedule]:
    """The graph that is computed for inputs of `shapes`, by name, and the schedule that does it.

    body: whether it is that of a branch or a loop.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a node.
    """
    graph = fixed_captures(known_branches(graph))
    types = _bound(graph, shapes)
    for node in graph.nodes:
        if unknown := [value for value in node.outputs if types[value].symbols]:
            raise UnsupportedOpError(
                f"layer {node.name!r}: the sizes of {unknown[0].name!r}, {types[unknown[0]]}, are "
                "known only once it has run, so there is no single plan"
            )
    if not all(map(backend.holds, (one.dtype for one in types.values()))):
        graph = narrow(graph, types, body=body)
        types = _bound(graph, shapes)
    graph = within_operands(of_one_result(graph), types, backend.operands)
    if fused:
        graph = without_identities(without_dead(graph))
        graph = fuse(fold(graph, types), types, backend.operands)
    schedule = _schedule(graph, types, Schedule(backend, kernels, _names(graph)), frozenset())
    # The host may pad inputs when it uploads them; those of bodies are copied as they lie.
    if not body and (padded := schedule.padded):
        other = _schedule(graph, types, Schedule(backend, kernels, _names(graph)), padded)
        if len(other.entries) < len(schedule.entries):
            return graph, other
    return graph, schedule


def _names(graph: Graph) -> set[str]:
    """What the tensors of `graph` are called."""
    names = {value.name for value in graph.inputs}
    return names | {value.name for node in graph.nodes for value in node.outputs}


def _schedule(graph: Graph, types: Types, schedule: Schedule, padded: Set[str]) -> Schedule:
    """`schedule` with all tasks of `graph`. padded: the inputs that lie in R4."""
    for value in graph.inputs:
        schedule.add_input(value.name, types[value], "R4" if value.name in padded else "R")
    known: dict[Value, Constant] = {}
    for node in graph.nodes:
        if node.outputs[0] not in graph.fixed:
            schedule.add(_task(graph, node, types, known))
    return schedule


def _bound(graph: Graph, shapes: Mapping[str, Shape]) -> dict[Value, TensorType]:
    """The type of every value, for inputs of `shapes`."""
    return graph.bind(
        {v.name: TensorType(tuple(shapes[v.name]), v.type.dtype) for v in graph.inputs}
    )


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
    fixed, control = graph.fixed, node.operator.control
    results = tuple(types[value] for value in node.outputs)
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
        problem=Problem(node.operator, tuple(kinds.items()), results) if control else None,
        apart=partial(_apart, graph, node, types, known, layer) if node.origins else None,
    )


def _apart(
    graph: Graph, node: Node, types: Types, known: dict[Value, Constant], layer: str
) -> list[Task]:
    """The nodes that were joined into `node`, as tasks of their own."""
    return [_task(graph, origin, types, known, layer) for origin in node.origins]

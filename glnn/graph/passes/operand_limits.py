"""Split nodes of more operands or results than a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glnn.core.types import TensorType
from glnn.graph.expression import Arg, Call, Expr, replace_part
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat, Pointwise, Reduce


def split_results(graph: Graph) -> Graph:
    """Return `graph` with a node for each result of operators with `single_result_operators`."""
    nodes: list[Node] = []
    for node in graph.nodes:
        operators = node.operator.single_result_operators
        if not operators or node.epilogue is not None:
            nodes.append(node)
            continue
        for operator, value in zip(operators, node.outputs, strict=True):
            nodes.append(Node(value.name, operator, node.inputs, (value,)))
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def split_operands(graph: Graph, types: dict[Value, TensorType], most: int) -> Graph:
    """Return `graph` with pointwise nodes and reductions split into nodes of at most `most`
    operands.

    A part of the expression that reads some of the operands becomes a node. most: at least 3.
    types: of every value; those of new ones are added.
    """
    nodes: list[Node] = []
    names = {value.name for value in types}
    for node in graph.nodes:
        nodes += _split_node(node, types, most, names)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def _split_node(
    node: Node, types: dict[Value, TensorType], most: int, names: set[str]
) -> Sequence[Node]:
    """Return nodes of at most `most` operands for `node`, or `node` where it cannot be split."""
    inputs = tuple(value for value in node.inputs if value is not None)
    if len(inputs) <= most:
        return [node]
    if isinstance(node.operator, Reduce):
        (type,) = Pointwise(node.operator.prologue).infer([types[value] for value in inputs])
        if type.dims != types[inputs[0]].dims:
            return [node]
        value = Value(_unique_name(f"{node.name}: what is reduced", names), type)
        types[value] = type
        prologue = Node(node.name, Pointwise(node.operator.prologue), inputs, (value,))
        reduction = replace(node, operator=replace(node.operator, prologue=Arg(0)), inputs=(value,))
        return [*_split_node(prologue, types, most, names), reduction]
    if not isinstance(node.operator, Pointwise):
        return [node]
    parts: list[Node] = []
    expr, values = node.operator.expr, list(inputs)
    while len(_argument_indices(expr)) > most:
        part = _choose_part(expr, most)
        operator, operands = _restrict_to_used(part, values)
        (type,) = operator.infer([types[value] for value in operands])
        value = Value(_unique_name(f"{node.name}: part {len(parts) + 1}", names), type)
        types[value] = type
        parts.append(Node(node.name, operator, operands, (value,)))
        values.append(value)
        expr = replace_part(expr, part, Arg(len(values) - 1))
    last, operands = _restrict_to_used(expr, values)
    if last.infer([types[value] for value in operands]) != (types[node.outputs[0]],):
        return [node]
    return [*parts, replace(node, operator=last, inputs=operands)]


def _choose_part(expr: Expr, most: int) -> Expr:
    """Return the part of at most `most` arguments that leaves the fewest arguments to the rest."""
    candidates = [
        one
        for one in expr.parts()
        if isinstance(one, Call) and 0 < len(_argument_indices(one)) <= most
    ]
    result = Arg(expr.arity)

    def rank(part: Expr) -> tuple[int, int]:
        return len(_argument_indices(replace_part(expr, part, result))), -part.calls

    return min(candidates, key=rank)


def _restrict_to_used(expr: Expr, values: Sequence[Value]) -> tuple[Pointwise, tuple[Value, ...]]:
    """Return `expr` as an operator of the `values` that it reads, and these."""
    used = _argument_indices(expr)
    args = {index: Arg(i) for i, index in enumerate(used)}
    renumbered = expr.replace(lambda one: args[one.index] if isinstance(one, Arg) else None)
    return Pointwise(renumbered), tuple(values[index] for index in used)


def _argument_indices(expr: Expr) -> list[int]:
    """Return the indices of the arguments of `expr`, sorted."""
    return sorted({one.index for one in expr.parts() if isinstance(one, Arg)})


def _unique_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "'"
    names.add(name)
    return name


def split_concats(graph: Graph, types: dict[Value, TensorType], most: int) -> Graph:
    """Return `graph` with concatenations split into nodes that join at most `most` values.

    types: of every value; those of new ones are added.
    """
    nodes: list[Node] = []
    names = {value.name for value in types}
    for node in graph.nodes:
        nodes += _split_concat(node, types, most, names)
    return Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)


def _split_concat(
    node: Node, types: dict[Value, TensorType], most: int, names: set[str]
) -> list[Node]:
    if not isinstance(node.operator, Concat) or len(node.inputs) <= most:
        return [node]
    parts: list[Node] = []
    inputs = tuple(value for value in node.inputs if value is not None)
    while len(inputs) > most:
        count = len(inputs)
        joined: list[Value] = []
        for start in range(0, len(inputs), most):
            group = inputs[start : start + most]
            if count > most and len(group) == most:
                operator = node.operator
                (type,) = operator.infer([types[value] for value in group])
                name = f"{node.name}: part {len(parts) + 1}"
                value = Value(_unique_name(name, names), type)
                types[value] = type
                parts.append(Node(name, operator, group, (value,)))
                group = (value,)
                count -= most - 1
            joined += group
        inputs = tuple(joined)
    return [*parts, replace(node, inputs=inputs)]

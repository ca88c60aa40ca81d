"""Expand composites, and inline branches and captured constants, before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glnn.core.types import Array, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import UniqueNames
from glnn.graph.composite import Composite
from glnn.graph.constant import constant_value
from glnn.graph.graph import Graph, Kind, Node, Value, ordered
from glnn.graph.operators import Identity, If
from glnn.graph.operators.control_flow import Control

Types = Mapping[str, TensorType]
ShapeArrays = Mapping[str, Array]


def expand_composites(graph: Graph, types: Types, shape_arrays: ShapeArrays | None = None) -> Graph:
    """Return `graph` with composites replaced by the operators that they are made of.

    Values that follow from known numbers become constants; inputs of known numbers that no node
    reads any more are left out. types: of the inputs, by name, all sizes known. shape_arrays: the
    numbers of the inputs where they are known, by name. Raises ShapeError where a composite needs a
    size that is open, and UnsupportedOpError; both name the node.
    """
    if not any(node.operator.composite for node in graph.nodes):
        return graph
    return _CompositeExpander(graph, types, shape_arrays).graph()


def expand_subgraphs(graph: Graph, types: Types, shape_arrays: ShapeArrays | None = None) -> Graph:
    """Return `graph` with those subgraphs of a model (`Composite.is_subgraph`) expanded whose
    operands have known sizes. Arguments and errors are those of `expand_composites`.
    """
    if not any(isinstance(n.operator, Composite) and n.operator.is_subgraph for n in graph.nodes):
        return graph
    return _CompositeExpander(graph, types, shape_arrays, only_subgraphs=True).graph()


class _CompositeExpander:
    def __init__(
        self,
        graph: Graph,
        types: Types,
        shape_arrays: ShapeArrays | None,
        only_subgraphs: bool = False,
    ) -> None:
        self._graph, self._only_subgraphs = graph, only_subgraphs
        self._shape_arrays = shape_arrays or {}
        self._types, self._constants = graph.propagate_constants(types, shape_arrays)
        self._names = {value.name for value in graph.inputs}
        self._names |= {value.name for node in graph.nodes for value in node.outputs}
        self._unique_names = UniqueNames()
        self._new_values: dict[Value, Value] = {}
        """The value of the new graph for each one of the old graph."""
        self._nodes: list[Node] = []

    def graph(self) -> Graph:
        graph = self._graph
        inputs = tuple(Value(v.name, self._types[v], Kind.INPUT) for v in graph.inputs)
        self._new_values |= zip(graph.inputs, inputs, strict=True)
        for value, array in self._constants.items():
            if value.kind in (Kind.INPUT, Kind.COMPUTED):
                type = self._types[value].of_shape(array.shape)
                self._new_values[value] = Value(value.name, type, Kind.CONSTANT, array)
        for node in graph.nodes:
            if all(value in self._constants for value in node.outputs):
                continue
            if isinstance(node.operator, Composite) and self._is_due(node, node.operator):
                self._expand(node, node.operator)
            else:
                self._keep(node)
        outputs = tuple(self._new_values.get(value, value) for value in graph.outputs)
        read = {value for node in self._nodes for value in node.reads} | {*outputs}
        inputs = tuple(v for v in inputs if v in read or v.name not in self._shape_arrays)
        return Graph(tuple(self._nodes), inputs, outputs, graph.name)

    def _is_due(self, node: Node, operator: Composite) -> bool:
        """Return True where this pass expands `node`."""
        if not self._only_subgraphs:
            return True
        return operator.is_subgraph and not any(self._types[value].symbols for value in node.reads)

    def _keep(self, node: Node) -> None:
        for value in node.outputs:
            self._new_values.setdefault(value, Value(value.name, self._types[value]))
        self._nodes.append(node.with_values(self._new_values))

    def _expand(self, node: Node, operator: Composite) -> None:
        operands = [None if v is None else self._new_values.get(v, v) for v in node.inputs]
        try:
            expansion, new_values = self._expand_nested(*self._expansion(operator, operands))
        except (ShapeError, UnsupportedOpError) as error:
            raise type(error)(f"layer {node.name!r}: {error}") from None
        for value, result in zip(node.outputs, expansion.outputs, strict=True):
            if value in self._constants:
                continue
            self._new_values[value] = Value(value.name, result.type)
            if result in expansion.producers and result not in new_values:
                new_values[result] = self._new_values[value]
        for inner in expansion.nodes:
            for value in inner.outputs:
                if value not in new_values:
                    label = f"{node.outputs[0].name}: {inner.operator.name}"
                    if operator.is_subgraph:
                        label = f"{node.name}/{value.name}"
                    new_values[value] = Value(self._fresh(label), value.type)
            name = f"{node.name}/{inner.name}" if operator.is_subgraph else node.name
            self._nodes.append(replace(inner.with_values(new_values), name=name))
        for value, result in zip(node.outputs, expansion.outputs, strict=True):
            source = new_values.get(result, result)
            if value not in self._constants and source is not self._new_values[value]:
                copy = Node(node.name, Identity(), (source,), (self._new_values[value],))
                self._nodes.append(copy)

    def _expansion(
        self, operator: Composite, operands: Sequence[Value | None]
    ) -> tuple[Graph, Sequence[Value]]:
        """Return the graph that `operator` is made of, and the value for each of its inputs.

        Where all operands are computed in each run, it is the graph that inferred the types.
        """
        values = [value for value in operands if value is not None]
        all_computed = all(value.kind in (Kind.INPUT, Kind.COMPUTED) for value in values)
        if operator.is_subgraph or not all_computed or len(set(values)) < len(values):
            graph = operator.expand(operands)
            return graph, graph.inputs
        types = [None if value is None else value.type for value in operands]
        return operator.graph(types), values

    def _expand_nested(
        self, graph: Graph, operands: Sequence[Value]
    ) -> tuple[Graph, dict[Value, Value]]:
        """Return `graph` with its own composites expanded, and the operand for each input."""
        expand = expand_subgraphs if self._only_subgraphs else expand_composites
        expanded = expand(graph, {value.name: value.type for value in graph.inputs})
        return expanded, dict(zip(expanded.inputs, operands, strict=True))

    def _fresh(self, name: str) -> str:
        result = self._unique_names.free(name, self._names)
        self._names.add(result)
        return result


def inline_constant_branches(graph: Graph) -> Graph:
    """Return `graph` with the nodes of a branch in place of each If whose condition never
    changes.
    """
    while (match := _first_constant_if(graph)) is not None:
        node, branch = match
        names = {value.name for n in graph.nodes for value in n.outputs}
        names |= {value.name for value in graph.inputs}
        nodes: list[Node] = []
        for n in graph.nodes:
            nodes += _branch_nodes(node, branch, names) if n is node else [n]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
    return graph


def _first_constant_if(graph: Graph) -> tuple[Node, int] | None:
    """Return an If whose condition never changes and the index of its branch; None without one."""
    for node in graph.nodes:
        if isinstance(node.operator, If) and node.inputs[0] is not None:
            condition = constant_value(graph, node.inputs[0])
            if condition is not None:
                return node, 0 if condition.item() else 1
    return None


def _branch_nodes(node: Node, branch: int, names: set[str]) -> list[Node]:
    """Return the nodes of a branch of `node`, with new names for values; adds these to `names`."""
    assert isinstance(node.operator, If)
    body, (first, _) = node.operator.bodies[branch], node.operator.captures[branch]
    new_values: dict[Value, Value] = {}
    for value, captured in zip(body.inputs, node.inputs[first:], strict=False):
        assert captured is not None
        new_values[value] = captured
    for value, result in zip(body.outputs, node.outputs, strict=True):
        if value in body.producers:
            new_values.setdefault(value, result)
    nodes: list[Node] = []
    for inner in body.nodes:
        for value in inner.outputs:
            if value not in new_values:
                name = f"{node.name}/{value.name}"
                while name in names:
                    name += "'"
                names.add(name)
                new_values[value] = Value(name, value.type)
        nodes.append(replace(inner.with_values(new_values), name=f"{node.name}/{inner.name}"))
    for value, result in zip(body.outputs, node.outputs, strict=True):
        source = new_values.get(value, value)
        if source is not result:
            nodes.append(Node(node.name, Identity(), (source,), (result,)))
    return nodes


def inline_constant_captures(graph: Graph) -> Graph:
    """Return `graph` with the constants that bodies capture computed within the bodies.

    Weights are then weights in a body, too, and the numbers that decide shapes are known there.
    """
    if not any(node.operator.control for node in graph.nodes):
        return graph
    nodes = tuple(
        _inline_captures_of(graph, node) if isinstance(node.operator, Control) else node
        for node in graph.nodes
    )
    return Graph(nodes, graph.inputs, graph.outputs, graph.name)


def _inline_captures_of(graph: Graph, node: Node) -> Node:
    assert isinstance(node.operator, Control)
    dropped: set[int] = set()
    bodies: list[Graph] = []
    for body, (operand, first) in zip(node.operator.bodies, node.operator.captures, strict=True):
        constants: dict[Node, None] = {}
        inputs = list(body.inputs[:first])
        for i, value in enumerate(body.inputs[first:], operand):
            captured = node.inputs[i]
            if captured is None or captured not in graph.fixed:
                inputs.append(value)
                continue
            dropped.add(i)
            constants |= dict.fromkeys(ordered((captured,), graph.producers))
            constants[Node(value.name, Identity(), (captured,), (value,))] = None
        bodies.append(Graph((*constants, *body.nodes), tuple(inputs), body.outputs, body.name))
    if not dropped:
        return node
    inputs_left = tuple(value for i, value in enumerate(node.inputs) if i not in dropped)
    return replace(node, operator=node.operator.with_bodies(bodies), inputs=inputs_left)

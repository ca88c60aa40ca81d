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

    types: of the inputs, by name, all sizes known. shape_arrays: the numbers of inputs that are
    known, by name. Values that follow from these become constants; inputs that nothing reads any
    more are left out. Raises ShapeError where a size is open that a composite needs, and
    UnsupportedOpError, which names the node.
    """
    if not any(node.operator.composite for node in graph.nodes):
        return graph
    return _CompositeExpander(graph, types, shape_arrays).graph()


def expand_subgraphs(graph: Graph, types: Types, shape_arrays: ShapeArrays | None = None) -> Graph:
    """Return `graph` with those composites expanded that are graphs of a model's own
    (`Composite.opens`), as far as the sizes of what they read are known. The rest as
    `expand_composites`.
    """
    if not any(isinstance(n.operator, Composite) and n.operator.opens for n in graph.nodes):
        return graph
    return _CompositeExpander(graph, types, shape_arrays, only_own=True).graph()


class _CompositeExpander:
    def __init__(
        self, graph: Graph, types: Types, shape_arrays: ShapeArrays | None, only_own: bool = False
    ) -> None:
        self._graph, self._told, self._only_own = graph, shape_arrays or {}, only_own
        self._types, self._known = graph.propagate_constants(types, shape_arrays)
        self._names = {value.name for value in graph.inputs}
        self._names |= {value.name for node in graph.nodes for value in node.outputs}
        self._marks = UniqueNames()
        self._here: dict[Value, Value] = {}  # what stands for a value
        self._nodes: list[Node] = []

    def graph(self) -> Graph:
        graph = self._graph
        inputs = tuple(Value(v.name, self._types[v], Kind.INPUT) for v in graph.inputs)
        self._here |= zip(graph.inputs, inputs, strict=True)
        for value, array in self._known.items():
            if value.kind in (Kind.INPUT, Kind.COMPUTED):
                type = self._types[value].of_shape(array.shape)
                self._here[value] = Value(value.name, type, Kind.CONSTANT, array)
        for node in graph.nodes:
            if all(value in self._known for value in node.outputs):
                continue
            if isinstance(node.operator, Composite) and self._is_for(node, node.operator):
                self._take_apart(node, node.operator)
            else:
                self._keep(node)
        outputs = tuple(self._here.get(value, value) for value in graph.outputs)
        read = {value for node in self._nodes for value in node.reads} | {*outputs}
        inputs = tuple(v for v in inputs if v in read or v.name not in self._told)
        return Graph(tuple(self._nodes), inputs, outputs, graph.name)

    def _is_for(self, node: Node, operator: Composite) -> bool:
        if not self._only_own:
            return True
        return operator.opens and not any(self._types[value].symbols for value in node.reads)

    def _keep(self, node: Node) -> None:
        for value in node.outputs:
            self._here.setdefault(value, Value(value.name, self._types[value]))
        self._nodes.append(node.with_values(self._here))

    def _take_apart(self, node: Node, operator: Composite) -> None:
        operands = [None if v is None else self._here.get(v, v) for v in node.inputs]
        try:
            made, here = self._inside(*self._expressed(operator, operands))
        except (ShapeError, UnsupportedOpError) as error:
            raise type(error)(f"layer {node.name!r}: {error}") from None
        for value, result in zip(node.outputs, made.outputs, strict=True):
            if value in self._known:
                continue
            self._here[value] = Value(value.name, result.type)
            if result in made.producers and result not in here:
                here[result] = self._here[value]
        for one in made.nodes:
            for value in one.outputs:
                if value not in here:
                    label = f"{node.outputs[0].name}: {one.operator.name}"
                    if operator.opens:
                        label = f"{node.name}/{value.name}"
                    here[value] = Value(self._fresh(label), value.type)
            name = f"{node.name}/{one.name}" if operator.opens else node.name
            self._nodes.append(replace(one.with_values(here), name=name))
        for value, result in zip(node.outputs, made.outputs, strict=True):
            source = here.get(result, result)
            if value not in self._known and source is not self._here[value]:
                copy = Node(node.name, Identity(), (source,), (self._here[value],))
                self._nodes.append(copy)

    def _expressed(
        self, operator: Composite, operands: Sequence[Value | None]
    ) -> tuple[Graph, Sequence[Value]]:
        """Return the graph that `operator` is made of, and the value that each of its inputs stands
        for.

        Where all of this changes from run to run it is the graph that told the types.
        """
        there = [value for value in operands if value is not None]
        changes = all(value.kind in (Kind.INPUT, Kind.COMPUTED) for value in there)
        if operator.opens or not changes or len(set(there)) < len(there):
            made = operator.expand(operands)
            return made, made.inputs
        types = [None if value is None else value.type for value in operands]
        return operator.graph(types), there

    def _inside(self, made: Graph, operands: Sequence[Value]) -> tuple[Graph, dict[Value, Value]]:
        """Return `made` with its own composites expanded, and the values that its inputs stand for:
        `operands`.
        """
        again = expand_subgraphs if self._only_own else expand_composites
        expanded = again(made, {value.name: value.type for value in made.inputs})
        return expanded, dict(zip(expanded.inputs, operands, strict=True))

    def _fresh(self, name: str) -> str:
        result = self._marks.free(name, self._names)
        self._names.add(result)
        return result


def inline_constant_branches(graph: Graph) -> Graph:
    """Return `graph` with the nodes of a branch in place of each If whose condition never
    changes.
    """
    while (match := _first_constant_if(graph)) is not None:
        node, branch = match
        names = {value.name for one in graph.nodes for value in one.outputs}
        names |= {value.name for value in graph.inputs}
        nodes: list[Node] = []
        for one in graph.nodes:
            nodes += _branch_nodes(node, branch, names) if one is node else [one]
        graph = Graph(tuple(nodes), graph.inputs, graph.outputs, graph.name)
    return graph


def _first_constant_if(graph: Graph) -> tuple[Node, int] | None:
    """An If whose condition never changes, and the number of the branch that is taken."""
    for node in graph.nodes:
        if isinstance(node.operator, If) and node.inputs[0] is not None:
            condition = constant_value(graph, node.inputs[0])
            if condition is not None:
                return node, 0 if condition.item() else 1
    return None


def _branch_nodes(node: Node, branch: int, names: set[str]) -> list[Node]:
    """The nodes of that branch of `node`, by names of their own; added to `names`."""
    assert isinstance(node.operator, If)
    body, (first, _) = node.operator.bodies[branch], node.operator.captures[branch]
    here: dict[Value, Value] = {}
    for value, captured in zip(body.inputs, node.inputs[first:], strict=False):
        assert captured is not None
        here[value] = captured
    for value, result in zip(body.outputs, node.outputs, strict=True):
        if value in body.producers:
            here.setdefault(value, result)
    nodes: list[Node] = []
    for one in body.nodes:
        for value in one.outputs:
            if value not in here:
                name = f"{node.name}/{value.name}"
                while name in names:
                    name += "'"
                names.add(name)
                here[value] = Value(name, value.type)
        nodes.append(replace(one.with_values(here), name=f"{node.name}/{one.name}"))
    for value, result in zip(body.outputs, node.outputs, strict=True):
        source = here.get(value, value)
        if source is not result:
            nodes.append(Node(node.name, Identity(), (source,), (result,)))
    return nodes


def inline_constant_captures(graph: Graph) -> Graph:
    """Return `graph` with bodies that compute themselves what they capture and no run changes.

    So weights are weights in a body, too, and what shapes depend on is known there.
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
        made: dict[Node, None] = {}
        inputs = list(body.inputs[:first])
        for i, value in enumerate(body.inputs[first:], operand):
            captured = node.inputs[i]
            if captured is None or captured not in graph.fixed:
                inputs.append(value)
                continue
            dropped.add(i)
            made |= dict.fromkeys(ordered((captured,), graph.producers))
            made[Node(value.name, Identity(), (captured,), (value,))] = None
        bodies.append(Graph((*made, *body.nodes), tuple(inputs), body.outputs, body.name))
    if not dropped:
        return node
    kept = tuple(value for i, value in enumerate(node.inputs) if i not in dropped)
    return replace(node, operator=node.operator.with_bodies(bodies), inputs=kept)

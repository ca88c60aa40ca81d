"""Fuse pointwise work into the producers of its operands: as an epilogue, or as a longer
expression.

What joins what depends on how the graph hangs together, not on the order of its nodes: of two
producers whose results meet, the one that has more nodes before it takes the other's result, the
first operand's of two as deep. Reference: Jouppi et al. do so in hardware; Rovder 2019, section 5,
runs every step by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.expression import MOST_CALLS, Arg, Call, Expr
from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operators import Pointwise
from glnn.graph.passes.rewriting import of_both
from glnn.types import DType, Shape, TensorType

Types = Mapping[Value, TensorType]


def fuse(graph: Graph, types: Types, most: int) -> Graph:
    """Return `graph` with pointwise nodes fused into the producers of their operands.

    types: of every value, sizes known. most: how many operands a pointwise node may come to have.
    A value that somebody else reads, or that is an output, is never fused away; one that is read
    again by what is joined to its reader, as x of x sigmoid(x), is.
    """
    return _Fusion(graph, types, most).graph()


class _Fusion:
    def __init__(self, graph: Graph, types: Types, most: int) -> None:
        self._graph, self._types, self._most = graph, types, most
        self._made: dict[Value, Node] = {}
        self._depth: dict[Value, int] = {}
        self._within: dict[Node, frozenset[Node]] = {}  # the nodes that were joined into one

    def graph(self) -> Graph:
        for node in self._graph.ordered:
            self._depth |= dict.fromkeys(node.outputs, self._below(node))
            joined = self._joined(node)
            self._made |= dict.fromkeys(node.outputs, joined)
        graph, nodes = self._graph, ordered(self._graph.outputs, self._made)
        nodes = tuple(_in_order(node) for node in nodes)
        return Graph(nodes, graph.inputs, graph.outputs, graph.name)

    def _below(self, node: Node) -> int:
        return 1 + max((self._depth.get(value, 0) for value in node.reads), default=0)

    def _joined(self, node: Node) -> Node:
        """Return `node` with as many producers of its operands fused as possible."""
        if not isinstance(node.operator, Pointwise) or node.outputs[0] in self._graph.fixed:
            return node
        while (found := self._taken(node)) is not None:
            if not isinstance(found.operator, Pointwise):
                return found
            node = found
        return node

    def _taken(self, node: Node) -> Node | None:
        """Return `node` fused with one of its producers; None where none can be."""
        values = [v for v in dict.fromkeys(node.inputs) if v in self._made and self._alone(v, node)]
        depths = {v: self._depth[v] for v in values if v is not None}
        by_kind = sorted(
            depths, key=lambda v: (isinstance(self._made[v].operator, Pointwise), -depths[v])
        )
        for value in by_kind:
            producer = self._made[value]
            if isinstance(producer.operator, Pointwise):
                joined = self._expression(producer, node, value)
            else:
                joined = self._epilogue(producer, node, value)
            if joined is not None:
                own = (self._within.get(one, frozenset((one,))) for one in (producer, node))
                self._within[joined] = frozenset().union(*own)
                return joined
        return None

    def _alone(self, value: Value | None, node: Node) -> bool:
        """Return True where `value` is read by nothing but `node` and the nodes joined into
        that.
        """
        if value is None or value in self._graph.outputs or value in self._graph.fixed:
            return False
        within = self._within.get(node, frozenset((node,)))
        return within.issuperset(self._graph.readers[value]) and len(self._made[value].outputs) == 1

    def _epilogue(self, first: Node, node: Node, value: Value) -> Node | None:
        """Return `first`, which makes `value`, with `node` in its epilogue."""
        assert isinstance(node.operator, Pointwise)
        result = self._types[value]
        if not first.operator.has_epilogue or self._types[node.outputs[0]] != result:
            return None
        extras, extents = list(first.extras), list(first.epilogue.extents if first.epilogue else ())
        expr: Expr = first.epilogue.expr if first.epilogue else Arg(0)
        arguments: list[Expr] = []
        for operand in node.inputs:
            assert operand is not None
            if operand is value:
                arguments.append(expr)
                continue
            extent = self._extent(operand, result.shape)
            if extent is None:
                return None
            if operand not in extras:
                extras.append(operand)
                extents.append(extent)
            arguments.append(Arg(1 + extras.index(operand)))
        whole = node.operator.expr(*arguments)
        if whole.calls > MOST_CALLS:
            return None
        made = replace(
            of_both(first, first, node),
            epilogue=Epilogue(whole, tuple(extents)),
            extras=tuple(extras),
            outputs=node.outputs,
        )
        return made

    def _extent(self, value: Value, result: Shape) -> Extent | None:
        """Return the extent of `value` relative to a result of that shape; None where no epilogue
        takes it.
        """
        type = self._types[value]
        if type.dtype is not DType.float32:
            return None
        shape = type.shape
        if len(shape) <= len(result) and prod(shape) == 1:
            return "one"
        spread = (*(1,) * (len(result) - len(shape)), *shape)
        if len(result) > 1 and spread == (1, result[1], *(1,) * (len(result) - 2)):
            return "channel"
        return "full" if shape == result else None

    def _expression(self, first: Node, node: Node, value: Value) -> Node | None:
        """Return one node for `first`, which makes `value`, and its reader `node`; None where work
        would be repeated.
        """
        assert isinstance(first.operator, Pointwise) and isinstance(node.operator, Pointwise)
        if self._types[value].shape != self._types[node.outputs[0]].shape:
            return None  # numbers that are spread would be computed over and over
        operands = list(dict.fromkeys(v for v in first.inputs if v is not None))
        operands += [v for v in node.inputs if v and v is not value and v not in operands]
        inner = first.operator.expr(*(Arg(operands.index(v)) for v in first.inputs if v))
        arguments = [
            inner if v is value else Arg(operands.index(v)) for v in node.inputs if v is not None
        ]
        whole = node.operator.expr(*arguments)
        if len(operands) > self._most or whole.calls > MOST_CALLS:
            return None
        joined = of_both(first, first, node)
        return replace(
            joined, operator=Pointwise(whole), inputs=tuple(operands), outputs=node.outputs
        )


def _in_order(node: Node) -> Node:
    """Return `node` with the operands of sums and products in a fixed order, so that fewer programs
    differ.
    """
    if node.epilogue is not None:
        return replace(node, epilogue=replace(node.epilogue, expr=_sorted(node.epilogue.expr)))
    if isinstance(node.operator, Pointwise):
        return replace(node, operator=Pointwise(_sorted(node.operator.expr)))
    return node


def _sorted(expr: Expr) -> Expr:
    def part(one: Expr, given: tuple[tuple[int, Expr], ...]) -> tuple[int, Expr]:
        """The first argument that a part has, and the part."""
        if not isinstance(one, Call):
            return (one.index if isinstance(one, Arg) else MOST_CALLS), one
        if one.function in ("add", "mul"):
            given = tuple(sorted(given, key=lambda each: each[0]))
        arguments = tuple(each for _, each in given)
        return min(place for place, _ in given), Call(one.function, arguments)

    return expr.fold(part)[-1][1]

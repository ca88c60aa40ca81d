"""Fuse pointwise work into the producers of its operands, as an epilogue or a longer expression, or
into the product or convolution that reads it, as a prologue.

Which epilogue takes what depends on how the graph hangs together, not on the order of its nodes: of
two producers whose results meet, the one that has more nodes before it takes the other's result,
the first operand's of two as deep. Reference: Jouppi et al. do so in hardware; Rovder 2019, section
5, runs every step by itself.

The operand of a prologue is never stored, but each number of it is computed as often as it is read.
So a prologue is fused where kernels may read it seldom: before products, convolutions of one tap or
of each channel by itself, and those with strides. Whether a kernel then reads it too often is
decided once it is chosen, and the two are unfused again where it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

from glnn.core.types import DType, Shape, TensorType
from glnn.graph.epilogue import Epilogue, Extent, Prologue, Spread
from glnn.graph.expression import MOST_CALLS, Arg, Call, Expr
from glnn.graph.graph import Graph, Node, Value, ordered
from glnn.graph.operators import Conv2d, Matmul, Pointwise
from glnn.graph.passes.graph_rewriter import GraphRewriter, with_origins

Types = Mapping[Value, TensorType]


def fuse_pointwise(graph: Graph, types: Types, most: int) -> Graph:
    """Return `graph` with pointwise nodes fused into the producers of their operands.

    types: of every value, sizes known. most: how many operands a pointwise node may come to have.
    A value that somebody else reads, or that is an output, is never fused away; one that is read
    again by what is joined to its reader, as x of x sigmoid(x), is.
    """
    return _PointwiseFusion(graph, types, most).graph()


class _PointwiseFusion:
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
        nodes = tuple(_sort_operands(node) for node in nodes)
        return Graph(nodes, graph.inputs, graph.outputs, graph.name)

    def _below(self, node: Node) -> int:
        return 1 + max((self._depth.get(value, 0) for value in node.reads), default=0)

    def _joined(self, node: Node) -> Node:
        """Return `node` with as many producers of its operands fused as possible."""
        if not isinstance(node.operator, Pointwise) or node.outputs[0] in self._graph.fixed:
            return node
        while (result := self._fuse_producer(node)) is not None:
            if not isinstance(result.operator, Pointwise):
                return result
            node = result
        return node

    def _fuse_producer(self, node: Node) -> Node | None:
        """Return `node` fused with one of its producers; None where none can be."""
        values = [
            v for v in dict.fromkeys(node.inputs) if v in self._made and self._only_reads(v, node)
        ]
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
                members = (self._within.get(one, frozenset((one,))) for one in (producer, node))
                self._within[joined] = frozenset().union(*members)
                return joined
        return None

    def _only_reads(self, value: Value | None, node: Node) -> bool:
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
        if result.dtype is not DType.float32:
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
            with_origins(first, first, node),
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
        joined = with_origins(first, first, node)
        return replace(
            joined, operator=Pointwise(whole), inputs=tuple(operands), outputs=node.outputs
        )


def _sort_operands(node: Node) -> Node:
    """Return `node` with the operands of sums and products in a fixed order, so that fewer programs
    differ.
    """
    if node.epilogue is not None:
        return replace(
            node, epilogue=replace(node.epilogue, expr=_sort_expression(node.epilogue.expr))
        )
    if isinstance(node.operator, Pointwise):
        return replace(node, operator=Pointwise(_sort_expression(node.operator.expr)))
    return node


def _sort_expression(expr: Expr) -> Expr:
    def part(one: Expr, parts: tuple[tuple[int, Expr], ...]) -> tuple[int, Expr]:
        """The first argument that a part has, and the part."""
        if not isinstance(one, Call):
            return (one.index if isinstance(one, Arg) else MOST_CALLS), one
        if one.function in ("add", "mul"):
            parts = tuple(sorted(parts, key=lambda each: each[0]))
        arguments = tuple(each for _, each in parts)
        return min(place for place, _ in parts), Call(one.function, arguments)

    return expr.fold(part)[-1][1]


def fuse_prologues(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with pointwise nodes fused into their only reader, as its prologue.

    types: of every value; those of new ones are added. It comes behind `fuse`: what can go into an
    epilogue is not computed over and over.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Conv2d | Matmul) and node.operator.prologue is None:
            _fuse_prologue(rewriter, node, node.operator)
    return rewriter.graph()


def _fuse_prologue(rewriter: GraphRewriter, node: Node, operator: Conv2d | Matmul) -> None:
    """Fuse the producer of `node`'s x into it as its prologue, where that is possible."""
    x, weight = node.inputs[:2]
    first = rewriter.runtime_producer(x)
    if first is None or x is None or weight is None or not rewriter.is_read_once(x):
        return
    if not isinstance(first.operator, Pointwise) or node.reads.count(x) > 1:
        return
    if not _reads_x_once(rewriter, operator, weight):
        return
    shape, operands = rewriter.shape(x), [v for v in first.inputs if v is not None]
    if any(rewriter.types[v].dtype is not DType.float32 for v in (x, *operands)):
        return
    source = next(
        (v for v in operands if rewriter.shape(v) == shape and not rewriter.is_fixed(v)), None
    )
    if source is None:
        return
    beside = [v for v in dict.fromkeys(operands) if v is not source]
    extents = [_prologue_extent(rewriter, v, shape) for v in beside]
    if None in extents:
        return
    places = (Arg(0) if v is source else Arg(1 + beside.index(v)) for v in operands)
    prologue = Prologue(first.operator.expr(*places), tuple(e for e in extents if e is not None))
    seen = _prologue_operands(rewriter, node.name, prologue, beside, shape)
    operator, inputs = replace(operator, prologue=prologue), (source, weight, *seen)
    rewriter.fuse(first, node, replace(node, operator=operator, inputs=inputs))


def _reads_x_once(rewriter: GraphRewriter, operator: Conv2d | Matmul, weight: Value) -> bool:
    """Return True where a kernel reads each number of x for one tap alone, or for few results."""
    shape = rewriter.shape(weight)
    if isinstance(operator, Matmul):
        return len(shape) == 2
    depthwise = operator.groups > 1 and shape[:2] == (operator.groups, 1)
    return prod(shape[2:]) == 1 or depthwise or operator.stride != (1, 1)


def _prologue_extent(rewriter: GraphRewriter, value: Value, x: Shape) -> Spread | None:
    """Return the extent of `value` relative to x of that shape; None where no prologue takes it."""
    shape = rewriter.shape(value)
    if len(shape) > len(x):
        return None
    if prod(shape) == 1:
        return "one"
    spread = (*(1,) * (len(x) - len(shape)), *shape)
    if spread == (1, *x[1:2], *(1,) * (len(x) - 2)):
        return "channel"
    by_image = len(x) == 4 and spread == (*x[:2], 1, 1) and not rewriter.is_fixed(value)
    return "image" if by_image else None


def _prologue_operands(
    rewriter: GraphRewriter, name: str, prologue: Prologue, extra_operands: list[Value], x: Shape
) -> Iterator[Value]:
    """Return each operand in the shape that a prologue needs."""
    shapes = prologue.shapes(x, x[0])
    for value, shape in zip(extra_operands, shapes.values(), strict=True):
        yield rewriter.reshape(name, value, shape)

"""Fuse pointwise work into the producers of its operands, as an epilogue or a longer expression, or
into the product or convolution that reads it, as a prologue.

Fusion depends on the structure of the graph, not on the order of its nodes: where a pointwise node
joins the results of two producers, the deeper one, with more nodes before it, takes the node into
its epilogue; of two equally deep ones, the producer of the first operand. Reference: Jouppi et al.
do so in hardware; Rovder 2019, section 5, runs every step by itself.

The result of a prologue is never stored, but computed anew whenever it is read. So a prologue is
fused where kernels may read each number only a few times: before products, 1 x 1 convolutions,
depthwise ones, and those with strides. Once a kernel is chosen and reads it too often, prologue and
kernel are unfused again.
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

    types: of every value, sizes known. most: how many operands a fused pointwise node may have.
    A value that is an output, or has a reader outside of the fused node, is never fused away; one
    that several parts of the fused node read, as x of x sigmoid(x), may be.
    """
    return _PointwiseFusion(graph, types, most).graph()


class _PointwiseFusion:
    def __init__(self, graph: Graph, types: Types, most: int) -> None:
        self._graph, self._types, self._most = graph, types, most
        self._producers: dict[Value, Node] = {}
        self._depth: dict[Value, int] = {}
        self._members: dict[Node, frozenset[Node]] = {}  # original nodes of each fused node

    def graph(self) -> Graph:
        """Return the graph with all fused nodes."""
        for node in self._graph.ordered:
            self._depth |= dict.fromkeys(node.outputs, self._depth_of(node))
            self._producers |= dict.fromkeys(node.outputs, self._fuse_producers(node))
        graph, nodes = self._graph, ordered(self._graph.outputs, self._producers)
        nodes = tuple(_sort_operands(node) for node in nodes)
        return Graph(nodes, graph.inputs, graph.outputs, graph.name)

    def _depth_of(self, node: Node) -> int:
        return 1 + max((self._depth.get(value, 0) for value in node.reads), default=0)

    def _fuse_producers(self, node: Node) -> Node:
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
            value
            for value in dict.fromkeys(node.inputs)
            if value in self._producers and self._is_only_reader(node, value)
        ]
        depths = {v: self._depth[v] for v in values if v is not None}
        by_kind = sorted(
            depths, key=lambda v: (isinstance(self._producers[v].operator, Pointwise), -depths[v])
        )
        for value in by_kind:
            producer = self._producers[value]
            if isinstance(producer.operator, Pointwise):
                fused = self._fuse_expression(producer, node, value)
            else:
                fused = self._fuse_epilogue(producer, node, value)
            if fused is not None:
                self._members[fused] = self._members_of(producer) | self._members_of(node)
                return fused
        return None

    def _members_of(self, node: Node) -> frozenset[Node]:
        """Return the nodes of the graph that `node` was fused from."""
        return self._members.get(node, frozenset((node,)))

    def _is_only_reader(self, node: Node, value: Value | None) -> bool:
        """Return True where `node`, or the nodes fused into it, are the only readers of `value`."""
        if value is None or value in self._graph.outputs or value in self._graph.fixed:
            return False
        readers = self._graph.readers[value]
        return (
            self._members_of(node).issuperset(readers) and len(self._producers[value].outputs) == 1
        )

    def _fuse_epilogue(self, producer: Node, node: Node, value: Value) -> Node | None:
        """Return `producer`, which computes `value`, with `node` in its epilogue; None where that
        is impossible.
        """
        assert isinstance(node.operator, Pointwise)
        result = self._types[value]
        if not producer.operator.has_epilogue or self._types[node.outputs[0]] != result:
            return None
        if result.dtype is not DType.float32:
            return None
        epilogue = producer.epilogue
        extras, extents = list(producer.extras), list(epilogue.extents if epilogue else ())
        expr: Expr = epilogue.expr if epilogue else Arg(0)
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
        fused_expr = node.operator.expr(*arguments)
        if fused_expr.calls > MOST_CALLS:
            return None
        return replace(
            with_origins(producer, producer, node),
            epilogue=Epilogue(fused_expr, tuple(extents)),
            extras=tuple(extras),
            outputs=node.outputs,
        )

    def _extent(self, value: Value, result: Shape) -> Extent | None:
        """Return the extent of `value` relative to a result of shape `result`; None where no
        epilogue takes it.
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

    def _fuse_expression(self, producer: Node, node: Node, value: Value) -> Node | None:
        """Return one pointwise node for `producer`, which computes `value`, and its reader `node`;
        None where the expression would be too long, or work repeated.
        """
        assert isinstance(producer.operator, Pointwise) and isinstance(node.operator, Pointwise)
        if self._types[value].shape != self._types[node.outputs[0]].shape:
            return None  # a value that is broadcast would be computed over and over
        operands = list(dict.fromkeys(v for v in producer.inputs if v is not None))
        operands += [v for v in node.inputs if v and v is not value and v not in operands]
        inner = producer.operator.expr(*(Arg(operands.index(v)) for v in producer.inputs if v))
        arguments = [
            inner if v is value else Arg(operands.index(v)) for v in node.inputs if v is not None
        ]
        expr = node.operator.expr(*arguments)
        if len(operands) > self._most or expr.calls > MOST_CALLS:
            return None
        return replace(
            with_origins(producer, producer, node),
            operator=Pointwise(expr),
            inputs=tuple(operands),
            outputs=node.outputs,
        )


def _sort_operands(node: Node) -> Node:
    """Return `node` with the operands of sums and products in a fixed order, so that more nodes
    share a program.
    """
    if node.epilogue is not None:
        return replace(
            node, epilogue=replace(node.epilogue, expr=_sort_expression(node.epilogue.expr))
        )
    if isinstance(node.operator, Pointwise):
        return replace(node, operator=Pointwise(_sort_expression(node.operator.expr)))
    return node


def _sort_expression(expr: Expr) -> Expr:
    def visit(part: Expr, operands: tuple[tuple[int, Expr], ...]) -> tuple[int, Expr]:
        """Return the lowest index of an Arg in `part`, and the sorted part."""
        if not isinstance(part, Call):
            return (part.index if isinstance(part, Arg) else MOST_CALLS), part
        if part.function in ("add", "mul"):
            operands = tuple(sorted(operands, key=lambda pair: pair[0]))
        arguments = tuple(operand for _, operand in operands)
        return min(index for index, _ in operands), Call(part.function, arguments)

    return expr.fold(visit)[-1][1]


def fuse_prologues(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with pointwise nodes fused into their only reader, as its prologue.

    It comes after `fuse_pointwise`, since an epilogue is computed once for each number. types: of
    every value; types of new values are added.
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
    extras = [v for v in dict.fromkeys(operands) if v is not source]
    extents = [_prologue_extent(rewriter, v, shape) for v in extras]
    if None in extents:
        return
    arguments = (Arg(0) if v is source else Arg(1 + extras.index(v)) for v in operands)
    expr = first.operator.expr(*arguments)
    prologue = Prologue(expr, tuple(e for e in extents if e is not None))
    reshaped = _prologue_operands(rewriter, node.name, prologue, extras, shape)
    operator, inputs = replace(operator, prologue=prologue), (source, weight, *reshaped)
    rewriter.fuse(first, node, replace(node, operator=operator, inputs=inputs))


def _reads_x_once(rewriter: GraphRewriter, operator: Conv2d | Matmul, weight: Value) -> bool:
    """Return True where a kernel may read each number of x for a single tap, or few results."""
    shape = rewriter.shape(weight)
    if isinstance(operator, Matmul):
        return len(shape) == 2
    depthwise = operator.groups > 1 and shape[:2] == (operator.groups, 1)
    return prod(shape[2:]) == 1 or depthwise or operator.stride != (1, 1)


def _prologue_extent(rewriter: GraphRewriter, value: Value, x: Shape) -> Spread | None:
    """Return the extent of `value` relative to an operand of shape `x`; None where no prologue
    takes it.
    """
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
    """Yield each of `extra_operands`, reshaped as `prologue` needs it."""
    shapes = prologue.shapes(x, x[0])
    for value, shape in zip(extra_operands, shapes.values(), strict=True):
        yield rewriter.reshape(name, value, shape)

"""Sink views and transpositions below pointwise nodes, which then fuse with their producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from glnn.core.symint import same
from glnn.core.types import Shape, TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Flip,
    Gather,
    LocalResponseNorm,
    Matmul,
    Pad,
    Pointwise,
    Pool2d,
    Reshape,
    Slice,
    Softmax,
    Subsample,
    Transpose,
)
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import GraphRewriter

IMAGES = ((0, 2, 3, 1), (0, 3, 1, 2))
"""Transpositions between NCHW and NHWC, which layouts of images make free."""
IMAGE_OPERATORS = (
    Concat,
    Conv2d,
    Flip,
    LocalResponseNorm,
    Pad,
    Pointwise,
    Pool2d,
    Slice,
    Subsample,
)
"""Operators whose results may be stored channels last."""


MOST_SEARCHED = 64  # nodes that one search visits


def sink_transposes(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with pointwise nodes moved in front of views and transpositions.

    Pointwise nodes behind a reshaped matrix product then reach its epilogue, and transpositions
    become neighbours, which cancel: also a transposition of a product's rows with those of the
    product's consumers. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    sinking = _TransposeSinking(rewriter)
    for node in rewriter.nodes:
        if isinstance(node.operator, Softmax):
            sinking.softmax(node, node.operator)
        if isinstance(node.operator, Matmul):
            sinking.product(node, node.operator)
        if isinstance(node.operator, Pointwise):
            moved: Node | None = node
            while moved is not None:
                moved = sinking.pointwise(moved)
    return rewriter.graph()


@dataclass(frozen=True)
class _TransposeSinking:
    rewriter: GraphRewriter
    pinned: set[Value] = field(default_factory=set)
    """Values that this pass reshaped or transposed: no node moves in front of these again."""
    transposed_rows: set[Value] = field(default_factory=set)
    """Transpositions of a product's rows that `product` put behind it."""

    def softmax(self, node: Node, operator: Softmax) -> None:
        """Move a softmax along the last axis in front of a view that keeps this axis."""
        graph, (value,) = self.rewriter, node.inputs
        view = graph.runtime_producer(value)
        if view is None or value is None or not isinstance(view.operator, View):
            return
        (source,), shape = view.inputs, graph.shape(value)
        if (
            source is None
            or not graph.is_read_once(value)
            or operator.axis % len(shape) != len(shape) - 1
        ):
            return
        if graph.shape(source)[-1:] == shape[-1:]:
            result = graph.add(node.name, Softmax(-1, operator.log), source)
            graph.replace(node, Reshape(shape, True), result)
            graph.prune(value)

    def product(self, node: Node, operator: Matmul) -> None:
        """Move a product in front of a transposition of its rows where its consumers transpose."""
        graph, (x, weight) = self.rewriter, node.inputs[:2]
        if x is None or weight is None or operator.prologue is not None:
            return
        source, producer = graph.behind_views(x)
        if (
            producer is None
            or not isinstance(producer.operator, Transpose)
            or not graph.is_read_once(source)
            or len(graph.shape(weight)) != 2
            or 0 in graph.shape(source)
        ):
            return
        (origin,), (rows, k) = producer.inputs, graph.shape(x)
        assert origin is not None
        shape, sizes = graph.shape(source), graph.shape(origin)
        perm = tuple(axis % len(shape) for axis in producer.operator.perm)
        # Attention's rows are samples and tokens; rows of more dimensions are windows of images.
        if not (same(prod(shape[:2]), rows) and perm[0] > perm[1]):
            return
        if not self._is_only_transposed(node.outputs[0]):
            return
        inner, name = (perm[1], perm[0], *perm[2:]), node.name
        if inner != tuple(range(len(inner))):
            origin = graph.add(name, Transpose(inner), origin)
        flat = graph.reshape(name, origin, (rows, k))
        value = graph.add(name, operator, flat, *node.inputs[1:])
        n = graph.shape(value)[1]
        value = graph.reshape(name, value, (sizes[perm[1]], sizes[perm[0]], n))
        value = graph.add(name, Transpose((1, 0, 2)), value)
        self.transposed_rows.add(value)
        graph.replace(node, Reshape((rows, n), True), value)
        graph.prune(x)

    def _is_only_transposed(self, value: Value) -> bool:
        """Return True where all consumers of `value` are transpositions, behind any views, slices,
        gathers and pointwise nodes that compute the same for every row.
        """
        graph, stack = self.rewriter, [value]
        for _ in range(MOST_SEARCHED):
            if not stack:
                return True
            value = stack.pop()
            if graph.is_output(value):
                return False
            for node in graph.readers(value):
                if isinstance(node.operator, Transpose):
                    continue
                others = [v for v in node.inputs if v is not None and v is not value]
                rowwise = all(graph.is_fixed(v) and len(graph.shape(v)) < 2 for v in others)
                if not (isinstance(node.operator, View | Slice | Pointwise | Gather) and rowwise):
                    return False
                stack += node.outputs
        return False

    def pointwise(self, node: Node) -> Node | None:
        """Move `node` in front of the view or transposition of one operand.

        Return the moved node; None where `node` stays.
        """
        graph = self.rewriter
        for value in dict.fromkeys(node.inputs):
            producer = graph.runtime_producer(value)
            if producer is None or value in self.pinned or 0 in graph.shape(node.outputs[0]):
                continue
            assert value is not None
            if not graph.is_read_once(value) or graph.shape(value) != graph.shape(node.outputs[0]):
                continue
            if not isinstance(producer.operator, View | Transpose):
                continue
            if not self._is_worthwhile(node, producer):
                continue
            if isinstance(producer.operator, View):
                view = Reshape(graph.shape(value), True)
                result = self._sink(node, producer, self._unviewed, view)
            else:
                result = self._sink(node, producer, self._untransposed, producer.operator)
            if result is not None:
                return result
        return None

    def _sink(
        self,
        node: Node,
        producer: Node,
        undo: Callable[[Node, Value, Node], Value | None],
        sunk: Operator,
    ) -> Node | None:
        """Apply `node` to the input of `producer`, and `sunk` to its result.

        undo: returns another operand of `node` as it is in front of `producer`, or None.
        """
        graph, sources = self.rewriter, list[Value]()
        for operand in node.inputs:
            assert operand is not None
            is_moved = operand is producer.outputs[0]
            source = producer.inputs[0] if is_moved else undo(node, operand, producer)
            if source is None:
                return None
            sources.append(source)
        operands = node.inputs
        value = graph.add(node.name, node.operator, *sources)
        moved = graph.producer(value)
        graph.replace(node, sunk, value)
        for operand in operands:
            graph.prune(operand)
        return moved

    def _unviewed(self, node: Node, operand: Value, view: Node) -> Value | None:
        """Return `operand` in the shape that it has in front of `view`; None where it has none."""
        graph, source = self.rewriter, view.inputs[0]
        assert source is not None
        shape, inner = graph.shape(operand), graph.shape(source)
        producer, whole = graph.producer(operand), graph.shape(node.outputs[0])
        if producer is not None and isinstance(producer.operator, View):
            viewed = producer.inputs[0]
            if viewed is not None and graph.shape(viewed) == inner:
                return viewed
        image = producer is not None and isinstance(producer.operator, IMAGE_OPERATORS)
        if image and shape == whole and len(whole) == 4 and not graph.is_fixed(operand):
            return None  # it may be stored channels last, of which there is no view
        regrouped = regroup(shape, whole, inner)
        return (
            None if regrouped is None else self._pin(graph.reshape(node.name, operand, regrouped))
        )

    def _untransposed(self, node: Node, operand: Value, producer: Node) -> Value | None:
        """Return `operand` with its dimensions as they are in front of the transposition
        `producer`; None where that takes a transposition of its own.
        """
        graph, transpose = self.rewriter, producer.operator
        assert isinstance(transpose, Transpose)
        shape, rank = graph.shape(operand), len(transpose.perm)
        if prod(shape) == 1:
            return graph.reshape(node.name, operand, (1,))
        if (source := self._source(operand, transpose)) is not None:
            return source
        if not graph.is_fixed(operand) and (transpose.perm not in IMAGES or len(shape) < rank):
            return None
        wide = graph.reshape(node.name, operand, (*(1,) * (rank - len(shape)), *shape))
        order = [axis % rank for axis in transpose.perm]
        back = Transpose(tuple(order.index(i) for i in range(rank)))
        return self._pin(graph.add(node.name, back, wide))

    def _pin(self, value: Value) -> Value:
        """Return `value`, pinned: else a node could move in front of it and back for ever."""
        self.pinned.add(value)
        return value

    def _source(self, operand: Value, transpose: Transpose) -> Value | None:
        """Return the value of which `operand` is the `transpose`; None where it is not one."""
        producer = self.rewriter.producer(operand)
        if producer is None or producer.operator != transpose:
            return None
        return producer.inputs[0]

    def _is_worthwhile(self, node: Node, producer: Node) -> bool:
        """Return True where it pays to move `node` in front of the view or transposition
        `producer`: it fuses with a node there, or other operands lose their transposition.
        """
        graph, (source,) = self.rewriter, producer.inputs
        others = [v for v in node.inputs if v is not producer.outputs[0] and v is not None]
        transpose = producer.operator
        if isinstance(transpose, Transpose) and any(self._source(v, transpose) for v in others):
            return True
        earlier = graph.runtime_producer(source)
        pointwise = earlier is not None and isinstance(earlier.operator, Pointwise)
        if pointwise and graph.is_read_once(source) and all(map(graph.is_fixed, others)):
            return True
        return source is not None and self._reaches_epilogue(source)

    def _reaches_epilogue(self, value: Value) -> bool:
        """Return True where `value` is the result, through views and pointwise nodes, of a node
        that takes an epilogue.
        """
        graph, stack = self.rewriter, [value]
        for _ in range(MOST_SEARCHED):
            value = stack.pop()
            node = graph.runtime_producer(value)
            if node is not None and all(map(graph.is_read_once, node.outputs)):
                if node.operator.has_epilogue:
                    return True
                if isinstance(node.operator, View | Pointwise) or value in self.transposed_rows:
                    stack += [v for v in node.inputs if v is not None]
            if not stack:
                break
        return False


def regroup(shape: Shape, whole: Shape, inner: Shape) -> Shape | None:
    """Return the shape of an operand that broadcasts to `inner` as `shape` broadcasts to `whole`.

    inner: another shape of as many elements as `whole`. None where the operand would broadcast
    along a part of a dimension.
    """
    wide = (*(1,) * (len(whole) - len(shape)), *shape)
    regrouped: list[int] = []
    for axes, inner_axes in _dimension_groups(whole, inner):
        sizes = [wide[i] for i in axes]
        if prod(sizes) == 1:
            regrouped += [1] * len(inner_axes)
        elif sizes == [whole[i] for i in axes]:
            regrouped += [inner[i] for i in inner_axes]
        else:
            return None
    return tuple(regrouped)


def _dimension_groups(whole: Shape, inner: Shape) -> Sequence[tuple[list[int], list[int]]]:
    """Return the axes of both shapes in the smallest groups of neighbours of equal products.

    Axes of size 1 of `whole` may be in no group.
    """
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while j < len(inner):
        first: list[int] = []
        second, j = [j], j + 1
        while (n := prod(whole[k] for k in first)) != (m := prod(inner[k] for k in second)):
            if n < m:
                first.append(i)
                i += 1
            else:
                second.append(j)
                j += 1
        result.append((first, second))
    return result

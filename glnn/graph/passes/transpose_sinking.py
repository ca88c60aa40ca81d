"""Move views and transpositions behind pointwise work, which then joins the node before them."""

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
"""Transpositions between channels first and last, which layouts of images make free."""
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
"""Operators whose results may have their channels last."""


MOST_SEARCHED = 64  # nodes that are looked at for one that has an epilogue


def sink_transposes(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with pointwise work done before views and transpositions where that is the
    same.

    types: of every value; those of new ones are added. So what follows a product of matrices that
    is seen as more dimensions goes into its epilogue, and transpositions come together: also those
    of a product's rows, where each reader of the product has another one.
    """
    rewriter = GraphRewriter(graph, types)
    sinking = _TransposeSinking(rewriter)
    for node in rewriter.nodes:
        if isinstance(node.operator, Softmax):
            sinking.softmax(node, node.operator)
        if isinstance(node.operator, Matmul):
            sinking.product(node, node.operator)
        if isinstance(node.operator, Pointwise):
            following: Node | None = node
            while following is not None:
                following = sinking.before(following)
    return rewriter.graph()


@dataclass(frozen=True)
class _TransposeSinking:
    rewriter: GraphRewriter
    put: set[Value] = field(default_factory=set)
    """Values reshaped or transposed by this pass: no node is moved in front of them again."""
    transposed_rows: set[Value] = field(default_factory=set)
    """Results of products whose rows are transposed behind them: see `product`."""

    def softmax(self, node: Node, operator: Softmax) -> None:
        """A softmax of rows before a view that leaves these whole."""
        graph, (value,) = self.rewriter, node.inputs
        maker = graph.runtime_producer(value)
        if maker is None or value is None or not isinstance(maker.operator, View):
            return
        (source,), shape = maker.inputs, graph.shape(value)
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
        """A product before the transposition of its rows, which meets another one behind it."""
        graph, (x, weight) = self.rewriter, node.inputs[:2]
        if x is None or weight is None or operator.prologue is not None:
            return
        source, maker = graph.behind_views(x)
        if (
            maker is None
            or not isinstance(maker.operator, Transpose)
            or not graph.is_read_once(source)
            or len(graph.shape(weight)) != 2
            or 0 in graph.shape(source)
        ):
            return
        (origin,), (rows, k) = maker.inputs, graph.shape(x)
        assert origin is not None
        shape, before = graph.shape(source), graph.shape(origin)
        perm = tuple(axis % len(shape) for axis in maker.operator.perm)
        # Attention walks along samples and tokens: more dimensions are windows, of images.
        if not (same(prod(shape[:2]), rows) and perm[0] > perm[1]):
            return
        if not self._meets_transpositions(node.outputs[0]):
            return
        inner, name = (perm[1], perm[0], *perm[2:]), node.name
        if inner != tuple(range(len(inner))):
            origin = graph.add(name, Transpose(inner), origin)
        flat = graph.reshape(name, origin, (rows, k))
        value = graph.add(name, operator, flat, *node.inputs[1:])
        n = graph.shape(value)[1]
        value = graph.reshape(name, value, (before[perm[1]], before[perm[0]], n))
        value = graph.add(name, Transpose((1, 0, 2)), value)
        self.transposed_rows.add(value)
        graph.replace(node, Reshape((rows, n), True), value)
        graph.prune(x)

    def _meets_transpositions(self, value: Value) -> bool:
        """Return True where all that read `value`, through views, slices and work that is the same
        for every row, are transpositions.
        """
        graph, stack = self.rewriter, [value]
        for _ in range(MOST_SEARCHED):
            if not stack:
                return True
            value = stack.pop()
            readers = graph.readers(value)
            if graph.is_output(value):
                return False
            for node in readers:
                if isinstance(node.operator, Transpose):
                    continue
                others = [v for v in node.inputs if v is not None and v is not value]
                rowwise = all(graph.is_fixed(v) and len(graph.shape(v)) < 2 for v in others)
                if not (isinstance(node.operator, View | Slice | Pointwise | Gather) and rowwise):
                    return False
                stack += node.outputs
        return False

    def before(self, node: Node) -> Node | None:
        """Move `node` in front of a view or a transposition of an operand; None where it stays
        behind.
        """
        graph = self.rewriter
        for value in dict.fromkeys(node.inputs):
            maker = graph.runtime_producer(value)
            if maker is None or value in self.put or 0 in graph.shape(node.outputs[0]):
                continue
            assert value is not None
            if not graph.is_read_once(value) or graph.shape(value) != graph.shape(node.outputs[0]):
                continue
            if not isinstance(maker.operator, View | Transpose) or not self._worth(node, maker):
                continue
            if isinstance(maker.operator, View):
                result = self._sink(node, maker, self._seen, Reshape(graph.shape(value), True))
            else:
                result = self._sink(node, maker, self._transposed_back, maker.operator)
            if result is not None:
                return result
        return None

    def _sink(
        self,
        node: Node,
        maker: Node,
        moved: Callable[[Node, Value, Node], Value | None],
        again: Operator,
    ) -> Node | None:
        """Apply `node` to operands as they are before `maker`, and put `again` behind it."""
        graph, inner = self.rewriter, list[Value]()
        for operand in node.inputs:
            assert operand is not None
            source = maker.inputs[0] if operand is maker.outputs[0] else moved(node, operand, maker)
            if source is None:
                return None
            inner.append(source)
        before = node.inputs
        value = graph.add(node.name, node.operator, *inner)
        made = graph.producer(value)
        graph.replace(node, again, value)
        for one in before:
            graph.prune(one)
        return made

    def _seen(self, node: Node, operand: Value, maker: Node) -> Value | None:
        """Return `operand` in the shape that `maker` sees as the result's."""
        graph, source = self.rewriter, maker.inputs[0]
        assert source is not None
        shape, inner = graph.shape(operand), graph.shape(source)
        other, whole = graph.producer(operand), graph.shape(node.outputs[0])
        if other is not None and isinstance(other.operator, View):
            before = other.inputs[0]
            if before is not None and graph.shape(before) == inner:
                return before
        image = other is not None and isinstance(other.operator, IMAGE_OPERATORS)
        if image and shape == whole and len(whole) == 4 and not graph.is_fixed(operand):
            return None  # which no other shape can be seen in
        regrouped = regroup(shape, whole, inner)
        return (
            None if regrouped is None else self._stays(graph.reshape(node.name, operand, regrouped))
        )

    def _transposed_back(self, node: Node, operand: Value, maker: Node) -> Value | None:
        """Return `operand` with its dimensions as they are before `maker`."""
        graph, transpose = self.rewriter, maker.operator
        assert isinstance(transpose, Transpose)
        shape, rank = graph.shape(operand), len(transpose.perm)
        if prod(shape) == 1:
            return graph.reshape(node.name, operand, (1,))
        if (source := self._same(operand, transpose)) is not None:
            return source
        if not graph.is_fixed(operand) and (transpose.perm not in IMAGES or len(shape) < rank):
            return None
        wide = graph.reshape(node.name, operand, (*(1,) * (rank - len(shape)), *shape))
        order = [axis % rank for axis in transpose.perm]
        back = Transpose(tuple(order.index(i) for i in range(rank)))
        return self._stays(graph.add(node.name, back, wide))

    def _stays(self, value: Value) -> Value:
        """Return `value`, and mark it so that no node is moved in front of it again, back and
        forth.
        """
        self.put.add(value)
        return value

    def _same(self, operand: Value, transpose: Transpose) -> Value | None:
        """Return the value of which `operand` is the `transpose`; None where it is not one."""
        maker = self.rewriter.producer(operand)
        return maker.inputs[0] if maker is not None and maker.operator == transpose else None

    def _worth(self, node: Node, maker: Node) -> bool:
        """Return True where it pays to move `node` in front of the view or transposition `maker`:
        it joins the node before that, or other operands lose their transposition.
        """
        graph, (source,) = self.rewriter, maker.inputs
        others = [v for v in node.inputs if v is not maker.outputs[0] and v is not None]
        transpose = maker.operator
        if isinstance(transpose, Transpose) and any(self._same(v, transpose) for v in others):
            return True
        before = graph.runtime_producer(source)
        pointwise = before is not None and isinstance(before.operator, Pointwise)
        if pointwise and graph.is_read_once(source) and all(map(graph.is_fixed, others)):
            return True
        return source is not None and self._joins(source)

    def _joins(self, value: Value) -> bool:
        """Return True where work on `value` ends in an epilogue, by way of views and pointwise
        work.
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
    """Return the shape of an operand of `shape`, which broadcasts to `whole`, where that is seen as
    `inner`; None where it would broadcast within a dimension.
    """
    wide = (*(1,) * (len(whole) - len(shape)), *shape)
    shape_found: list[int] = []
    for outer, within in _dimension_groups(whole, inner):
        sizes = [wide[i] for i in outer]
        if prod(sizes) == 1:
            shape_found += [1] * len(within)
        elif sizes == [whole[i] for i in outer]:
            shape_found += [inner[i] for i in within]
        else:
            return None
    return tuple(shape_found)


def _dimension_groups(one: Shape, other: Shape) -> Sequence[tuple[list[int], list[int]]]:
    """Return the smallest groups of neighbouring dimensions of two shapes that have as many numbers
    as each other. Dimensions of 1 of the first may be in no group.
    """
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while j < len(other):
        first: list[int] = []
        second, j = [j], j + 1
        while (n := prod(one[k] for k in first)) != (m := prod(other[k] for k in second)):
            if n < m:
                first.append(i)
                i += 1
            else:
                second.append(j)
                j += 1
        result.append((first, second))
    return result

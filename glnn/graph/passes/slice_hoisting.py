"""Slices of rows before the work on each row, which is then done for these rows alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from glnn.core.symint import same
from glnn.core.types import Shape, TensorType
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Attention, Matmul, Normalize, Pointwise, Slice
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import GraphRewriter

MOST_SLICES = 2  # of what is read instead: each is a launch


def hoist_slices(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with slices of rows before products, normalisations, pointwise work and
    attention whose other rows nothing reads.

    So the last layer of a language model that gives the last token's scores is computed for that
    token, and of a classifier by a class token for that one. types: of every value; those of new
    ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Slice):
            rows = _SlicedRows.from_node(rewriter, node, node.operator)
            if rows is not None:
                rows.hoist()
    return rewriter.graph()


@dataclass(frozen=True)
class _SlicedRows:
    """The rows that a slice takes of `lead`, all dimensions up to the one that it cuts."""

    rewriter: GraphRewriter
    node: Node
    lead: Shape
    first: int
    count: int
    step: int
    made: dict[Value, Value] = field(default_factory=dict)
    """Values of these rows alone, by those of all rows."""

    @classmethod
    def from_node(cls, rewriter: GraphRewriter, node: Node, operator: Slice) -> _SlicedRows | None:
        """Return the rows that `node` takes; None where it takes something else."""
        (value,) = node.reads
        shape = rewriter.shape(value)
        if 0 in rewriter.shape(node.outputs[0]):
            return None
        walks = operator.walks(shape)
        cut = [i for i, n in enumerate(shape) if not same(walks[i], (0, n, 1))]
        if len(cut) != 1 or walks[cut[0]][2] < 1:
            return None
        return cls(rewriter, node, shape[: cut[0] + 1], *walks[cut[0]])

    def hoist(self) -> None:
        """Compute what the slice is of for its rows alone, where that saves a product."""
        (value,) = self.node.reads
        work = self._work(value)
        if not any(isinstance(node.operator, Matmul) for node in work):
            return
        inside = {node.outputs[0] for node in work}
        read = {v for node in work for v in self._rows_read(node) if v not in inside}
        if len(read) > MOST_SLICES:
            return
        for node in self.rewriter.nodes:
            if node in work:
                self.made[node.outputs[0]] = self._narrowed(node)
        self.rewriter.replace_by(self.node, self.made[value])

    def _work(self, value: Value) -> set[Node]:
        """Return the nodes before `value` that do the same for each row, and whose other rows
        nothing needs.
        """
        graph, work, left = self.rewriter, set[Node](), [value]
        while left:
            value = left.pop()
            node = graph.runtime_producer(value)
            if node is None or node in work or graph.is_output(value):
                continue
            alone = all(one in work or one is self.node for one in graph.readers(value))
            if alone and self._is_by_rows(node):
                work.add(node)
                left += self._rows_read(node)
        return work

    def _prefix(self, shape: Shape) -> int | None:
        """Return how many dimensions of `shape` count the rows; None where none do."""
        if len(shape) > len(self.lead) and same(shape[: len(self.lead)], self.lead):
            return len(self.lead)
        return 1 if same(shape[0], prod(self.lead)) else None

    def _is_by_rows(self, node: Node) -> bool:
        """Return True where `node` does the same for each row."""
        graph, operator = self.rewriter, node.operator
        if node.epilogue is not None:
            return False
        shape = graph.shape(node.outputs[0])
        prefix = self._prefix(shape)
        if prefix is None:
            return False
        if isinstance(operator, View):
            return self._prefix(graph.shape(node.reads[0])) is not None
        if isinstance(operator, (Matmul, Normalize)) and node.reads[0] in node.reads[1:]:
            return False  # it needs the other rows, too
        if isinstance(operator, Matmul):
            return operator.prologue is None and len(graph.shape(node.reads[1])) == 2
        if isinstance(operator, Normalize):
            return operator.dims is not None and prefix + operator.dims <= len(shape)
        if isinstance(operator, Attention):
            if not same(self.lead[-1], operator.queries):
                return False  # these rows are not evenly spaced queries of each sample
            one = same(operator.batch, 1)
            counted = [i for i in operator.order[:prefix] if i > 0 or not one]
            return counted == ([2] if one else [0, 2]) and operator.windows is None
        if not isinstance(operator, Pointwise):
            return False
        others = (graph.shape(v) for v in node.reads if v not in self._rows_read(node))
        return all(prod(one[: len(one) - len(shape) + prefix]) == 1 for one in others)

    def _rows_read(self, node: Node) -> list[Value]:
        """Return the operands of `node`, which does the same for each row, that have these rows."""
        graph, operator = self.rewriter, node.operator
        if isinstance(operator, Attention):  # other queries of the same tensor
            return []
        if isinstance(operator, Pointwise):
            shape = graph.shape(node.outputs[0])
            return [v for v in node.reads if same(graph.shape(v), shape)]
        return [node.reads[0]]

    def _narrowed(self, node: Node) -> Value:
        """Return what `node` gives for the rows of the slice."""
        graph, operator = self.rewriter, node.operator
        if isinstance(operator, View):
            shape = self._cut(graph.shape(node.outputs[0]))
            return graph.reshape(node.name, self._of_rows(node.reads[0]), shape)
        if isinstance(operator, Attention):
            views = list(operator.views)
            for i in (0, 3)[: len(views) - 2]:  # of queries, and of the mask where there is one
                at = views[i]
                start, token = at.start + self.first * at.token, self.step * at.token
                views[i] = replace(at, start=start, token=token)
            operator = replace(operator, queries=self.count, views=tuple(views))
            return graph.add(node.name, operator, *node.inputs)
        rows = self._rows_read(node)
        inputs = (v if v is None or v not in rows else self._of_rows(v) for v in node.inputs)
        return graph.add(node.name, operator, *inputs)

    def _of_rows(self, value: Value) -> Value:
        """Return the rows of the slice of `value`."""
        if value not in self.made:
            graph, name, axis = self.rewriter, self.node.name, len(self.lead) - 1
            shape = graph.shape(value)
            prefix = self._prefix(shape)
            wide = graph.reshape(name, value, (*self.lead, *shape[prefix:]))
            end = self.first + (self.count - 1) * self.step + 1
            cut = graph.add(name, Slice((self.first,), (end,), (axis,), (self.step,)), wide)
            self.made[value] = graph.reshape(name, cut, self._cut(shape))
        return self.made[value]

    def _cut(self, shape: Shape) -> Shape:
        """Return `shape`, of a value of all rows, for those of the slice."""
        prefix = self._prefix(shape)
        lead = (*self.lead[:-1], self.count)
        return (*(lead if prefix == len(lead) else (prod(lead),)), *shape[prefix:])

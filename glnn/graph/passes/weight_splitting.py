"""Split packed weights that are larger than what a kernel reads into parts of some rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from glnn.core.types import TensorType
from glnn.graph.expression import formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Concat, Pointwise, QuantizedMatmul, QuantizedRows
from glnn.graph.operators.quantized_matmul import WithPackedWeight
from glnn.graph.operators.weight_part import WeightPart
from glnn.graph.passes.graph_rewriter import GraphRewriter
from glnn.graph.quantization import QuantizedFormat

ALIGNMENT = 4
"""Rows of which a part has a multiple, where that fits: its results are whole vec4 then."""


def split_weights(graph: Graph, types: dict[Value, TensorType], most: int) -> Graph:
    """Return `graph` with `QuantizedMatmul` and `QuantizedRows` whose packed weight takes more than
    `most` bytes in parts, each with some rows of the weight.

    A product is a concatenation of the parts' products; rows are looked up in every part, and
    taken from the one that has them. Readers of one weight share its parts. A row that takes more
    than `most` bytes by itself stays as it is. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        operator = node.operator
        if not isinstance(operator, WithPackedWeight) or node.epilogue is not None:
            continue
        stacked = operator.rows // operator.n if operator.n else 1
        size = part_rows(operator.packing, operator.n, operator.k, stacked, most)
        if size < operator.n:
            _Split(rewriter, node, operator, stacked, size).apply()
    return rewriter.graph()


def part_rows(format: QuantizedFormat, n: int, k: int, stacked: int, most: int) -> int:
    """Return the rows of the fewest equal parts of `stacked` matrices (n, k) packed in one weight,
    so that each part takes up to `most` bytes; n where there is no need or no way to split.
    """
    fitting = bisect_right(range(1, n + 1), most, key=lambda r: 4 * format.words(stacked * r, k))
    if fitting in (0, n):
        return n
    rows = -(-n // -(-n // fitting))
    aligned = -(-rows // ALIGNMENT) * ALIGNMENT
    return aligned if aligned <= fitting else rows


class _Split:
    """Replaces one node by nodes that read parts of its weight."""

    def __init__(
        self,
        rewriter: GraphRewriter,
        node: Node,
        operator: WithPackedWeight,
        stacked: int,
        size: int,
    ) -> None:
        """stacked: matrices that the weight has. size: rows of each part but the last."""
        self._rewriter, self._node, self._operator = rewriter, node, operator
        self._stacked = stacked
        self._places = [*range(0, operator.n, size), operator.n]

    def apply(self) -> None:
        if isinstance(self._operator, QuantizedMatmul):
            self._split_product(self._operator)
        elif isinstance(self._operator, QuantizedRows):
            self._split_rows(self._operator)

    def _parts(self, weight: Value) -> Iterator[tuple[int, int, Value]]:
        """Yield the first row of each part, how many it has, and its weight."""
        one, name = self._operator, self._node.name
        for start, end in pairwise(self._places):
            part = WeightPart(one.format, one.n, one.k, start, end, self._stacked)
            yield start, end - start, self._rewriter.add(name, part, weight)

    def _split_product(self, product: QuantizedMatmul) -> None:
        rewriter, node = self._rewriter, self._node
        x, weight, *norm = node.inputs
        assert weight is not None
        parts = [
            rewriter.add(node.name, replace(product, n=rows), x, part, *norm)
            for _, rows, part in self._parts(weight)
        ]
        rewriter.replace(node, Concat(1), *parts)

    def _split_rows(self, lookup: QuantizedRows) -> None:
        rewriter, node = self._rewriter, self._node
        index, weight = node.reads
        row = self._pointwise(f"maximum(where(a < 0, a + {lookup.n}, a), 0)", index)
        column = rewriter.reshape(node.name, row, (*rewriter.shape(index), 1))
        result: Value | None = None
        for start, rows, part in self._parts(weight):
            within = self._pointwise(f"maximum(a - {start}, 0)", row) if start else row
            found = rewriter.add(node.name, replace(lookup, n=rows), within, part)
            if result is not None:
                found = self._pointwise(f"where(a < {start}, b, c)", column, result, found)
            result = found
        assert result is not None
        rewriter.replace_by(node, result)

    def _pointwise(self, text: str, *inputs: Value) -> Value:
        return self._rewriter.add(self._node.name, Pointwise(formula(text)), *inputs)

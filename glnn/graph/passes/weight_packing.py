"""Have products and lookups read quantized weights as they are packed, not as floats."""

from __future__ import annotations

from math import prod

from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import (
    Gather,
    Identity,
    Matmul,
    Pointwise,
    QuantizedMatmul,
    QuantizedRows,
    Transpose,
)
from glnn.graph.operators.dequantize import BITS, UNSIGNED, Dequantize, PackedWeight
from glnn.graph.passes.graph_rewriter import GraphRewriter
from glnn.graph.quantization import QuantizedFormat, integer_format

FLOAT_CASTS = tuple(call(f"cast_{one}", Arg(0)) for one in ("float32", "float16"))


def pack_weights(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with `QuantizedMatmul` and `QuantizedRows` where a Matmul's weight, or the
    table of a Gather of rows, is a `Dequantize` of what no run changes.

    Each reads the integers, their scales and zero points from a `PackedWeight`, which all readers
    share. What no format of `INTEGER_FORMATS` is for stays, as blocks of less than 16 numbers,
    scales that differ along what is summed up from each number to the next, stacks of matrices.
    Weights of float16 are not rounded to it. types: of every value, sizes known; those of new ones
    are added.
    """
    return _WeightPacking(graph, types).graph()


class _WeightPacking:
    def __init__(self, graph: Graph, types: dict[Value, TensorType]) -> None:
        self._rewriter = GraphRewriter(graph, types)
        self._packed: dict[tuple[Value, bool], tuple[QuantizedFormat, Value] | None] = {}

    def graph(self) -> Graph:
        rewriter = self._rewriter
        for node in rewriter.nodes:
            if rewriter.is_fixed(node.outputs[0]) or node.epilogue is not None:
                continue
            if isinstance(node.operator, Matmul) and node.operator.prologue is None:
                self._pack_product(node)
            elif isinstance(node.operator, Gather):
                self._pack_rows(node, node.operator)
        return rewriter.graph()

    def _pack_product(self, node: Node) -> None:
        x, weight = node.reads
        found = self._find(weight)
        if found is None:
            return
        format, packed = found
        n, k = self._rewriter.shape(weight)
        self._rewriter.replace(node, QuantizedMatmul(format.name, n, k), x, packed, None)
        self._rewriter.prune(weight)

    def _pack_rows(self, node: Node, gather: Gather) -> None:
        rewriter = self._rewriter
        (table, index), types = node.reads, rewriter.types
        if gather.axis not in (0, -2) or types[index].dtype is not DType.int32:
            return
        found = self._find(table)
        if found is None:
            return
        format, packed = found
        (n, k), (result,) = rewriter.shape(table), node.outputs
        flat = rewriter.reshape(node.name, index, (prod(rewriter.shape(index)),))
        rows = rewriter.add(node.name, QuantizedRows(format.name, n, k), flat, packed)
        rows = rewriter.reshape(node.name, rows, rewriter.shape(result))
        if types[result].dtype is DType.float16:
            rows = rewriter.add(node.name, Pointwise(FLOAT_CASTS[1]), rows)
        rewriter.replace_by(node, rows)
        rewriter.prune(table)

    def _find(self, weight: Value) -> tuple[QuantizedFormat, Value] | None:
        """Return `weight`, (n, k), packed, and its format; None where it cannot be."""
        value, transposed = weight, False
        if len(self._rewriter.shape(weight)) != 2:
            return None
        while (node := self._rewriter.producer(value)) is not None and node.epilogue is None:
            operator = node.operator
            if isinstance(operator, Dequantize):
                key = value, transposed
                if key not in self._packed:
                    self._packed[key] = self._pack(node, operator, transposed)
                return self._packed[key]
            if isinstance(operator, Transpose):
                transposed ^= operator.perm[0] % 2 == 1
            elif not isinstance(operator, Identity) and not (
                isinstance(operator, Pointwise) and operator.expr in FLOAT_CASTS
            ):
                break
            (value,) = node.reads
        return None

    def _pack(
        self, node: Node, operator: Dequantize, transposed: bool
    ) -> tuple[QuantizedFormat, Value] | None:
        """Return what `node` makes, or its transpose, packed in rows; None where it cannot be."""
        operands = operator.named(node.inputs)
        types = {name: self._rewriter.types[value] for name, value in operands.items()}
        if types["x"].dtype not in BITS or len(types["x"].shape) != 2:
            return None
        n, k = types["x"].shape[::-1] if transposed else types["x"].shape
        along = 0 if transposed else 1  # of x, the axis that is summed up
        one = all(prod(types[name].shape) == 1 for name in types if name != "x")
        if not one and (operator.axis == along) != (operator.block > 0):
            return None
        block = 0 if one else operator.block
        bits, scale = BITS[types["x"].dtype], types["scale"].dtype.numpy
        zeros = "zero" in operands or types["x"].dtype is UNSIGNED[bits]
        format = integer_format(bits, block or max(k, 1), scale, n, k, zeros=zeros)
        if format is None:
            return None
        packing = PackedWeight(format.name, block, transposed)
        return format, self._rewriter.add(node.name, packing, *node.inputs)

"""Horizontal fusion: convolutions, or products, of the same operand become one whose result is
sliced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glnn.core.symint import divides
from glnn.core.types import Shape, TensorType
from glnn.graph.builder import constant
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Attention,
    Concat,
    Conv2d,
    Matmul,
    Pointwise,
    Pool2d,
    Rearrange,
    Reshape,
    Rotary,
    Slice,
    Transpose,
)
from glnn.graph.operators.attention import StridedView
from glnn.graph.passes.decoder_fusion import appends_token
from glnn.graph.passes.graph_rewriter import GraphRewriter

LEAST_OUTPUTS = 32  # kernels for fewer outputs do not read slices in place


def fuse_siblings(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with convolutions of the same images stacked into one, and products of the
    same rows.

    Siblings have the same attributes and epilogue, and each a multiple of 4 outputs. So the first
    convolutions of an Inception block's branches (Szegedy et al. 2016), and queries, keys and
    values of attention, are one launch. A sibling without a bias gets zeros where others have one.
    The result of each becomes a slice of channels, which its readers (convolutions, pools,
    attention and rotary embeddings) read in place, or move. An operand of a concatenation is not
    stacked: it is written where the concatenation needs it. types: of every value; types of new
    values are added.
    """
    rewriter = GraphRewriter(graph, types)
    siblings: dict[_SiblingKey, list[Node]] = {}
    for node in rewriter.nodes:
        if (key := _SiblingKey.from_node(rewriter, node)) is not None:
            siblings.setdefault(key, []).append(node)
    for key, nodes in siblings.items():
        if len(nodes) > 1:
            _fuse_nodes(rewriter, key, nodes)
    return rewriter.graph()


@dataclass(frozen=True)
class _SiblingKey:
    """The attributes that nodes must share to be stacked."""

    x: Value
    operator: Operator
    epilogue: Epilogue
    """The epilogue; `BIASED` for a node without one."""
    weight: Shape
    """The shape of the weight of one output."""
    numbers: tuple[Value | None, ...]
    """The operands of the epilogue; None for those that have a number for each output."""

    @classmethod
    def from_node(cls, rewriter: GraphRewriter, node: Node) -> _SiblingKey | None:
        """Return the attributes of `node` that decide about stacking; None where it is not to be
        stacked.
        """
        operator, out = node.operator, node.outputs[0]
        if not isinstance(operator, Conv2d | Matmul):
            return None
        if rewriter.is_fixed(out) or rewriter.is_output(out) or len(node.inputs) != 2:
            return None
        x, weight = node.inputs
        if x is None or weight is None or not rewriter.is_fixed(weight):
            return None
        shape, rank = rewriter.shape(weight), len(rewriter.shape(out))
        plain = operator.groups == 1 if isinstance(operator, Conv2d) else rank == len(shape) == 2
        if not plain or shape[0] % 4 or shape[0] < LEAST_OUTPUTS:
            return None
        extents = () if node.epilogue is None else node.epilogue.extents
        if "full" in extents or not all(map(rewriter.is_fixed, node.extras)):
            return None
        if not all(_can_read_slice(rewriter, one, out) for one in rewriter.readers(out)):
            return None
        pairs = zip(extents, node.extras, strict=True)
        numbers = tuple(value if extent == "one" else None for extent, value in pairs)
        if node.epilogue is None:
            return cls(x, operator, BIASED, shape[1:], (None,))
        return cls(x, operator, node.epilogue, shape[1:], numbers)


def _can_read_slice(rewriter: GraphRewriter, reader: Node, value: Value) -> bool:
    """Return True where `reader` can read a slice in the place of `value`: in place, or by a move
    that slices in the same step.
    """
    operator, result = reader.operator, reader.outputs[0]
    if isinstance(operator, Attention):
        return _views_rows(rewriter, reader, operator, value)
    if reader.inputs[:1] != (value,) or reader.reads.count(value) > 1:
        return False
    if isinstance(operator, Rotary):  # which begins at any number of a row
        return True
    if isinstance(operator, Reshape):  # which moves nothing
        rows = len(rewriter.shape(value)) == 2 and not rewriter.is_output(result)
        return rows and all(
            isinstance(other.operator, Transpose | Rearrange)
            or appends_token(rewriter, other)  # `fuse_cache_updates` replaces it
            for other in rewriter.readers(result)
        )
    if len(rewriter.shape(value)) != 4:
        return isinstance(operator, Transpose | Rearrange)
    return isinstance(operator, Pool2d) or (isinstance(operator, Conv2d) and operator.groups == 1)


def _views_rows(rewriter: GraphRewriter, reader: Node, operator: Attention, value: Value) -> bool:
    """Return True where the view that attention has of `value` stays within each row, so that the
    distance between rows may grow.
    """
    shape = rewriter.shape(value)
    if len(shape) != 2 or value in reader.inputs[3:]:
        return False
    size, lengths = shape[1], (operator.width, operator.width, operator.columns)
    for read, view, length in zip(reader.inputs, operator.views, lengths, strict=False):
        if read is not value:
            continue
        heads = 0 if divides(size, view.head) else (operator.heads - 1) * view.head
        end = view.start % size + heads + length
        if end > size or not (divides(size, view.sample) and divides(size, view.token)):
            return False
    return True


def _view_of_slice(view: StridedView, size: int, row_size: int, start: int) -> StridedView:
    """Return `view` of rows of `size` numbers as a view of rows of `row_size` numbers, of which
    those from `start` on are the former rows.
    """
    sample, head, token = (
        step // size * row_size if divides(size, step) else step
        for step in (view.sample, view.head, view.token)
    )
    first = view.start // size * row_size + view.start % size + start
    return StridedView(first, sample, head, token, view.step)


def _fuse_nodes(rewriter: GraphRewriter, key: _SiblingKey, nodes: list[Node]) -> None:
    """Replace `nodes` by slices of one stacked node."""
    name = f"{nodes[0].name} and {len(nodes) - 1} more"
    weights = [node.inputs[1] for node in nodes]
    value = rewriter.add(name, key.operator, key.x, rewriter.add(name, Concat(0), *weights))
    sizes = [rewriter.shape(node.outputs[0])[1] for node in nodes]
    if any(node.epilogue is not None for node in nodes):
        spread = (1,) * (len(rewriter.shape(value)) - 2)
        operands: list[Value] = []
        for i, number in enumerate(key.numbers):
            if number is None:
                extras = [
                    rewriter.reshape(name, _extra(rewriter, node, i), (size, *spread))
                    for node, size in zip(nodes, sizes, strict=True)
                ]
                number = rewriter.add(name, Concat(0), *extras)
            operands.append(number)
        value = rewriter.add(name, Pointwise(key.epilogue.expr), value, *operands)
    start = 0
    for node, size in zip(nodes, sizes, strict=True):
        for reader in rewriter.readers(node.outputs[0]):
            if isinstance(rotary := reader.operator, Rotary):
                others = reader.inputs[1:]
                shifted = replace(rotary, start=rotary.start + start)
                rewriter.replace(reader, shifted, value, *others)
            elif isinstance(attention := reader.operator, Attention):
                result, row_size = node.outputs[0], sum(sizes)
                pairs = zip(reader.inputs, attention.views, strict=False)
                views = [
                    _view_of_slice(view, size, row_size, start) if read is result else view
                    for read, view in pairs
                ]
                inputs = (value if read is result else read for read in reader.inputs)
                rewriter.replace(reader, replace(attention, views=tuple(views)), *inputs)
        rewriter.replace(node, Slice((start,), (start + size,), (1,), (1,)), value)
        start += size


def _extra(rewriter: GraphRewriter, node: Node, i: int) -> Value:
    """Return operand `i` of the epilogue of `node`; zeros where the node has no epilogue."""
    if node.epilogue is not None:
        return node.extras[i]
    type = rewriter.types[node.outputs[0]]
    zeros = constant(np.zeros(type.shape[1], type.dtype.numpy))
    rewriter.types[zeros] = zeros.type
    return zeros

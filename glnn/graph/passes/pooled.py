"""Fuse pools over windows of 2 x 2 with the convolution before, whose result is then never stored.

Behind `fuse`: what is done to the convolution's numbers is in an epilogue by then.
"""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Pool2d, PooledConv2d
from glnn.graph.passes.rewriting import Pays, Rewriting
from glnn.symint import divides
from glnn.types import DType, TensorType


def with_pooled(graph: Graph, types: dict[Value, TensorType], pays: Pays) -> Graph:
    """Return `graph` with each convolution and 2 x 2 pool that alone reads it as one node, where
    that pays.
    """
    rewriting = Rewriting(graph, types)
    for first, last in rewriting.pairs():
        _join(rewriting, first, last, pays)
    return rewriting.graph()


def _join(rewriting: Rewriting, first: Node, last: Node, pays: Pays) -> None:
    """Fuse both into one where they are such a convolution and its pool and that pays."""
    convolution, pool = first.operator, last.operator
    if type(convolution) is not Conv2d or not isinstance(pool, Pool2d):
        return
    if convolution.prologue is not None or convolution.exact or last.epilogue is not None:
        return
    if first.epilogue is not None and "full" in first.epilogue.extents:
        return
    result = rewriting.types[first.outputs[0]]
    if result.dtype is not DType.float32 or not _side_by_side(pool, result.shape[2:]):
        return
    operator = PooledConv2d.of(convolution, pool.mode)
    named = operator.named(first.inputs)
    if not pays(operator, {name: rewriting.types[value] for name, value in named.items()}):
        return
    joined = replace(first, operator=operator, outputs=last.outputs)
    rewriting.join(first, last, joined)


def _side_by_side(pool: Pool2d, size: tuple[int, ...]) -> bool:
    """Return True where the windows of `pool` are 2 x 2 of images of that size, none over the
    edge.
    """
    plain = Pool2d(pool.mode, count_include_pad=pool.count_include_pad)
    if not all(divides(2, length) for length in size):
        return pool == plain
    return pool in (plain, replace(plain, ceil_mode=True))

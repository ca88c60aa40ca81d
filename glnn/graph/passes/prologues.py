"""Fuse pointwise work into the product or convolution that reads it, as a prologue.

What lies between is never stored then; but each number of it is made as often as it is read. So it
is joined where kernels may read it seldom: before products, convolutions of one tap or of each
channel by itself, and those with strides. Whether a kernel then reads it too often is decided once
it is chosen, and the two are taken apart again where it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from glnn.graph.expression import Arg
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Matmul, Pointwise
from glnn.graph.passes.rewriting import Rewriting
from glnn.graph.prologue import Prologue, Spread
from glnn.types import DType, Shape, TensorType


def with_prologues(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with pointwise nodes fused into their only reader, as its prologue.

    types: of every value; those of new ones are added. It comes behind `fuse`: what can go into an
    epilogue is not computed over and over.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Conv2d | Matmul) and node.operator.prologue is None:
            _join(rewriting, node, node.operator)
    return rewriting.graph()


def _join(rewriting: Rewriting, node: Node, operator: Conv2d | Matmul) -> None:
    """Fuse the producer of `node`'s x into it as its prologue, where that is possible."""
    x, weight = node.inputs[:2]
    first = rewriting.computed(x)
    if first is None or x is None or weight is None or not rewriting.alone(x):
        return
    if not isinstance(first.operator, Pointwise) or node.reads.count(x) > 1:
        return
    if not _read_once(rewriting, operator, weight):
        return
    shape, given = rewriting.shape(x), [v for v in first.inputs if v is not None]
    if any(rewriting.types[v].dtype is not DType.float32 for v in (x, *given)):
        return
    source = next(
        (v for v in given if rewriting.shape(v) == shape and not rewriting.fixed(v)), None
    )
    if source is None:
        return
    beside = [v for v in dict.fromkeys(given) if v is not source]
    extents = [_extent(rewriting, v, shape) for v in beside]
    if None in extents:
        return
    places = (Arg(0) if v is source else Arg(1 + beside.index(v)) for v in given)
    prologue = Prologue(first.operator.expr(*places), tuple(e for e in extents if e is not None))
    seen = _seen(rewriting, node.name, prologue, beside, shape)
    operator, inputs = replace(operator, prologue=prologue), (source, weight, *seen)
    rewriting.join(first, node, replace(node, operator=operator, inputs=inputs))


def _read_once(rewriting: Rewriting, operator: Conv2d | Matmul, weight: Value) -> bool:
    """Return True where a kernel reads each number of x for one tap alone, or for few results."""
    shape = rewriting.shape(weight)
    if isinstance(operator, Matmul):
        return len(shape) == 2
    depthwise = operator.groups > 1 and shape[:2] == (operator.groups, 1)
    return prod(shape[2:]) == 1 or depthwise or operator.stride != (1, 1)


def _extent(rewriting: Rewriting, value: Value, x: Shape) -> Spread | None:
    """Return the extent of `value` relative to x of that shape; None where no prologue takes it."""
    shape = rewriting.shape(value)
    if len(shape) > len(x):
        return None
    if prod(shape) == 1:
        return "one"
    spread = (*(1,) * (len(x) - len(shape)), *shape)
    if spread == (1, *x[1:2], *(1,) * (len(x) - 2)):
        return "channel"
    by_image = len(x) == 4 and spread == (*x[:2], 1, 1) and not rewriting.fixed(value)
    return "image" if by_image else None


def _seen(
    rewriting: Rewriting, name: str, prologue: Prologue, beside: list[Value], x: Shape
) -> Iterator[Value]:
    """Return each operand in the shape that a prologue needs."""
    shapes = prologue.shapes(x, x[0])
    for value, shape in zip(beside, shapes.values(), strict=True):
        yield rewriting.reshaped(name, value, shape)

"""Fuse pads of images into windows, and turn means of whole images into pooling, which keeps their
layout.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from glnn.errors import ShapeError
from glnn.graph.expression import Arg
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Pad, Pool2d, Reduce
from glnn.graph.operators.reductions import axes_of
from glnn.graph.passes.rewriting import Rewriting
from glnn.symint import holds_symbols
from glnn.types import DType, TensorType


def with_pools(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with means and maxima of whole images as pooling, which takes any layout of
    these.

    types: of every value; those of new ones are added.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        operator = node.operator
        if not isinstance(operator, Reduce) or rewriting.fixed(node.outputs[0]):
            continue
        (x, *others) = node.inputs
        if others or x is None or operator.kind not in ("mean", "max") or operator.parts:
            continue
        type = rewriting.types[x]
        plain = operator.prologue == operator.finish == Arg(0) and not operator.count
        if not plain or len(type.shape) != 4 or type.dtype is not DType.float32 or 0 in type.shape:
            continue
        if axes_of("reduce", operator.axes, 4) != (2, 3):
            continue
        mode = "average" if operator.kind == "mean" else "max"
        pooled = rewriting.add(node.name, Pool2d(mode, None), x)
        rewriting.be(node, rewriting.reshaped(node.name, pooled, rewriting.shape(node.outputs[0])))
    return rewriting.graph()


def with_pads(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with zero padding of images fused into the convolution or average pool behind.

    types: of every value; those of new ones are added. A maximum does not count its padding, and
    an average may not, so that of these only averages that count theirs take more of it.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        pad = rewriting.computed(node.inputs[0]) if node.inputs else None
        if pad is None or not isinstance(pad.operator, Pad):
            continue
        wider = _padded(node.operator, pad.operator)
        if wider is not None:
            before = node.inputs[0]
            rewriting.replace(node, wider, pad.inputs[0], *node.inputs[1:])
            rewriting.prune(before)
    return rewriting.graph()


def _padded(operator: Operator, pad: Pad) -> Operator | None:
    """Return `operator` with the padding of `pad` as its own; None where it cannot have it."""
    if not isinstance(operator, Conv2d | Pool2d) or pad.edge != "constant":
        return None
    sides = (*pad.before, *pad.after)
    if (
        len(sides) != 8
        or holds_symbols(sides)
        or min(sides) < 0
        or any(sides[i] for i in (0, 1, 4, 5))
    ):
        return None
    if isinstance(operator, Pool2d):
        counts = operator.count_include_pad or not any(operator.padding)
        if operator.kernel is None or operator.ceil_mode:
            return None
        if pad.fill != (-inf if operator.mode == "max" else 0):
            return None
        if operator.mode == "average" and not (counts or operator.divisor):
            return None
        operator = replace(operator, count_include_pad=True)
    elif pad.fill != 0:
        return None
    top, left, bottom, right = (
        a + b
        for a, b in zip(operator.padding, (sides[2], sides[3], sides[6], sides[7]), strict=True)
    )
    try:
        return replace(operator, padding=(top, left, bottom, right))
    except ShapeError:  # more than half of a window
        return None

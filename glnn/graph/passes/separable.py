"""Fuse depthwise convolutions with the pointwise ones that read them, into one operator.

Behind `fuse`: what is done between the two is in the first one's epilogue by then.
"""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, SeparableConv2d
from glnn.graph.passes.rewriting import Pays, Rewriting
from glnn.graph.prologue import Prologue, Spread
from glnn.types import DType, Shape, TensorType


def with_separable(graph: Graph, types: dict[Value, TensorType], pays: Pays) -> Graph:
    """Return `graph` with depthwise and pointwise convolutions, of fixed weights, as one operator,
    where that pays and nothing else reads the value between.

    types: of every value; those of new ones are added.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if _is_pointwise(rewriting, node):
            _join(rewriting, node, pays)
    return rewriting.graph()


def _join(rewriting: Rewriting, last: Node, pays: Pays) -> None:
    """Fuse `last` and the maker of its x into one, where they are such a pair and that pays."""
    x = last.inputs[0]
    first = rewriting.computed(x)
    if first is None or not rewriting.alone(x) or last.reads.count(x) > 1:
        return
    window = first.operator
    if not isinstance(window, Conv2d) or not _is_depthwise(rewriting, first):
        return
    extents = () if first.epilogue is None else first.epilogue.extents
    spread: list[Spread] = [one for one in extents if one != "full"]
    if len(spread) < len(extents):
        return
    prologue = None if first.epilogue is None else Prologue(first.epilogue.expr, tuple(spread))
    operator = SeparableConv2d(window.stride, window.padding, window.dilation, prologue)
    beside = _beside(rewriting, first, prologue)
    inputs = (*first.inputs, last.inputs[1], *beside)
    named = operator.named(inputs)
    if not pays(operator, {name: rewriting.types[value] for name, value in named.items()}):
        for value in beside:
            rewriting.prune(value)
        return
    rewriting.join(first, last, replace(last, operator=operator, inputs=inputs))


def _beside(rewriting: Rewriting, node: Node, prologue: Prologue | None) -> list[Value]:
    """The operands of the epilogue of `node` as `prologue`, which does the same, has them."""
    if prologue is None:
        return []
    shapes = prologue.shapes(rewriting.shape(node.outputs[0]), 1).values()
    pairs = zip(node.extras, shapes, strict=True)
    return [rewriting.reshaped(node.name, value, shape) for value, shape in pairs]


def _is_depthwise(rewriting: Rewriting, node: Node) -> bool:
    """Return True where `node` convolves each channel by itself, to one channel each."""
    operator, shape = _convolution(rewriting, node)
    return operator is not None and operator.groups > 1 and shape[:2] == (operator.groups, 1)


def _is_pointwise(rewriting: Rewriting, node: Node) -> bool:
    """Return True where `node` is a 1 x 1 convolution of all channels, with stride 1 and no
    padding.
    """
    operator, shape = _convolution(rewriting, node)
    if operator is None or operator.groups > 1 or shape[2:] != (1, 1):
        return False
    return operator.stride == (1, 1) and not any(operator.padding)


def _convolution(rewriting: Rewriting, node: Node) -> tuple[Conv2d | None, Shape]:
    """Return the convolution of `node` and the shape of its weight, which no run changes; (None,
    ()) where `node` does more or something else, or is not of float32.
    """
    operator = node.operator
    if type(operator) is not Conv2d or operator.prologue is not None:
        return None, ()
    weight = node.inputs[1]
    floats = all(rewriting.types[value].dtype is DType.float32 for value in node.reads)
    if weight is None or not rewriting.fixed(weight) or not floats:
        return None, ()
    return operator, rewriting.shape(weight)

"""Depthwise convolutions and the pointwise ones that read what they make, as one operator.

Behind `fuse`: what is done between the two is in the first one's epilogue by then.
"""

from __future__ import annotations

from dataclasses import replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, SeparableConv2d
from glnn.graph.passes.attention import Pays
from glnn.graph.passes.rewriting import Rewriting
from glnn.graph.prologue import Prologue, Spread
from glnn.types import DType, TensorType


def with_separable(graph: Graph, types: dict[Value, TensorType], pays: Pays) -> Graph:
    """`graph` with such pairs, of fixed weights, as one operator, where that pays and nobody else
    reads what is between.

    types: of every value; those of new ones are added.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        first = rewriting.computed(node.inputs[0]) if node.inputs else None
        if first is not None and rewriting.alone(node.inputs[0]):
            _join(rewriting, first, node, pays)
    return rewriting.graph()


def _join(rewriting: Rewriting, first: Node, last: Node, pays: Pays) -> None:
    """Both as one, where they are such a pair and that pays."""
    window = first.operator
    if not isinstance(window, Conv2d) or not _is_depthwise(rewriting, first):
        return
    extents = () if first.epilogue is None else first.epilogue.extents
    spread: list[Spread] = [one for one in extents if one != "full"]
    if not _is_pointwise(rewriting, last) or len(spread) < len(extents):
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
    names = dict.fromkeys((*first.name.split(" + "), *last.name.split(" + ")))
    joined = replace(
        last,
        name=" + ".join(names),
        operator=operator,
        inputs=inputs,
        origins=(first, last),
    )
    rewriting.drop(last)
    rewriting.drop(first)
    rewriting.put(joined)


def _beside(rewriting: Rewriting, node: Node, prologue: Prologue | None) -> list[Value]:
    """The operands of the epilogue of `node` as `prologue`, which does the same, has them."""
    if prologue is None:
        return []
    shapes = prologue.shapes(rewriting.shape(node.outputs[0]), 1).values()
    pairs = zip(node.extras, shapes, strict=True)
    return [rewriting.reshaped(node.name, value, shape) for value, shape in pairs]


def _is_depthwise(rewriting: Rewriting, node: Node) -> bool:
    """Whether `node` convolves each channel by itself, to one channel each."""
    operator, weight = node.operator, node.inputs[1]
    if not isinstance(operator, Conv2d) or weight is None or not _is_plain(rewriting, node):
        return False
    return operator.groups > 1 and rewriting.shape(weight)[:2] == (operator.groups, 1)


def _is_pointwise(rewriting: Rewriting, node: Node) -> bool:
    """Whether `node` is a convolution of one tap of all channels."""
    operator, weight = node.operator, node.inputs[1] if len(node.inputs) > 1 else None
    if not isinstance(operator, Conv2d) or weight is None or not _is_plain(rewriting, node):
        return False
    one = rewriting.shape(weight)[2:] == (1, 1) and operator.groups == 1
    return one and operator.stride == (1, 1) and not any(operator.padding)


def _is_plain(rewriting: Rewriting, node: Node) -> bool:
    """Whether the convolution `node` is of float32, with weights that no run changes."""
    assert isinstance(node.operator, Conv2d)
    if node.operator.prologue is not None or not rewriting.fixed(node.inputs[1]):
        return False
    return all(rewriting.types[value].dtype is DType.float32 for value in node.reads)

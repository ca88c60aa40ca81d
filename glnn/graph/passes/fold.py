"""Fold scales and shifts of channels, as batch normalisations, into neighbouring weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Reduce
from glnn.graph.passes.affine import Affine, affine
from glnn.graph.passes.rewriting import Rewriting
from glnn.graph.patterns import SUM
from glnn.symint import same
from glnn.types import Shape, TensorType


def fold(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with a scale and a shift of each channel, as a batch normalisation is at
    inference, moved into the fixed weights and the bias of the convolution or product before or
    behind it.

    types: of every value; those of new ones are added. A value that somebody else reads, or that is
    an output, is left as it is. What is behind a scale and a shift takes these only where nothing
    before could, and where no zeros around an image would need a shift as well.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Pointwise):
            _fold_behind(rewriting, node)
    for node in rewriting.nodes:
        following: Node | None = node
        while following is not None and isinstance(following.operator, Conv2d | Matmul):
            following = _fold_in_front(rewriting, following)
    return rewriting.graph()


@dataclass(frozen=True)
class _Channels:
    """A scale and a shift of the channels of x, of fixed operands."""

    x: Value
    affine: Affine
    operands: tuple[Value | None, ...]

    @classmethod
    def of(cls, rewriting: Rewriting, node: Node) -> _Channels | None:
        """Return the scale and shift that `node` applies; None where it does something else."""
        computed = [v for v in node.inputs if v is not None and not rewriting.fixed(v)]
        if not isinstance(node.operator, Pointwise) or len(computed) != 1:
            return None
        (x,), shape = computed, rewriting.shape(node.outputs[0])
        if not same(rewriting.shape(x), shape) or len(shape) < 2:
            return None
        channels = (shape[1], *(1,) * (len(shape) - 2))
        for value in node.inputs:
            if value is None or not (value is x or _by_channel(rewriting.shape(value), channels)):
                return None
        found = affine(node.operator.expr, node.inputs.index(x))
        return None if found is None else cls(x, found, node.inputs)

    def fixed(
        self, rewriting: Rewriting, name: str, expr: Expr, shape: Shape, *first: Value
    ) -> Value:
        """Return `expr` of the values `first`, then of the operands, reshaped to `shape`."""
        taken, places = list(first), [Arg(i) for i in range(len(first))]
        for value in self.operands:
            places.append(Arg(len(taken)))
            if value is not None and value is not self.x:
                single = same(prod(rewriting.shape(value)), 1)
                own = (1,) * len(shape) if single else shape
                taken.append(rewriting.reshaped(name, value, own))
        return rewriting.add(name, Pointwise(expr(*places)), *taken)


def _by_channel(shape: Shape, channels: Shape) -> bool:
    """Return True where an operand of `shape` has a number for each channel, or one for all."""
    if same(prod(shape), 1):
        return True
    own = shape[-len(channels) :]
    return same(own, channels) and same(prod(shape[: -len(channels)]), 1)


def _behind(expr: Expr, count: int) -> Expr:
    """Return `expr` with its arguments moved behind `count` others."""
    return expr(*(Arg(count + i) for i in range(expr.arity)))


def _fold_behind(rewriting: Rewriting, node: Node) -> None:
    """Fold `node` into the weights of the node before it, and into the bias behind these."""
    channels = _Channels.of(rewriting, node)
    if channels is None or not rewriting.alone(channels.x):
        return
    first, bias = rewriting.computed(channels.x), None
    before = None if first is None else _Channels.of(rewriting, first)
    if before is not None:
        shift = before.affine.shift
        if before.affine.scale is not None or not isinstance(shift, Arg):
            return
        if not rewriting.alone(before.x):
            return
        bias, first = before.operands[shift.index], rewriting.computed(before.x)
    if first is None or not _weighted(rewriting, first):
        return
    x, weight = first.inputs[:2]
    assert weight is not None
    scale, shift, name = channels.affine.scale, channels.affine.shift, node.name
    if scale is None and bias is None:
        return
    shape, rank = rewriting.shape(weight), len(rewriting.shape(channels.x))
    product = first.outputs[0]
    if scale is not None:
        wide = (shape[0], *(1,) * (len(shape) - 1))
        by_scale = call("mul", Arg(0), _behind(scale, 1))
        scaled = channels.fixed(rewriting, name, by_scale, wide, weight)
        product = rewriting.add(first.name, first.operator, x, scaled)
    spread = (shape[0], *(1,) * (rank - 2))
    total = None if shift is None else _behind(shift, 0)
    if bias is not None:
        total = Arg(0) if scale is None else call("mul", Arg(0), _behind(scale, 1))
        total = total if shift is None else call("add", total, _behind(shift, 1))
    if total is None:
        rewriting.be(node, product)
        return
    given = () if bias is None else (bias,)
    if total.arity == 0:
        before_it = node.inputs
        rewriting.replace(node, Pointwise(call("add", Arg(0), total)), product)
    else:
        moved = channels.fixed(rewriting, name, total, spread, *given)
        before_it = node.inputs
        rewriting.replace(node, Pointwise(SUM), product, moved)
    for value in before_it:
        rewriting.prune(value)


def _weighted(rewriting: Rewriting, node: Node) -> bool:
    """Return True where `node` is a convolution or a product with a fixed weight for each
    channel.
    """
    weight = node.inputs[1] if isinstance(node.operator, Conv2d | Matmul) else None
    return weight is not None and rewriting.fixed(weight) and len(rewriting.shape(weight)) != 3


def _fold_in_front(rewriting: Rewriting, node: Node) -> Node | None:
    """The node that stands for `node` with what is before that in its weights; None where they
    stay apart.
    """
    x, before = node.inputs[0], rewriting.computed(node.inputs[0])
    if x is None or before is None or not rewriting.alone(x) or not _weighted(rewriting, node):
        return None
    channels = _Channels.of(rewriting, before)
    if channels is None or _takes(rewriting, channels.x):
        return None
    operator, weight = node.operator, node.inputs[1]
    assert weight is not None
    scale, shift, name = channels.affine.scale, channels.affine.shift, before.name
    if isinstance(operator, Conv2d) and (operator.groups > 1 or (shift and any(operator.padding))):
        return None
    shape, rank = rewriting.shape(weight), len(rewriting.shape(node.outputs[0]))
    wide = (1, shape[1], *(1,) * (len(shape) - 2))
    scaled = weight
    if scale is not None:
        by_scale = call("mul", Arg(0), _behind(scale, 1))
        scaled = channels.fixed(rewriting, name, by_scale, wide, weight)
    if shift is None:
        made: Node | None = rewriting.replace(node, operator, channels.x, scaled)
    else:
        by_shift = call("mul", Arg(0), _behind(shift, 1))
        moved = channels.fixed(rewriting, name, by_shift, wide, weight)
        sums = rewriting.add(name, Reduce("sum", tuple(range(1, len(shape)))), moved)
        spread = rewriting.reshaped(name, sums, (shape[0], *(1,) * (rank - 2)))
        product = rewriting.add(node.name, operator, channels.x, scaled)
        made = rewriting.maker(product)
        rewriting.replace(node, Pointwise(SUM), product, spread)
    rewriting.prune(x)
    return made


def _takes(rewriting: Rewriting, value: Value) -> bool:
    """Return True where the node that makes `value` can absorb the scale and shift behind it."""
    while (node := rewriting.computed(value)) is not None and rewriting.alone(value):
        channels = _Channels.of(rewriting, node)
        if channels is None:
            return node.operator.has_epilogue or isinstance(node.operator, Pointwise)
        value = channels.x
    return False

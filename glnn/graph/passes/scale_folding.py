"""Fold scales and shifts, as of batch normalisations, into weights, and move scalar factors behind
products.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from glnn.core.symint import same
from glnn.core.types import DType, Shape, TensorType
from glnn.graph.expression import SUM, Arg, Call, Expr, Scalar, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Reduce, Reshape
from glnn.graph.operators.move import Move, Pad
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import GraphRewriter


@dataclass(frozen=True)
class Affine:
    """scale x + shift, of which either may be missing."""

    scale: Expr | None = None
    shift: Expr | None = None

    def plus(self, term: Expr) -> Affine:
        """Return the sum of this and `term`."""
        return Affine(self.scale, term if self.shift is None else call("add", self.shift, term))

    def times(self, factor: Expr) -> Affine:
        """Return the product of this and `factor`."""
        scale = factor if self.scale is None else call("mul", self.scale, factor)
        return Affine(scale, None if self.shift is None else call("mul", self.shift, factor))


def as_affine(expr: Expr, index: int) -> Affine | None:
    """Return `expr` as a scale of argument number `index` and a shift, both of the other arguments;
    None where it is not affine, or has not that argument.
    """

    def part(one: Expr, operands: tuple[Expr | Affine | None, ...]) -> Expr | Affine | None:
        if isinstance(one, Arg) and one.index == index:
            return Affine()
        if not isinstance(one, Call) or all(isinstance(each, Expr) for each in operands):
            return one
        return _apply_to_affine(one.function, operands)

    result = expr.fold(part)[-1]
    return result if isinstance(result, Affine) else None


def _apply_to_affine(function: str, operands: tuple[Expr | Affine | None, ...]) -> Affine | None:
    """A function of arguments, one of which is that one with a scale and a shift."""
    match function, *operands:
        case ["neg", Affine() as x]:
            return x.times(Scalar(-1.0))
        case ["add", Affine() as x, Expr() as other] | ["add", Expr() as other, Affine() as x]:
            return x.plus(other)
        case ["mul", Affine() as x, Expr() as other] | ["mul", Expr() as other, Affine() as x]:
            return x.times(other)
        case ["sub", Affine() as x, Expr() as other]:
            return x.plus(call("neg", other))
        case ["sub", Expr() as other, Affine() as x]:
            return x.times(Scalar(-1.0)).plus(other)
        case ["div", Affine() as x, Expr() as other]:
            return x.times(call("div", 1.0, other))
    return None


def fold_scales(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with a scale and a shift of each channel, as a batch normalisation is at
    inference, moved into the fixed weights and the bias of the convolution or product before or
    behind it.

    types: of every value; those of new ones are added. A value that somebody else reads, or that is
    an output, is left as it is. What is behind a scale and a shift takes these only where nothing
    before could, and where no zeros around an image would need a shift as well.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Pointwise):
            _fold_into_producer(rewriter, node)
    for node in rewriter.nodes:
        following: Node | None = node
        while following is not None and isinstance(following.operator, Conv2d | Matmul):
            following = _fold_into_reader(rewriter, following)
    return rewriter.graph()


@dataclass(frozen=True)
class _Channels:
    """A scale and a shift of the channels of x, of fixed operands."""

    x: Value
    affine: Affine
    operands: tuple[Value | None, ...]

    @classmethod
    def match(cls, rewriter: GraphRewriter, node: Node) -> _Channels | None:
        """Return the scale and shift that `node` applies; None where it does something else."""
        computed = [v for v in node.inputs if v is not None and not rewriter.is_fixed(v)]
        if not isinstance(node.operator, Pointwise) or len(computed) != 1:
            return None
        (x,), shape = computed, rewriter.shape(node.outputs[0])
        if not same(rewriter.shape(x), shape) or len(shape) < 2:
            return None
        channels = (shape[1], *(1,) * (len(shape) - 2))
        for value in node.inputs:
            if value is None or not (
                value is x or _broadcasts_by_channel(rewriter.shape(value), channels)
            ):
                return None
        affine = as_affine(node.operator.expr, node.inputs.index(x))
        return None if affine is None else cls(x, affine, node.inputs)

    def fixed(
        self, rewriter: GraphRewriter, name: str, expr: Expr, shape: Shape, *first: Value
    ) -> Value:
        """Return `expr` of the values `first`, then of the operands, reshaped to `shape`."""
        taken, places = list(first), [Arg(i) for i in range(len(first))]
        for value in self.operands:
            places.append(Arg(len(taken)))
            if value is not None and value is not self.x:
                single = same(prod(rewriter.shape(value)), 1)
                target = (1,) * len(shape) if single else shape
                taken.append(rewriter.reshape(name, value, target))
        return rewriter.add(name, Pointwise(expr(*places)), *taken)


def _broadcasts_by_channel(shape: Shape, channels: Shape) -> bool:
    """Return True where an operand of `shape` has a number for each channel, or one for all."""
    if same(prod(shape), 1):
        return True
    trailing = shape[-len(channels) :]
    return same(trailing, channels) and same(prod(shape[: -len(channels)]), 1)


def _shift_arguments(expr: Expr, count: int) -> Expr:
    """Return `expr` with its arguments moved behind `count` others."""
    return expr(*(Arg(count + i) for i in range(expr.arity)))


def _fold_into_producer(rewriter: GraphRewriter, node: Node) -> None:
    """Fold `node` into the weights of the node before it, and into the bias behind these."""
    channels = _Channels.match(rewriter, node)
    if channels is None or not rewriter.is_read_once(channels.x):
        return
    first, bias = rewriter.runtime_producer(channels.x), None
    before = None if first is None else _Channels.match(rewriter, first)
    if before is not None:
        shift = before.affine.shift
        if before.affine.scale is not None or not isinstance(shift, Arg):
            return
        if not rewriter.is_read_once(before.x):
            return
        bias, first = before.operands[shift.index], rewriter.runtime_producer(before.x)
    if first is None or not _has_fixed_weight(rewriter, first):
        return
    x, weight = first.inputs[:2]
    assert weight is not None
    scale, shift, name = channels.affine.scale, channels.affine.shift, node.name
    if scale is None and bias is None:
        return
    shape, rank = rewriter.shape(weight), len(rewriter.shape(channels.x))
    product = first.outputs[0]
    if scale is not None:
        wide = (shape[0], *(1,) * (len(shape) - 1))
        by_scale = call("mul", Arg(0), _shift_arguments(scale, 1))
        scaled = channels.fixed(rewriter, name, by_scale, wide, weight)
        product = rewriter.add(first.name, first.operator, x, scaled)
    spread = (shape[0], *(1,) * (rank - 2))
    total = None if shift is None else _shift_arguments(shift, 0)
    if bias is not None:
        total = Arg(0) if scale is None else call("mul", Arg(0), _shift_arguments(scale, 1))
        total = total if shift is None else call("add", total, _shift_arguments(shift, 1))
    if total is None:
        rewriter.replace_by(node, product)
        return
    biases = () if bias is None else (bias,)
    if total.arity == 0:
        before_it = node.inputs
        rewriter.replace(node, Pointwise(call("add", Arg(0), total)), product)
    else:
        moved = channels.fixed(rewriter, name, total, spread, *biases)
        before_it = node.inputs
        rewriter.replace(node, Pointwise(SUM), product, moved)
    for value in before_it:
        rewriter.prune(value)


def _has_fixed_weight(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` is a convolution or a product with a fixed weight for each
    channel.
    """
    weight = node.inputs[1] if isinstance(node.operator, Conv2d | Matmul) else None
    return weight is not None and rewriter.is_fixed(weight) and len(rewriter.shape(weight)) != 3


def _fold_into_reader(rewriter: GraphRewriter, node: Node) -> Node | None:
    """The node that stands for `node` with what is before that in its weights; None where they
    stay apart.
    """
    x, before = node.inputs[0], rewriter.runtime_producer(node.inputs[0])
    if (
        x is None
        or before is None
        or not rewriter.is_read_once(x)
        or not _has_fixed_weight(rewriter, node)
    ):
        return None
    channels = _Channels.match(rewriter, before)
    if channels is None or _is_absorbed_before(rewriter, channels.x):
        return None
    operator, weight = node.operator, node.inputs[1]
    assert weight is not None
    scale, shift, name = channels.affine.scale, channels.affine.shift, before.name
    if isinstance(operator, Conv2d) and (operator.groups > 1 or (shift and any(operator.padding))):
        return None
    shape, rank = rewriter.shape(weight), len(rewriter.shape(node.outputs[0]))
    wide = (1, shape[1], *(1,) * (len(shape) - 2))
    scaled = weight
    if scale is not None:
        by_scale = call("mul", Arg(0), _shift_arguments(scale, 1))
        scaled = channels.fixed(rewriter, name, by_scale, wide, weight)
    if shift is None:
        made: Node | None = rewriter.replace(node, operator, channels.x, scaled)
    else:
        by_shift = call("mul", Arg(0), _shift_arguments(shift, 1))
        moved = channels.fixed(rewriter, name, by_shift, wide, weight)
        sums = rewriter.add(name, Reduce("sum", tuple(range(1, len(shape)))), moved)
        spread = rewriter.reshape(name, sums, (shape[0], *(1,) * (rank - 2)))
        product = rewriter.add(node.name, operator, channels.x, scaled)
        made = rewriter.producer(product)
        rewriter.replace(node, Pointwise(SUM), product, spread)
    rewriter.prune(x)
    return made


def _is_absorbed_before(rewriter: GraphRewriter, value: Value) -> bool:
    """Return True where the node that makes `value` can absorb the scale and shift behind it."""
    while (node := rewriter.runtime_producer(value)) is not None and rewriter.is_read_once(value):
        channels = _Channels.match(rewriter, node)
        if channels is None:
            return node.operator.has_epilogue or isinstance(node.operator, Pointwise)
        value = channels.x
    return False


def sink_scalar_factors(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with scalar factors of the operands of products and convolutions multiplied
    behind these.

    types: of every value; those of new ones are added. That joins the epilogue, and moves between
    come together: as where attention scales queries and keys before it multiplies them.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Matmul | Conv2d) and not rewriter.is_fixed(node.outputs[0]):
            candidates = [_extract_factor(rewriter, value) for value in node.inputs[:2]]
            if factors := [factor for factor in candidates if factor is not None]:
                _multiply_result(rewriter, node, factors)
    return rewriter.graph()


def _extract_factor(rewriter: GraphRewriter, value: Value | None) -> Scalar | None:
    """The number that `value`, made for one reader, is multiplied by, which then is left out."""
    while (node := rewriter.runtime_producer(value)) is not None and rewriter.is_read_once(value):
        operator = node.operator
        if isinstance(operator, Pointwise):
            number = _factor_of(operator.expr)
            if number is None or rewriter.types[node.outputs[0]].dtype is not DType.float32:
                return None
            _drop_scaling(rewriter, node)
            return number
        moves = isinstance(operator, Move) and not (isinstance(operator, Pad) and operator.value)
        if not moves and not isinstance(operator, View):
            return None
        value = node.inputs[0]
    return None


def _factor_of(expr: Expr) -> Scalar | None:
    """Return the number s where `expr` is its argument times s; None for other expressions."""
    if not isinstance(expr, Call) or expr.function not in ("mul", "div"):
        return None
    one, other = expr.arguments
    if one == Arg(0) and isinstance(other, Scalar):
        if expr.function == "mul":
            return other
        return Scalar(1.0 / other.value) if other.value else None
    if expr.function == "mul" and other == Arg(0) and isinstance(one, Scalar):
        return one
    return None


def _drop_scaling(rewriter: GraphRewriter, node: Node) -> None:
    """Replace the result of `node` by the operand that it scales."""
    value = node.outputs[0]
    rewriter.replace(node, Reshape(rewriter.shape(value), True), node.inputs[0])


def _multiply_result(rewriter: GraphRewriter, node: Node, factors: list[Scalar]) -> None:
    """Multiply the result of `node` by all `factors`."""
    product = Scalar(prod(float(factor.value) for factor in factors))
    value = rewriter.add(node.name, node.operator, *node.inputs)
    rewriter.replace(node, Pointwise(call("mul", Arg(0), product)), value)

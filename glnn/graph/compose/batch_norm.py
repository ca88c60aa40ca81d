"""Batch normalisation by the batch's own statistics, as layers have it in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from glnn.core.types import Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.expression import Arg, Scalar, call, formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Types
from glnn.graph.operators import Pointwise, Reduce, Reshape

NORMALIZED = formula("(a - b) * rsqrt(c + d)")
"""Of x, its channels' means and variances, and eps."""
GRADIENT = formula("(a - dc * da - dc * db * (b - c) / (d + dd)) * rsqrt(d + dd)")
"""By x of what is normalised: of the gradient by that, x, means and variances, the sums of the
gradient and of its products with x - mean, one over the number of summands, and eps."""


@dataclass(frozen=True, eq=False)
class BatchNorm(Composite):
    """(x - mean) / sqrt(variance + eps) * weight + bias of x (n, c, ...), all float32; the means
    and the variances of the batch, of shape (c,).

    The variance is that of the population. weight, bias: of shape (c,). It is an operator of its
    own so that its gradient is two sums and one expression. Ioffe and Szegedy 2015, Batch
    Normalization, algorithm 1.
    """

    name: ClassVar[str] = "batch_norm"
    variadic: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ("weight", "bias")
    eps: float = 1e-5
    """Number that is added to the variance."""

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "weight", "bias")

    @property
    def required(self) -> tuple[str, ...]:
        return ("x",)

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        channels = TensorType(x.dims[1:2], x.dtype)
        return (x, channels, channels)

    def expand(self, operand_values: Sequence[Value | None]) -> Graph:
        builder = Builder(self.name)
        named = {name: builder.take(value) for name, value in self.named(operand_values).items()}
        x = named["x"]
        axes, spread = channel_axes(x.type.shape)

        def add(operator: Pointwise | Reduce | Reshape, *inputs: Value) -> Value:
            return builder.add(operator, *inputs, name=operator.name)[0]

        mean = add(Reduce("mean", axes, True), x)
        variance = add(Reduce("mean", axes, True, formula("square(a - b)")), x, mean)
        scaled = NORMALIZED(Arg(0), Arg(1), Arg(2), Scalar(self.eps))
        operands = [x, mean, variance]
        for name, function in (("weight", "mul"), ("bias", "add")):
            if name in named:
                scaled = call(function, scaled, Arg(len(operands)))
                operands.append(add(Reshape(spread), named[name]))
        channels = (x.type.shape[1],)
        y = add(Pointwise(scaled), *operands)
        return builder.graph([y, *(add(Reshape(channels), one) for one in (mean, variance))])


def channel_axes(x: Shape) -> tuple[tuple[int, ...], Shape]:
    """The axes that statistics of `x` are along, and the shape in which they broadcast to it.

    Raises ShapeError where there are no channels, or fewer than two numbers of each.
    """
    if len(x) < 2:
        raise ShapeError(f"batch_norm: x must have shape (n, c, ...), got {x}")
    axes = (0, *range(2, len(x)))
    if samples_per_channel(x) < 2:
        raise ShapeError(f"batch_norm: a channel needs more than one number in training, got {x}")
    return axes, (1, x[1], *(1,) * (len(x) - 2))


def samples_per_channel(x: Shape) -> int:
    """Return the number of elements of a channel (axis 1) in an array of shape `x`."""
    result = 1
    for axis, size in enumerate(x):
        result *= 1 if axis == 1 else size
    return result

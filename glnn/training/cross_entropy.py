"""Cross-entropy, of classes and of probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.builder import constant
from glnn.graph.compose.pointwise import Given, joined
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Reduce, Reshape, Softmax
from glnn.layers.arguments import index, number
from glnn.training.losses import Loss, Lost, numbers
from glnn.training.operator_writer import OperatorWriter
from glnn.types import Array, DType, TensorType

X, TARGET, CLASS, WEIGHT = (Arg(i) for i in range(4))


@dataclass(frozen=True)
class CrossEntropyLoss(Loss):
    """-log softmax(x)[y] of scores x (n, c, ...) along axis 1.

    Of a model that ends in Softmax or LogSoftmax along that axis, x is what this is of.

    Targets are classes, int32 or int64 of shape (n, ...), each from 0 to c - 1 or `ignore_index`;
    or probabilities, float32 of the shape of x. A mean is by the sum of the weights of the classes
    that there are; of probabilities, by n times all further sizes. Where no label counts, the mean
    is NaN and the gradient 0, as PyTorch's are.
    """

    weight: tuple[float, ...] | None = None
    """A factor for each class; None: 1."""
    ignore_index: int | None = -100
    """The class whose terms are left out, for targets of classes; None: there is none such."""
    label_smoothing: float = 0.0
    """The part of each target that is spread evenly over all classes, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is not None:
            object.__setattr__(self, "weight", numbers(f"{self.name} weight", self.weight))
        if self.ignore_index is not None:
            index(f"{self.name} ignore_index", self.ignore_index)
        number(f"{self.name} label_smoothing", self.label_smoothing, 0, 1)

    def scores(self, model: Graph) -> Value:
        (output,) = model.outputs
        node = model.producers.get(output)
        if node is not None and isinstance(node.operator, Softmax):
            (scores,) = node.reads
            return scores if node.operator.axis % len(scores.type.dims) == 1 else output
        return output

    def targets(self, output: TensorType) -> tuple[TensorType, ...]:
        super().targets(output)
        if len(output.dims) < 2:
            raise ShapeError(f"{self.name} is of an output of shape (n, c, ...), got {output}")
        classes = output.dims[1]
        if self.weight is not None and np.shape(self.weight) != (classes,):
            got = np.shape(self.weight)
            raise ShapeError(f"{self.name} weight must have shape ({classes},), got {got}")
        labels = TensorType((output.dims[0], *output.dims[2:]), DType.int32)
        return (labels, output)

    def check(self, target: Array, output: TensorType) -> Array:
        if target.dtype.kind == "i":
            wrong = (target < 0) | (target >= output.shape[1])
            if self.ignore_index is not None:
                wrong &= target != self.ignore_index
            if wrong.any():
                place = tuple(int(i) for i in np.argwhere(wrong)[0])
                raise ShapeError(
                    f"{self.name}: labels must be from 0 to {output.shape[1] - 1}, "
                    f"got {target[place]} at {place}"
                )
        return super().check(target, output)

    def suited(self, target: Array) -> Loss:
        ignores = self.ignore_index is not None and target.dtype.kind == "i"
        if ignores and not (target == self.ignore_index).any():
            return replace(self, ignore_index=None)
        return self

    def counts(self, target: TensorType) -> bool:
        return target.dtype is DType.int32

    def divides_by_labels(self, target: TensorType) -> bool:
        some = self.weight is not None or self.ignore_index is not None
        return some and self.counts(target) and self.reduction == "mean"

    def samples(self, output: TensorType) -> int:
        return prod(output.shape) // output.shape[1]

    def count(self, add: OperatorWriter, output: Value, target: Value) -> Given:
        if target.type.dtype is DType.int32 and self.weight is not None:
            sharp = replace(self, label_smoothing=0.0)
            return add.total(sharp._share(output, target), *self._operands(add, output, target))
        if target.type.dtype is DType.int32 and self.ignore_index is not None:
            there = call("not_equal", Arg(0), self.ignore_index)
            return add.total(call("cast_float32", there), target)
        return float(self.samples(output.type))

    def express(self, add: OperatorWriter, output: Value, target: Value, divisor: Given) -> Lost:
        operands = self._operands(add, add(Softmax(1, log=True), output), target)
        share = self._share(output, target)
        none = call("equal", share, 0.0)  # also of a logarithm of minus infinity
        term = call("where", none, 0.0, call("neg", call("mul", share, X)))
        if isinstance(divisor, Value):
            terms = add.total(term, *operands)
            value = add.pointwise("a / b", terms, divisor)
        else:
            value = add.total(term, *operands, finish=call("div", Arg(0), divisor))
        probability = call("exp", X)
        if target.type.dtype is DType.int32 and self.weight is None:
            slope: Expr = call("sub", probability, share)
        else:  # the shares of a sample do not add up to 1
            expr, values = joined(share, *operands)
            operands = (*operands, add(Reduce("sum", (1,), True, expr), *values))
            slope = call("sub", call("mul", probability, Arg(4)), share)
        if target.type.dtype is DType.int32:
            slope = self._unless_ignored(slope, TARGET)
        if isinstance(divisor, Value):
            count = Arg(len(operands))  # 0 where no label counts: PyTorch's gradient is 0 there
            slope = call("where", call("equal", count, 0.0), 0.0, call("div", slope, count))
            return Lost(value, add.pointwise(slope, *operands, divisor), terms, divisor)
        return Lost(value, add.pointwise(call("mul", slope, 1.0 / divisor), *operands))

    def _operands(self, add: OperatorWriter, first: Value, target: Value) -> tuple[Given, ...]:
        """Return the operands of `_share`: `first`, of the output's shape, target, class and
        weight.
        """
        dims = first.type.shape
        along = (1, dims[1], *(1,) * (len(dims) - 2))
        classes: Given = 0
        if target.type.dtype is DType.int32:
            target = add(Reshape((dims[0], 1, *dims[2:]), True), target)
            classes = constant(np.arange(dims[1], dtype=np.int32).reshape(along))
        if self.weight is None:
            return first, target, classes, 1.0
        return first, target, classes, constant(np.array(self.weight, np.float32).reshape(along))

    def _share(self, output: Value, target: Value) -> Expr:
        """Return the factor of the negative logarithm of a class's probability."""
        smoothing = float(self.label_smoothing)
        even = smoothing / output.type.shape[1]
        share: Expr = TARGET
        if target.type.dtype is DType.int32:
            share = call("cast_float32", call("equal", TARGET, CLASS))
        if smoothing:
            share = call("add", call("mul", share, 1.0 - smoothing), even)
        if self.weight is not None:
            share = call("mul", WEIGHT, share)
        return self._unless_ignored(share, TARGET) if target.type.dtype is DType.int32 else share

    def _unless_ignored(self, expression: Expr, label: Expr) -> Expr:
        """Return `expression`, or 0 where `label` is ignored."""
        if self.ignore_index is None:
            return expression
        return call("where", call("equal", label, self.ignore_index), 0.0, expression)

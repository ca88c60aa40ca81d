"""Losses, with PyTorch's names, arguments and definitions.

Each computes its gradient by the model's output itself, in the fewest launches. Sums are in float32
and always in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError, shown
from glnn.graph.builder import constant
from glnn.graph.compose.node_adder import PointwiseOperand, bind_expression
from glnn.graph.expression import Arg, Expr, Scalar, call, formula
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Reduce, Reshape, Softmax
from glnn.layers.arguments import flag, index, number
from glnn.training.operator_writer import OperatorWriter

Numbers = tuple[Any, ...] | None
"""Numbers, in tuples of tuples."""


@dataclass(frozen=True)
class LossOutput:
    """A loss in a graph."""

    value: Value
    """The loss, a float32 number of shape ()."""
    gradient: Value
    """The gradient by the model's output, of its shape."""
    terms: Value | None = None
    """The sum of the terms, where the divisor of the mean depends on the labels."""
    count: Value | None = None
    """The divisor of `terms` for the mean: 0 for a batch whose labels are all ignored."""


@dataclass(frozen=True)
class Loss(ABC):
    """A function of a model's output and a target, which training minimises."""

    reduction: str = field(default="mean", kw_only=True)
    """The reduction of the terms: "mean" or "sum"."""

    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum")

    def __post_init__(self) -> None:
        if self.reduction not in self.reductions:
            known = " or ".join(self.reductions)
            raise ShapeError(f"{self.name} reduction must be {known}, got {shown(self.reduction)}")

    @property
    def name(self) -> str:
        """The name of the loss's class."""
        return type(self).__name__

    def scores(self, model: Graph) -> Value:
        """Return the value in a model's graph from which the loss is computed: its output."""
        return model.outputs[0]

    def targets(self, output: TensorType) -> tuple[TensorType, ...]:
        """Return the types of targets for a model's output, the usual one first.

        Raises ShapeError for an output that the loss does not take.
        """
        if output.dtype is not DType.float32:
            raise ShapeError(f"{self.name} is of a float32 output, got {output}")
        return (output,)

    def target(self, output: TensorType, dtype: DType | None = None) -> TensorType:
        """Return the type of targets of `dtype`, of int32 for int64; for None the usual one.

        Raises ShapeError for a dtype that the loss does not take.
        """
        known = self.targets(output)
        wanted = DType.int32 if dtype is DType.int64 else dtype
        matches = [one for one in known if wanted in (None, one.dtype)]
        if not matches:
            raise self._target_error(output, dtype.value if dtype else None)
        return matches[0]

    def check(self, target: Array, output: TensorType) -> Array:
        """Convert `target` for a step, to int32 or float32, for a model's output of that type.

        Raises ShapeError, with what was expected, where its shape, its dtype or a label does not
        fit.
        """
        dtype = DType.from_array(target)
        wide = {DType.float64: DType.float32, DType.float16: DType.float32}
        type = self.target(output, wide.get(dtype, dtype))
        if target.shape != type.shape:
            raise self._target_error(output, TensorType(target.shape, type.dtype))
        return np.ascontiguousarray(target, type.dtype.numpy)

    def _target_error(self, output: TensorType, got: object) -> ShapeError:
        """Return the error for a target of another type."""
        expected = " or ".join(map(str, self.targets(output)))
        return ShapeError(f"{self.name}: the target must be {expected}, got {got}")

    def suited(self, target: Array) -> Loss:
        """Return the loss without operations that `target` does not need."""
        return self

    def counts(self, target: TensorType) -> bool:
        """Return True where targets of that type are classes, so that there is an accuracy."""
        return False

    def divides_by_labels(self, target: TensorType) -> bool:
        """Return True where the divisor of the mean depends on the labels of such targets."""
        return False

    def samples(self, output: TensorType) -> int:
        """Return the number of labels of a batch: of samples, or of pixels."""
        return output.shape[0]

    @abstractmethod
    def count(self, add: OperatorWriter, output: Value, target: Value) -> PointwiseOperand:
        """Return the divisor of the mean: the number of terms, or the sum of their weights."""

    @abstractmethod
    def express(
        self, add: OperatorWriter, output: Value, target: Value, divisor: PointwiseOperand
    ) -> LossOutput:
        """Return the sum of the terms divided by `divisor`, and its gradient."""

    def reduced(self, add: OperatorWriter, output: Value, target: Value) -> LossOutput:
        """Return the loss, reduced as `reduction` says."""
        divisor = 1.0 if self.reduction == "sum" else self.count(add, output, target)
        return self.express(add, output, target, divisor)


@dataclass(frozen=True)
class _Elementwise(Loss):
    """A loss whose terms depend on one element of the output and of the target each."""

    def term(self) -> Expr:
        """Return the term of an element of the output (Arg 0), of the target (Arg 1) and of
        `extra_operands`.
        """
        raise NotImplementedError

    def slope(self) -> Expr:
        """Return the term's derivative by the output."""
        raise NotImplementedError

    def extra_operands(self, output: TensorType) -> tuple[Value, ...]:
        """Return further operands, which broadcast to the output."""
        return ()

    def count(self, add: OperatorWriter, output: Value, target: Value) -> PointwiseOperand:
        count = output.type.shape[0] if self.reduction == "batchmean" else prod(output.type.shape)
        return float(count)

    def express(
        self, add: OperatorWriter, output: Value, target: Value, divisor: PointwiseOperand
    ) -> LossOutput:
        assert isinstance(divisor, float)
        operands = (output, target, *self.extra_operands(output.type))
        value = add.total(self.term(), *operands, finish=call("div", Arg(0), divisor))
        scaled = call("mul", self.slope(), 1.0 / divisor)
        return LossOutput(value, add.pointwise(scaled, *operands))


@dataclass(frozen=True)
class MSELoss(_Elementwise):
    """(x - y)^2 of an output x and a target y of one shape."""

    def term(self) -> Expr:
        return formula("square(a - b)")

    def slope(self) -> Expr:
        return formula("2.0 * (a - b)")


@dataclass(frozen=True)
class L1Loss(_Elementwise):
    """|x - y| of an output x and a target y of one shape; its derivative at 0 is 0."""

    def term(self) -> Expr:
        return formula("abs(a - b)")

    def slope(self) -> Expr:
        return formula("sign(a - b)")


@dataclass(frozen=True)
class HuberLoss(_Elementwise):
    """(x - y)^2 / 2 where |x - y| is at most delta, delta (|x - y| - delta / 2) elsewhere."""

    delta: float = 1.0
    """The error at which the parabola turns into a line, greater than 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if number("HuberLoss delta", self.delta, 0) == 0:
            raise ShapeError("HuberLoss delta must be greater than 0, got 0")

    def term(self) -> Expr:
        x, y, delta = Arg(0), Arg(1), Scalar(float(self.delta))
        inner = formula("0.5 * square(a - b)")
        outer = formula("c * (abs(a - b) - 0.5 * c)")
        return call("where", formula("abs(a - b) <= c"), inner, outer)(x, y, delta)

    def slope(self) -> Expr:
        delta = float(self.delta)
        return call("clip", formula("a - b"), -delta, delta)


@dataclass(frozen=True)
class BCEWithLogitsLoss(_Elementwise):
    """-weight (pos_weight y log p + (1 - y) log(1 - p)) of p = sigmoid(x), y from 0 to 1."""

    weight: Numbers = None
    """The factor of each term, of a shape that broadcasts to the output's; None: 1."""
    pos_weight: Numbers = None
    """The factor of the terms of y, of such a shape; None: 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("weight", "pos_weight"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, numbers(f"{self.name} {name}", value))

    def extra_operands(self, output: TensorType) -> tuple[Value, ...]:
        result = [constant(np.array(self._values(n), np.float32)) for n in ("weight", "pos_weight")]
        for one in result:
            _broadcasts(self.name, one.type.shape, output.shape)
        return tuple(result)

    def _values(self, name: str) -> object:
        """Return the attribute `name`, or 1 for None."""
        value = getattr(self, name)
        return (1.0,) if value is None else value

    def term(self) -> Expr:
        # (1 - y) x - (1 + (p - 1) y) log sigmoid(x), which is never large in both
        return formula("c * ((1.0 - b) * a - (1.0 + (d - 1.0) * b) * log_sigmoid(a))")

    def slope(self) -> Expr:
        return formula("c * ((1.0 - b) * sigmoid(a) - d * b * sigmoid(-a))")


@dataclass(frozen=True)
class KLDivLoss(_Elementwise):
    """y (log y - x) of an output x of logarithms and a target y of probabilities.

    `reduction` may be "batchmean", too, by which the sum is divided by the batch alone.
    """

    log_target: bool = False
    """True where the target has logarithms of probabilities."""

    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "batchmean")

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("KLDivLoss log_target", self.log_target)

    def term(self) -> Expr:
        if self.log_target:
            return formula("exp(b) * (b - a)")
        return formula("where(b > 0.0, b * log(b), 0.0) - b * a")

    def slope(self) -> Expr:
        return formula("-exp(b)" if self.log_target else "-b")


def numbers(what: str, values: object) -> tuple[Any, ...]:
    """Convert an array or nested lists of finite numbers to nested tuples."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        array = np.asarray(np.nan)
    if not array.size or not np.isfinite(array).all():
        raise ShapeError(f"{what} must be numbers, got {shown(values)}")
    return tuple(map(_tuples, np.atleast_1d(array).tolist()))


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


def _broadcasts(name: str, shape: Shape, to: Shape) -> None:
    try:
        fits = np.broadcast_shapes(shape, to) == to
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{name}: weights of shape {shape} do not broadcast to {to}")


X, TARGET, CLASS, WEIGHT = (Arg(i) for i in range(4))


@dataclass(frozen=True)
class CrossEntropyLoss(Loss):
    """-log softmax(x)[y] of scores x (n, c, ...) along axis 1.

    For a model that ends in Softmax or LogSoftmax along that axis, x is the input of that.

    Targets are classes, int32 or int64 of shape (n, ...), each from 0 to c - 1 or `ignore_index`;
    or probabilities, float32 of the shape of x. The divisor of a mean is the sum of the weights of
    the labels' classes; for probabilities, n times all further sizes. Where all labels are ignored,
    the mean is NaN and the gradient 0, as in PyTorch.
    """

    weight: tuple[float, ...] | None = None
    """A factor for each class; None: 1."""
    ignore_index: int | None = -100
    """The label whose terms are left out, for targets of classes; None: no label is."""
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
        depends = self.weight is not None or self.ignore_index is not None
        return depends and self.counts(target) and self.reduction == "mean"

    def samples(self, output: TensorType) -> int:
        return prod(output.shape) // output.shape[1]

    def count(self, add: OperatorWriter, output: Value, target: Value) -> PointwiseOperand:
        if target.type.dtype is DType.int32 and self.weight is not None:
            sharp = replace(self, label_smoothing=0.0)
            return add.total(sharp._share(output, target), *self._operands(add, output, target))
        if target.type.dtype is DType.int32 and self.ignore_index is not None:
            counted = call("not_equal", Arg(0), self.ignore_index)
            return add.total(call("cast_float32", counted), target)
        return float(self.samples(output.type))

    def express(
        self, add: OperatorWriter, output: Value, target: Value, divisor: PointwiseOperand
    ) -> LossOutput:
        operands = self._operands(add, add(Softmax(1, log=True), output), target)
        share = self._share(output, target)
        is_zero = call("equal", share, 0.0)  # 0 times a logarithm of minus infinity is NaN
        term = call("where", is_zero, 0.0, call("neg", call("mul", share, X)))
        if isinstance(divisor, Value):
            terms = add.total(term, *operands)
            value = add.pointwise("a / b", terms, divisor)
        else:
            value = add.total(term, *operands, finish=call("div", Arg(0), divisor))
        probability = call("exp", X)
        if target.type.dtype is DType.int32 and self.weight is None:
            slope: Expr = call("sub", probability, share)
        else:  # the shares of a sample do not add up to 1
            expr, values = bind_expression(share, *operands)
            operands = (*operands, add(Reduce("sum", (1,), True, expr), *values))
            slope = call("sub", call("mul", probability, Arg(4)), share)
        if target.type.dtype is DType.int32:
            slope = self._unless_ignored(slope, TARGET)
        if isinstance(divisor, Value):
            count = Arg(len(operands))  # 0 where no label counts: PyTorch's gradient is 0 there
            slope = call("where", call("equal", count, 0.0), 0.0, call("div", slope, count))
            return LossOutput(value, add.pointwise(slope, *operands, divisor), terms, divisor)
        return LossOutput(value, add.pointwise(call("mul", slope, 1.0 / divisor), *operands))

    def _operands(
        self, add: OperatorWriter, first: Value, target: Value
    ) -> tuple[PointwiseOperand, ...]:
        """Return the operands of `_share`: `first`, which has the output's shape, target, class
        and weight.
        """
        dims = first.type.shape
        along = (1, dims[1], *(1,) * (len(dims) - 2))
        classes: PointwiseOperand = 0
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

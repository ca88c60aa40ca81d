"""Optimisers and learning rates, with PyTorch's names, arguments and definitions.

The tensors that an optimiser keeps of each parameter, its slots, also have PyTorch's names; they
have the parameter's shape and are initially filled with one number. The new content of a slot or
parameter is a single expression, so that one launch computes it, or the epilogue of the gradient's
product.

PyTorch's schedules count calls of their `step`, most often epochs; these count updates, from 0. A
rate is a formula of the state `step` that the device computes once in each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import pi
from typing import Any

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.graph.compose.node_adder import PointwiseOperand
from glnn.graph.expression import Arg, Expr, Scalar, call
from glnn.graph.graph import Value
from glnn.layers.arguments import flag, integer, number
from glnn.training.operator_writer import OperatorWriter

Slots = Mapping[str, Value]


@dataclass(frozen=True)
class UpdateContext:
    """The operands of one parameter's update, and formulas of them."""

    add: OperatorWriter
    """Writer of operators into the graph."""
    parameter: Value
    """The parameter's current content."""
    gradient: Value
    """The gradient by the parameter."""
    slots: Slots
    """The parameter's slots, by name."""
    lr: PointwiseOperand
    """The learning rate."""
    step: Value
    """The number of previous steps, int32 of shape ()."""
    shared: Slots
    """The new content of the scalars that all parameters share, by name."""

    def __call__(self, text: str, **operands: PointwiseOperand) -> Value:
        """Add a formula of the parameter w, its gradient g, the rate lr, and of `operands`."""
        operands = {"w": self.parameter, "g": self.gradient, "lr": self.lr, **operands}
        return self.add.formula(
            text, **{n: x if isinstance(x, Value) else float(x) for n, x in operands.items()}
        )


@dataclass(frozen=True)
class Optimizer(ABC):
    """An update rule of parameters by their gradients."""

    lr: float = 1e-3
    """The learning rate; a schedule may change it."""

    def __post_init__(self) -> None:
        self._at_least("lr", 0)

    @property
    def slots(self) -> Mapping[str, float]:
        """The initial number of each slot of a parameter, by name."""
        return {}

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of scalars that all parameters share: float32 of shape (), initially 0."""
        return ()

    def share(self, add: OperatorWriter, shared: Slots) -> Slots:
        """Return the new content of the `shared` scalars, which this step already reads."""
        return shared

    @abstractmethod
    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        """Return the new content of the parameter and of its slots."""

    def _at_least(self, name: str, least: float) -> None:
        """Raise ShapeError unless the argument called `name` is a number of at least `least`."""
        value: Any = getattr(self, name)
        number(f"{type(self).__name__} {name}", value, least)


@dataclass(frozen=True)
class SGD(Optimizer):
    """w - lr b, where the buffer b becomes momentum b + (1 - dampening) g; at first it is g.

    Sutskever et al. 2013, On the importance of initialization and momentum in deep learning.
    """

    momentum: float = 0.0
    """The factor of the buffer; with 0 there is none, and b is g."""
    dampening: float = 0.0
    """The fraction of each gradient but the first that is left out."""
    weight_decay: float = 0.0
    """The factor of the parameter that is added to its gradient."""
    nesterov: bool = False
    """Whether to use g + momentum b instead of b; it needs a momentum and no dampening."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least("momentum", 0)
        self._at_least("weight_decay", 0)
        number("SGD dampening", self.dampening, float("-inf"))
        if flag("SGD nesterov", self.nesterov) and (not self.momentum or self.dampening):
            raise ShapeError("SGD nesterov takes a momentum and no dampening")

    @property
    def slots(self) -> Mapping[str, float]:
        return {"momentum_buffer": 0.0} if self.momentum else {}

    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        g, decay, momentum = _decayed_gradient(self.weight_decay), self.weight_decay, self.momentum
        if not momentum:
            return context(f"w - lr * {g}", decay=decay), {}
        dampening = "where(step > 0, part, 1.0) * " if self.dampening else ""
        factors = {"momentum": momentum, "decay": decay, "part": 1.0 - self.dampening}
        b = context.slots["momentum_buffer"]
        buffer = context(f"momentum * b + {dampening}{g}", b=b, step=context.step, **factors)
        direction = f"({g} + momentum * b)" if self.nesterov else "b"
        w = context(f"w - lr * {direction}", b=buffer, momentum=momentum, decay=decay)
        return w, {"momentum_buffer": buffer}


@dataclass(frozen=True)
class Adam(Optimizer):
    """w - lr m / (sqrt(v) + eps) of the moving averages m of gradients and v of their squares, both
    with bias correction.

    Kingma and Ba 2015, Adam: A method for stochastic optimization, algorithm 1.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    """The factors of m and of v, less than 1."""
    eps: float = 1e-8
    """The number added to the root."""
    weight_decay: float = 0.0
    """The factor of the parameter that is added to its gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "betas", _pair(f"{type(self).__name__} betas", self.betas))
        self._at_least("eps", 0)
        self._at_least("weight_decay", 0)

    @property
    def slots(self) -> Mapping[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    @property
    def shared(self) -> tuple[str, ...]:
        return ("bias_correction1", "bias_correction2")

    def share(self, add: OperatorWriter, shared: Slots) -> Slots:
        # 1 - beta^t, computed as the moving average of ones: it is exact to the last place, which a
        # power of a rounded beta is not, and products and sums are the same on all backends.
        return {
            name: add.pointwise("a * b + c", shared[name], beta, 1.0 - beta)
            for name, beta in zip(self.shared, self.betas, strict=True)
        }

    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        return self._update(context, _decayed_gradient(self.weight_decay), "w")

    def _update(self, context: UpdateContext, g: str, w: str) -> tuple[Value, Slots]:
        """Return the update. g, w: formulas of the gradient and of the parameter."""
        decay, (beta1, beta2) = self.weight_decay, self.betas
        m, v = context.slots["exp_avg"], context.slots["exp_avg_sq"]
        m = context(f"beta * m + rest * {g}", m=m, beta=beta1, rest=1.0 - beta1, decay=decay)
        v = context(
            f"beta * v + rest * square({g})", v=v, beta=beta2, rest=1.0 - beta2, decay=decay
        )
        first, second = (context.shared[name] for name in self.shared)
        text = f"{w} - lr / first * m / (sqrt(v / second) + eps)"
        operands: dict[str, PointwiseOperand] = {"m": m, "v": v, "first": first, "second": second}
        result = context(text, **operands, eps=self.eps, decay=decay)
        return result, {"exp_avg": m, "exp_avg_sq": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w is multiplied by 1 - lr weight_decay, gradients are not
    changed.

    Loshchilov and Hutter 2019, Decoupled weight decay regularization, algorithm 2.
    """

    weight_decay: float = 1e-2
    """The factor of the parameter, times the learning rate, that each step subtracts."""

    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        return self._update(context, "g", "w * (1.0 - lr * decay)" if self.weight_decay else "w")


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """w - lr g / (sqrt(v) + eps) of the moving average v of squared gradients g.

    Hinton 2012, Neural networks for machine learning, lecture 6e.
    """

    lr: float = 1e-2
    """The learning rate; a schedule may change it."""
    alpha: float = 0.99
    """The factor of v."""
    eps: float = 1e-8
    """The number added to the root."""
    weight_decay: float = 0.0
    """The factor of the parameter that is added to its gradient."""
    momentum: float = 0.0
    """The factor of the previous update in the next one; 0 for none."""
    centered: bool = False
    """Whether to subtract the square of the gradients' moving average from v."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "eps", "weight_decay", "momentum"):
            self._at_least(name, 0)
        flag("RMSprop centered", self.centered)

    @property
    def slots(self) -> Mapping[str, float]:
        mean = {"grad_avg": 0.0} if self.centered else {}
        return {"square_avg": 0.0, **mean, **({"momentum_buffer": 0.0} if self.momentum else {})}

    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        g = _decayed_gradient(self.weight_decay)
        result: dict[str, Value] = {}
        rates = {"alpha": self.alpha, "rest": 1.0 - self.alpha, "decay": self.weight_decay}
        v = context.slots["square_avg"]
        result["square_avg"] = v = context(f"alpha * v + rest * square({g})", v=v, **rates)
        root = "sqrt(v)"
        operands: dict[str, PointwiseOperand] = {
            "v": v,
            "eps": self.eps,
            "decay": self.weight_decay,
        }
        if self.centered:
            mean = context(f"alpha * m + rest * {g}", m=context.slots["grad_avg"], **rates)
            result["grad_avg"] = operands["m"] = mean
            root = "sqrt(maximum(v - square(m), 0.0))"  # rounding may make it negative
        update = f"{g} / ({root} + eps)"
        if not self.momentum:
            return context(f"w - lr * {update}", **operands), result
        b = context.slots["momentum_buffer"]
        buffer = context(f"momentum * b + {update}", b=b, momentum=self.momentum, **operands)
        result["momentum_buffer"] = buffer
        return context("w - lr * b", b=buffer), result


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """w - lr / (1 + t lr_decay) g / (sqrt(s) + eps) of the sum s of squared gradients g, in step t.

    Duchi, Hazan and Singer 2011, Adaptive subgradient methods.
    """

    lr: float = 1e-2
    """The learning rate; a schedule may change it."""
    lr_decay: float = 0.0
    """The decrease of the rate with each step."""
    weight_decay: float = 0.0
    """The factor of the parameter that is added to its gradient."""
    initial_accumulator_value: float = 0.0
    """The initial value of s."""
    eps: float = 1e-10
    """The number added to the root."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            self._at_least(name, 0)

    @property
    def slots(self) -> Mapping[str, float]:
        return {"sum": self.initial_accumulator_value}

    def update(self, context: UpdateContext) -> tuple[Value, Slots]:
        g, decay = _decayed_gradient(self.weight_decay), self.weight_decay
        s = context(f"s + square({g})", s=context.slots["sum"], decay=decay)
        rate = "lr / (1.0 + cast_float32(step) * slower)" if self.lr_decay else "lr"
        operands: dict[str, PointwiseOperand] = {"s": s, "eps": self.eps, "decay": decay}
        if self.lr_decay:
            operands |= {"step": context.step, "slower": self.lr_decay}
        return context(f"w - {rate} * {g} / (sqrt(s) + eps)", **operands), {"sum": s}


def _decayed_gradient(weight_decay: float) -> str:
    """Return the formula of the gradient with weight decay.

    It is a part of each expression that needs it: as a node of its own it would take a launch.
    """
    return "(g + decay * w)" if weight_decay else "g"


def _pair(what: str, pair: object) -> tuple[float, float]:
    """Return `pair` as floats. Raises ShapeError unless it is two numbers from 0 to below 1."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ShapeError(f"{what} must be two numbers, got {shown(pair)}")
    first, second = (float(number(what, value, 0, 1)) for value in pair)
    if 1 in (first, second):
        raise ShapeError(f"{what} must be less than 1, got {shown(pair)}")
    return first, second


STEP, LR = Arg(0), Arg(1)
TIME = call("cast_float32", STEP)


@dataclass(frozen=True)
class LRScheduler(ABC):
    """The learning rate in each step."""

    warmup: int = field(default=0, kw_only=True)
    """The number of first steps in which the rate grows linearly: it is multiplied by
    (step + 1) / warmup."""

    def __post_init__(self) -> None:
        integer(f"{type(self).__name__} warmup", self.warmup, 0)

    @abstractmethod
    def rate(self) -> Expr:
        """Return the rate without `warmup`, an expression of the step, int32, and of the
        optimiser's rate, float32.
        """

    def at(self, step: int, lr: float = 1.0) -> float:
        """Return the rate in step number `step`, from 0, for an optimiser's rate `lr`.

        NumPy computes it in float32, by the formula that the device computes.
        """
        result = self._rate_with_warmup(lr).evaluate(np.asarray(step, np.int32))
        return float(result)

    def on_device(self, add: OperatorWriter, step: Value, lr: float) -> Value:
        """Add the rate to a graph, for the value `step`."""
        return add.pointwise(self._rate_with_warmup(lr), step)

    def _rate_with_warmup(self, lr: float) -> Expr:
        rate = self.rate()(STEP, Scalar(float(lr)))
        if not self.warmup:
            return rate
        factor = call("div", call("add", TIME, 1.0), float(self.warmup))
        return call("mul", rate, call("minimum", factor, 1.0))


@dataclass(frozen=True)
class ConstantLR(LRScheduler):
    """lr factor in the first `total_iters` steps, lr from then on."""

    factor: float = 1 / 3
    """The factor, from 0 to 1."""
    total_iters: int = 5
    """The number of steps with the factor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number("ConstantLR factor", self.factor, 0, 1)
        integer("ConstantLR total_iters", self.total_iters, 0)

    def rate(self) -> Expr:
        is_early = call("cast_float32", call("less", STEP, self.total_iters))
        return call("mul", LR, call("sub", 1.0, call("mul", is_early, 1.0 - self.factor)))


@dataclass(frozen=True)
class LinearLR(LRScheduler):
    """lr times a factor that changes linearly from `start_factor` to `end_factor`, then stays."""

    start_factor: float = 1 / 3
    """The factor in the first step, greater than 0, at most 1."""
    end_factor: float = 1.0
    """The factor from the step `total_iters` on, from 0 to 1."""
    total_iters: int = 5
    """The number of steps in which the factor changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number("LinearLR start_factor", self.start_factor, 0, 1)
        number("LinearLR end_factor", self.end_factor, 0, 1)
        integer("LinearLR total_iters", self.total_iters)

    def rate(self) -> Expr:
        steps = float(self.total_iters)
        fraction = call("div", call("minimum", TIME, steps), steps)
        return call("mul", LR, _interpolate(self.start_factor, self.end_factor, fraction))


@dataclass(frozen=True)
class StepLR(LRScheduler):
    """lr gamma^floor(step / step_size): multiplied by gamma after every `step_size` steps."""

    step_size: int
    """The number of steps with one rate."""
    gamma: float = 0.1
    """The factor of the rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("StepLR step_size", self.step_size)
        number("StepLR gamma", self.gamma, 0)

    def rate(self) -> Expr:
        times = call("cast_float32", call("div", STEP, int(self.step_size)))
        return call("mul", LR, call("pow", float(self.gamma), times))


@dataclass(frozen=True)
class CosineAnnealingLR(LRScheduler):
    """From lr to `eta_min` along a cosine in `T_max` steps, then back, periodically.

    Loshchilov and Hutter 2017, SGDR: Stochastic gradient descent with warm restarts, without
    restarts.
    """

    T_max: int
    """The number of steps from lr to `eta_min`."""
    eta_min: float = 0.0
    """The least rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("CosineAnnealingLR T_max", self.T_max)
        number("CosineAnnealingLR eta_min", self.eta_min, 0)

    def rate(self) -> Expr:
        phase = call("cast_float32", call("remainder", STEP, 2 * int(self.T_max)))
        return _cosine(LR, float(self.eta_min), call("div", phase, float(self.T_max)))


@dataclass(frozen=True)
class OneCycleLR(LRScheduler):
    """From max_lr / div_factor up to `max_lr`, then down to max_lr / div_factor / final_div_factor.

    The optimiser's rate does not matter; its momentum stays. Smith and Topin 2018,
    Super-convergence: Very fast training of neural networks using large learning rates.
    """

    max_lr: float
    """The greatest rate."""
    total_steps: int
    """The number of steps; from then on the rate is the least."""
    pct_start: float = 0.3
    """The fraction of the steps in which the rate increases, from 0 to 1."""
    anneal_strategy: str = "cos"
    """The curve: "cos" for a cosine, "linear" for a line."""
    div_factor: float = 25.0
    """The divisor of `max_lr` for the first rate, greater than 0."""
    final_div_factor: float = 1e4
    """The divisor of the first rate for the last, greater than 0."""
    three_phase: bool = False
    """Whether the rate decreases to the first one in as many steps as it increases, and then to the
    last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number("OneCycleLR max_lr", self.max_lr, 0)
        integer("OneCycleLR total_steps", self.total_steps)
        number("OneCycleLR pct_start", self.pct_start, 0, 1)
        flag("OneCycleLR three_phase", self.three_phase)
        if self.anneal_strategy not in ("cos", "linear"):
            got = shown(self.anneal_strategy)
            raise ShapeError(f"OneCycleLR anneal_strategy must be cos or linear, got {got}")
        for name in ("div_factor", "final_div_factor"):
            if number(f"OneCycleLR {name}", getattr(self, name), 0) == 0:
                raise ShapeError(f"OneCycleLR {name} must be greater than 0, got 0")

    def rate(self) -> Expr:
        first = self.max_lr / self.div_factor
        last, most = first / self.final_div_factor, float(self.max_lr)
        top = self.pct_start * self.total_steps - 1
        phases = [(top, first, most), (float(self.total_steps - 1), most, last)]
        if self.three_phase:
            phases[1:] = [(2 * top, most, first), (phases[1][0], first, last)]
        interpolate = _cosine if self.anneal_strategy == "cos" else _interpolate
        begin = 0.0
        cases: list[tuple[Expr, Expr]] = []
        for end, start_rate, end_rate in phases:
            length = max(end - begin, 1e-6)
            fraction = call("clip", call("div", call("sub", TIME, begin), length), 0.0, 1.0)
            rate = interpolate(start_rate, end_rate, fraction)
            cases.append((call("less_equal", TIME, end), rate))
            begin = end
        result = cases[-1][1]
        for condition, rate in reversed(cases[:-1]):
            result = call("where", condition, rate, result)
        return result


def _interpolate(start: float, end: float, fraction: Expr) -> Expr:
    """Interpolate linearly from `start` to `end`."""
    return call("add", call("mul", fraction, float(end) - float(start)), float(start))


def _cosine(start: float | Expr, end: float, fraction: Expr) -> Expr:
    """Interpolate from `start` to `end` along half a period of a cosine."""
    weight = call("mul", 0.5, call("add", 1.0, call("cos", call("mul", fraction, pi))))
    return call("add", call("mul", call("sub", start, end), weight), end)

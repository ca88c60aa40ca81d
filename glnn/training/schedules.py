"""Learning rates that change from step to step, with PyTorch's names, arguments and definitions.

PyTorch's count whatever their `step` is called for, most often epochs; these count updates, from
0. A rate is a formula of the state `step` that is computed on the device once a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import pi

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.graph.expression import Arg, Expr, Scalar, call
from glnn.graph.graph import Value
from glnn.layers.arguments import flag, integer, number
from glnn.training.operator_writer import OperatorWriter

STEP, LR = Arg(0), Arg(1)
TIME = call("cast_float32", STEP)


@dataclass(frozen=True)
class Schedule(ABC):
    """The learning rate in each step."""

    warmup: int = field(default=0, kw_only=True)
    """Over how many steps at first the rate grows evenly: it is (step + 1) / warmup of what it
    would be."""

    def __post_init__(self) -> None:
        integer(f"{type(self).__name__} warmup", self.warmup, 0)

    @abstractmethod
    def rate(self) -> Expr:
        """Return the rate without `warmup` in `step`, int32, of the optimiser's own, float32."""

    def at(self, step: int, lr: float = 1.0) -> float:
        """Return the rate in the step number `step`, from 0, of an optimiser whose own is `lr`.

        By NumPy in float32, from the formula that the device computes.
        """
        found = self._whole(lr).evaluate(np.asarray(step, np.int32))
        return float(found)

    def on_device(self, add: OperatorWriter, step: Value, lr: float) -> Value:
        """Add the rate to a graph, for the value `step`."""
        return add.pointwise(self._whole(lr), step)

    def _whole(self, lr: float) -> Expr:
        rate = self.rate()(STEP, Scalar(float(lr)))
        if not self.warmup:
            return rate
        part = call("div", call("add", TIME, 1.0), float(self.warmup))
        return call("mul", rate, call("minimum", part, 1.0))


@dataclass(frozen=True)
class ConstantLR(Schedule):
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
        early = call("cast_float32", call("less", STEP, self.total_iters))
        return call("mul", LR, call("sub", 1.0, call("mul", early, 1.0 - self.factor)))


@dataclass(frozen=True)
class LinearLR(Schedule):
    """lr times a factor that goes evenly from `start_factor` to `end_factor`, and stays there."""

    start_factor: float = 1 / 3
    """The factor in the first step, greater than 0, at most 1."""
    end_factor: float = 1.0
    """The factor from the step `total_iters` on, from 0 to 1."""
    total_iters: int = 5
    """The number of steps from the one to the other."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number("LinearLR start_factor", self.start_factor, 0, 1)
        number("LinearLR end_factor", self.end_factor, 0, 1)
        integer("LinearLR total_iters", self.total_iters)

    def rate(self) -> Expr:
        part = call("div", call("minimum", TIME, float(self.total_iters)), float(self.total_iters))
        return call("mul", LR, _interpolate(self.start_factor, self.end_factor, part))


@dataclass(frozen=True)
class StepLR(Schedule):
    """lr gamma^(step / step_size), rounded down: less after every `step_size` steps."""

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
class CosineAnnealingLR(Schedule):
    """From lr to `eta_min` as a cosine goes, in `T_max` steps, then back, and so on.

    Loshchilov and Hutter 2017, SGDR: Stochastic gradient descent with warm restarts, without
    restarts.
    """

    T_max: int
    """The number of steps from the one to the other."""
    eta_min: float = 0.0
    """The least rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("CosineAnnealingLR T_max", self.T_max)
        number("CosineAnnealingLR eta_min", self.eta_min, 0)

    def rate(self) -> Expr:
        within = call("cast_float32", call("remainder", STEP, 2 * int(self.T_max)))
        return _cosine(LR, float(self.eta_min), call("div", within, float(self.T_max)))


@dataclass(frozen=True)
class OneCycleLR(Schedule):
    """Up to `max_lr` and down again; the optimiser's own rate does not matter, momentum stays.

    From max_lr / div_factor up, then down to a `final_div_factor`th of where it began. Smith and
    Topin 2018, Super-convergence: Very fast training of neural networks using large learning rates.
    """

    max_lr: float
    """The greatest rate."""
    total_steps: int
    """The number of steps; from then on the rate is the least."""
    pct_start: float = 0.3
    """The part of the steps in which the rate increases, from 0 to 1."""
    anneal_strategy: str = "cos"
    """The curve: "cos" for a cosine, "linear" for a line."""
    div_factor: float = 25.0
    """The divisor of `max_lr` for the first rate, greater than 0."""
    final_div_factor: float = 1e4
    """The divisor of the first rate for the last, greater than 0."""
    three_phase: bool = False
    """Whether the rate decreases for as long as it increases, and then from there to the least."""

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
        goes = _cosine if self.anneal_strategy == "cos" else _interpolate
        begin, found = 0.0, None
        parts: list[tuple[Expr, Expr]] = []
        for end, low, high in phases:
            length = max(end - begin, 1e-6)
            part = call("clip", call("div", call("sub", TIME, begin), length), 0.0, 1.0)
            parts.append((call("less_equal", TIME, end), goes(low, high, part)))
            begin = end
        found = parts[-1][1]
        for there, rate in reversed(parts[:-1]):
            found = call("where", there, rate, found)
        return found


def _interpolate(start: float, end: float, part: Expr) -> Expr:
    """Interpolate linearly from `start` to `end`."""
    return call("add", call("mul", part, float(end) - float(start)), float(start))


def _cosine(start: float | Expr, end: float, part: Expr) -> Expr:
    """Interpolate from `start` to `end` along half a period of a cosine."""
    half = call("mul", 0.5, call("add", 1.0, call("cos", call("mul", part, pi))))
    return call("add", call("mul", call("sub", start, end), half), end)

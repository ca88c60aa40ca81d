"""Operators without gradients, and why."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Arange,
    ArgReduce,
    Attention,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    If,
    Im2row,
    Loop,
    MatmulParts,
    MatmulSum,
    Pack,
    Perceptron,
    PhasedRecurrence,
    Pool2dGradient,
    PooledConv2d,
    Recurrence,
    SeparableConv2d,
    ShiftAdd,
    Sobel,
    WinogradInput,
    WinogradOutput,
    Zero,
)

_GRADIENT = "it is a gradient itself"
_PLANNED = "it is made only where a plan is"
_BODIES = "gradients do not go through the graphs that it runs"

NONE: Mapping[type[Operator], str] = {
    Arange: "it counts",
    ArgReduce: "its results are indices",
    If: _BODIES,
    Loop: _BODIES,
    Sobel: "it is a filter of images",
    Conv2dInputGradient: _GRADIENT,
    Conv2dWeightGradient: _GRADIENT,
    Pool2dGradient: _GRADIENT,
    Attention: _PLANNED,
    Im2row: _PLANNED,
    MatmulParts: _PLANNED,
    MatmulSum: _PLANNED,
    Pack: _PLANNED,
    Perceptron: _PLANNED,
    PhasedRecurrence: _PLANNED,
    PooledConv2d: _PLANNED,
    Recurrence: _PLANNED,
    SeparableConv2d: _PLANNED,
    ShiftAdd: _PLANNED,
    WinogradInput: _PLANNED,
    WinogradOutput: _PLANNED,
    Zero: _PLANNED,
}
"""Why each of these has none."""

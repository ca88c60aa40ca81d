"""Every generator by the name that declarations call it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glnn.graph.operator import Operator
from glnn.kernels.generate import (
    concat,
    cum_sum,
    gather,
    move,
    perceptron,
    pointwise,
    recurrent,
    reduce,
    scatter,
)
from glnn.kernels.generate.generated import Generated
from glnn.layout import Layout
from glnn.types import TensorType


@dataclass(frozen=True)
class Generator:
    """What fills in the templates of kernels."""

    make: Callable[[Operator, Mapping[str, TensorType], Mapping[str, Layout], str], Generated]
    """Makes of an operator, the types and layouts of its operands and results by name, and a
    backend what its kernel there has of its own; UnsupportedOpError where there can be none."""
    examples: Callable[[], Mapping[str, tuple[Operator, Mapping[str, TensorType]]]]
    """Operators and their operands, by a name, that have every way of the templates compiled."""


GENERATORS: Mapping[str, Generator] = {
    "cum_sum": Generator(cum_sum.generate, cum_sum.examples),
    "gather": Generator(gather.generate, gather.examples),
    "grouped": Generator(concat.grouped, concat.image_examples),
    "joined": Generator(concat.joined, concat.examples),
    "pieces": Generator(concat.pieces, concat.examples),
    "images": Generator(move.generate, move.image_examples),
    "move": Generator(move.generate, move.examples),
    "turn": Generator(move.turn, move.turn_examples),
    "scatter": Generator(scatter.generate, scatter.examples),
    "perceptron": Generator(perceptron.generate, perceptron.examples),
    "pointwise": Generator(pointwise.generate, pointwise.examples),
    "recurrent": Generator(recurrent.generate, recurrent.examples),
    "recurrent_dataflow": Generator(recurrent.dataflow, recurrent.recurrences),
    "recurrent_waves": Generator(recurrent.waves, recurrent.recurrences),
    "recurrent_whole": Generator(recurrent.whole, recurrent.single_recurrences),
    "reduce": Generator(reduce.generate, reduce.examples),
}
"""By what declarations say in `generate`."""

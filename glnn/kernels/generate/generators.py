"""The table of generators, by the name that declarations use."""

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
    """A generator of the code for a kernel's template."""

    make: Callable[[Operator, Mapping[str, TensorType], Mapping[str, Layout], str], Generated]
    """Function of an operator, the types and layouts of its operands and results by name, and a
    backend, that returns the generated code; raises UnsupportedOpError where it cannot."""
    examples: Callable[[], Mapping[str, tuple[Operator, Mapping[str, TensorType]]]]
    """Function that returns named operators and operands for every variant of the templates."""


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
"""The generators, by the value of the key `generate` in a declaration."""

"""The table of generators, by the name that declarations use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glnn.core.layout import Layout
from glnn.core.types import TensorType
from glnn.graph.operator import Operator
from glnn.kernels.codegen import (
    move,
    perceptron,
    pointwise,
    recurrent,
    reduce,
    top_k,
)
from glnn.kernels.codegen.generated import Generated


@dataclass(frozen=True)
class Generator:
    """A generator of the code for a kernel's template."""

    make: Callable[[Operator, Mapping[str, TensorType], Mapping[str, Layout], str], Generated]
    """Function of an operator, the types and layouts of its operands and results by name, and a
    backend, that returns the generated code; raises UnsupportedOpError where it cannot."""
    examples: Callable[[], Mapping[str, tuple[Operator, Mapping[str, TensorType]]]]
    """Function that returns named operators and operands for every variant of the templates."""


GENERATORS: Mapping[str, Generator] = {
    "cum_sum": Generator(reduce.generate_cum_sum, reduce.cum_sum_examples),
    "gather": Generator(move.generate_gather, move.gather_examples),
    "grouped": Generator(move.grouped, move.concat_image_examples),
    "joined": Generator(move.joined, move.concat_examples),
    "pieces": Generator(move.pieces, move.concat_examples),
    "images": Generator(move.generate, move.image_examples),
    "move": Generator(move.generate, move.examples),
    "transpose": Generator(move.transpose, move.transpose_examples),
    "scatter": Generator(move.generate_scatter, move.scatter_examples),
    "perceptron": Generator(perceptron.generate_perceptron, perceptron.perceptron_examples),
    "pointwise": Generator(pointwise.generate, pointwise.examples),
    "recurrent": Generator(recurrent.generate, recurrent.examples),
    "recurrent_dataflow": Generator(recurrent.dataflow, recurrent.recurrences),
    "recurrent_persistent": Generator(recurrent.persistent, recurrent.single_recurrences),
    "recurrent_wavefront": Generator(recurrent.wavefront, recurrent.recurrences),
    "merge_top_k": Generator(top_k.generate_top_k, top_k.merge_top_k_examples),
    "top_k": Generator(top_k.generate_top_k, top_k.top_k_examples),
    "reduce": Generator(reduce.generate_reduce, reduce.reduce_examples),
}
"""The generators, by the value of the key `generate` in a declaration."""

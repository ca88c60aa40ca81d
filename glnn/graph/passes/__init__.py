"""Passes: a graph in, a graph that computes the same out."""

from glnn.graph.passes.bodies import fixed_captures, known_branches
from glnn.graph.passes.expand import expanded, opened
from glnn.graph.passes.narrow import narrow
from glnn.graph.passes.operands import of_few_operands, of_one_result, within_operands
from glnn.graph.passes.optional import Offers, Pass, shortened
from glnn.graph.passes.outputs import own_outputs, packed_outputs
from glnn.graph.passes.quantize import quantized, samples_of

__all__ = [
    "Offers",
    "Pass",
    "expanded",
    "fixed_captures",
    "known_branches",
    "narrow",
    "of_few_operands",
    "of_one_result",
    "opened",
    "own_outputs",
    "packed_outputs",
    "quantized",
    "samples_of",
    "shortened",
    "within_operands",
]

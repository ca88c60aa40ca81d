"""Passes: a graph in, a graph that computes the same out."""

from glnn.graph.passes.inlining import (
    expand_composites,
    expand_subgraphs,
    inline_constant_branches,
    inline_constant_captures,
)
from glnn.graph.passes.int64_to_int32 import narrow_integers
from glnn.graph.passes.operand_limits import split_concats, split_operands, split_results
from glnn.graph.passes.output_rewrites import copy_input_views, pack_outputs
from glnn.graph.passes.pass_manager import BackendTraits, Pass, optimize
from glnn.graph.passes.quantization import batch_size_of, keep_integers, quantize_weights

__all__ = [
    "BackendTraits",
    "Pass",
    "batch_size_of",
    "copy_input_views",
    "expand_composites",
    "expand_subgraphs",
    "inline_constant_branches",
    "inline_constant_captures",
    "keep_integers",
    "narrow_integers",
    "optimize",
    "pack_outputs",
    "quantize_weights",
    "split_concats",
    "split_operands",
    "split_results",
]

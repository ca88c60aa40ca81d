"""Passes: a graph in, a graph that computes the same out. Each can be left out."""

from glnn.graph.passes.bodies import fixed_captures, known_branches
from glnn.graph.passes.expand import expanded, opened
from glnn.graph.passes.fold import fold
from glnn.graph.passes.fuse import fuse
from glnn.graph.passes.identities import without_dead, without_identities
from glnn.graph.passes.narrow import narrow
from glnn.graph.passes.operands import of_one_result, within_operands
from glnn.graph.passes.outputs import own_outputs

__all__ = [
    "expanded",
    "fixed_captures",
    "fold",
    "fuse",
    "known_branches",
    "narrow",
    "of_one_result",
    "opened",
    "own_outputs",
    "within_operands",
    "without_dead",
    "without_identities",
]

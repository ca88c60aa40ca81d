"""Expressions that layers make and passes look for."""

from __future__ import annotations

from glnn.graph.expression import Arg, call

SUM = call("add", Arg(0), Arg(1))
"""Sum of two tensors, or of a result and its bias."""
PRODUCT = call("mul", Arg(0), Arg(1))
SCALE_AND_SHIFT = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
"""Batch normalisation of each channel at inference."""

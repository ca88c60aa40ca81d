"""The rule of each operator that has gradients."""

from __future__ import annotations

from glnn.graph.gradients import (
    batch_norm,
    conv2d,
    fold,
    images,
    lookups,
    matmul,
    moves,
    pointwise,
    pool2d,
    recurrent,
    reductions,
    rows,
    scatters,
    views,
)
from glnn.graph.gradients.backward import Rule
from glnn.graph.operator import Operator

RULES: dict[type[Operator], Rule] = {
    **batch_norm.RULES,
    **conv2d.RULES,
    **fold.RULES,
    **images.RULES,
    **lookups.RULES,
    **matmul.RULES,
    **moves.RULES,
    **pointwise.RULES,
    **pool2d.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **rows.RULES,
    **scatters.RULES,
    **views.RULES,
}
"""Gradient rules by kind of operator."""

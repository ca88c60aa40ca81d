"""Images made smaller."""

from __future__ import annotations

from glnn.graph.operators import Subsample
from tests.gradients.case import Case

CASES = [
    Case("subsample", Subsample(), ((2, 3, 5, 4), (3,), (3,))),
    Case("subsample wide", Subsample((3, 1)), ((1, 2, 7, 5), (2,), (2,))),
]

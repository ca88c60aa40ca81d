"""The cases, a file for each kind: a list CASES of each is joined here."""

from __future__ import annotations

import os

from tests.gradients.case import Case
from tests.gradients.cases import (
    convolutions,
    images,
    lookups,
    moves,
    pointwise,
    pools,
    products,
    recurrent,
    reductions,
    rows,
    views,
)

_ALL: dict[str, list[Case]] = {
    "pointwise": pointwise.CASES,
    "views": views.CASES,
    "moves": moves.CASES,
    "lookups": lookups.CASES,
    "reductions": reductions.CASES,
    "rows": rows.CASES,
    "products": products.CASES,
    "recurrent": recurrent.CASES,
    "images": images.CASES,
    "convolutions": convolutions.CASES,
    "pools": pools.CASES,
}
EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
GROUPS: dict[str, tuple[Case, ...]] = {
    name: tuple(case for case in cases if EXHAUSTIVE or not case.large)
    for name, cases in _ALL.items()
}
"""Cases that are run in one plan, by what the plan is called."""
CASES: tuple[Case, ...] = tuple(case for cases in GROUPS.values() for case in cases)
KINKS: tuple[Case, ...] = (*reductions.KINKS,)
"""Cases where differences tell nothing, and what PyTorch has decided is expected."""

"""The table of ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from glnn.onnx.entry import Entry
from glnn.onnx.operators import (
    contract,
    conv,
    deform,
    move,
    normalize,
    pointwise,
    pool,
    recurrent,
    reduce,
    shape,
    unpool,
)

PARTS = (contract, conv, deform, move, normalize, pointwise, pool, recurrent, reduce, shape, unpool)
"""The converters, by kind."""
ENTRIES: Mapping[tuple[str, str], tuple[Entry, ...]] = {
    key: tuple(sorted(entries, key=lambda one: one.since))
    for key, entries in groupby(
        sorted(
            (entry for part in PARTS for entry in part.ENTRIES),
            key=lambda one: (one.domain, one.name),
        ),
        key=lambda one: (one.domain, one.name),
    )
}
"""Those of each operator set and name, the oldest first."""


def find(domain: str, name: str, version: int) -> Entry | None:
    """The entry for a version of the operator set; None where there is none."""
    found = [one for one in ENTRIES.get((domain, name), ()) if one.since <= version]
    return found[-1] if found else None

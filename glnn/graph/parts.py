"""The distinct parts of a nested structure: equal parts count once, as graphs are deep and
share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def parts_of(
    whole: T, reads: Callable[[T], Sequence[T]], key: Callable[[T], Hashable]
) -> tuple[tuple[T, tuple[int, ...]], ...]:
    """Return all parts of `whole`, each with the places of those that it reads, itself last.

    key: what a part is but for those; of equal ones that read the same, one is listed. Nothing
    calls itself.
    """
    listed: list[tuple[T, tuple[int, ...]]] = []
    places: dict[int, int] = {}  # by identity
    known: dict[Hashable, int] = {}
    stack = [whole]
    while stack:
        part = stack[-1]
        given = reads(part)
        if waiting := [read for read in given if id(read) not in places]:
            stack += reversed(waiting)
            continue
        stack.pop()
        if id(part) in places:
            continue
        at = tuple(places[id(read)] for read in given)
        if (own := (key(part), at)) not in known:
            known[own] = len(listed)
            listed.append((part, at))
        places[id(part)] = known[own]
    return tuple(listed)

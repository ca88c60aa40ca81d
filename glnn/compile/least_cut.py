"""The cheapest way to part a graph in two: Edmonds and Karp 1972."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

NEVER = float("inf")
NOTHING = 1e-12
"""What is left of a capacity that was used up, as numbers are rounded."""


class LeastCut:
    """Things of which each goes to one side or the other, and what it costs where they part."""

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, float]] = {}

    def add(self, here: Hashable, there: Hashable, cost: float) -> None:
        """That costs so much where `here` is with the first side and `there` is not."""
        ways = self._left.setdefault(here, {})
        ways[there] = ways.get(there, 0.0) + cost
        self._left.setdefault(there, {}).setdefault(here, 0.0)

    def first_side(self, first: Hashable, last: Hashable) -> set[Hashable]:
        """All that goes with `first` in the cheapest way that has `last` on the other side.

        Where several are as cheap, that of the fewest. To part them must not cost NEVER.
        """
        while True:
            before = self._reached(first, last)
            if last not in before:
                return set(before)
            path: list[tuple[Hashable, Hashable]] = []
            there = last
            while there != first:
                path.append((before[there], there))
                there = before[there]
            least = min(self._left[a][b] for a, b in path)
            for a, b in path:
                self._left[a][b] -= least
                self._left[b][a] += least

    def _reached(self, first: Hashable, last: Hashable) -> dict[Hashable, Hashable]:
        """What is left to be reached from `first`, and from where each is, until that is `last`."""
        before: dict[Hashable, Hashable] = {first: first}
        waiting = deque([first])
        while waiting:
            here = waiting.popleft()
            for there, left in self._left.get(here, {}).items():
                if left > NOTHING and there not in before:
                    before[there] = here
                    if there == last:
                        return before
                    waiting.append(there)
        return before

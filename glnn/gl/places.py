"""Parts of GL's buffers, and what was last done with each."""

from __future__ import annotations

from collections.abc import Hashable

Place = tuple[Hashable, int, int]
"""A part of a buffer: what tells that from others, the first byte, and the one behind the last."""
END = 1 << 62  # behind the last byte of any buffer


class Marks:
    """Numbers that places were marked with; -1 where there is none."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[tuple[int, int], int]] = {}

    def __bool__(self) -> bool:
        """Return True unless the set is empty."""
        return bool(self._found)

    def mark(self, place: Place, number: int) -> None:
        """Mark `place`, unless it has a greater number."""
        name, *ends = place
        marks = self._found.setdefault(name, {})
        key = ends[0], ends[1]
        marks[key] = max(number, marks.get(key, -1))

    def latest(self, place: Place) -> int:
        """The greatest number of what overlaps with `place`."""
        name, start, stop = place
        marks = self._found.get(name, {})
        return max((n for (a, b), n in marks.items() if a < stop and start < b), default=-1)

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

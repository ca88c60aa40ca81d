"""Names for values that would be called alike."""

from __future__ import annotations

from collections.abc import Collection

FEW = 8  # marks behind a name; more are counted


class Marks:
    """Marks names that are taken: `x'`, `x''`, and from the eighth on `x'8`, `x'9`, ..."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # how many marks a name had when it was last asked for

    def free(self, name: str, *taken: Collection[str]) -> str:
        """Return `name`, with marks where one of `taken` has it."""
        found, count = name, self._last.get(name, 0)
        if count and any(name in names for names in taken):
            found = _marked(name, count)
        while any(found in names for names in taken):
            count += 1
            found = _marked(name, count)
        if count:
            self._last[name] = count
        return found


def _marked(name: str, count: int) -> str:
    return name + ("'" * count if count < FEW else f"'{count}")

"""A timer query whose answers are made up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

Lie = Callable[[float, float], float]


class FakeQuery:
    """A timer query that reads `lie(seconds, first)` of the time that passed inside it.

    first: those that the first piece of work inside it took.
    """

    def __init__(self, lie: Lie) -> None:
        self.lie = lie
        self.elapsed = 0
        self.start = 0.0
        self.first: float | None = None

    def __enter__(self) -> Self:
        self.first = None
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self.start
        self.elapsed = int(1e9 * self.lie(seconds, self.first or seconds))

    def wait(self, seconds: float) -> None:
        """Work that takes that long."""
        time.sleep(seconds)
        if self.first is None:
            self.first = time.perf_counter() - self.start


LIES: dict[str, Lie] = {
    "nothing": lambda seconds, first: 1e-9,
    "always the same": lambda seconds, first: 30e-6,
    "half": lambda seconds, first: 0.5 * seconds,
    "three quarters": lambda seconds, first: 0.75 * seconds,
    "more": lambda seconds, first: 1.3 * seconds,
    "double": lambda seconds, first: 2 * seconds,
    "all but the first": lambda seconds, first: seconds - first + 30e-6,
    "only the first": lambda seconds, first: first,
    "nothing of what is short": lambda seconds, first: seconds if seconds > 9e-3 else 1e-9,
}

"""A timer query whose answers are made up, and a clock that only such work moves."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from glnn.gl import Device

if TYPE_CHECKING:
    from typing_extensions import Self

Lie = Callable[[float, float], float]
PROFILING = ("profile", "timing", "clocks", "trace")
TICK = 1e-6  # seconds that pass whenever somebody looks at the clock


class FakeQuery:
    """The query of `device`: it reads `lie(seconds, first)` of the time that passed inside it.

    first: those that the first piece of work inside it took. The clock on the wall is its own.
    """

    def __init__(self, device: Device, lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lie = lie
        self.elapsed = 0
        self.now = self.start = 0.0
        self.first: float | None = None
        device.timer_query = self  # type: ignore[assignment]
        for module in ("gl.timer", *(f"profiling.{name}" for name in PROFILING)):
            monkeypatch.setattr(import_module(f"glnn.{module}"), "perf_counter", self.clock)

    def clock(self) -> float:
        self.now += TICK
        return self.now

    def __enter__(self) -> Self:
        self.first = None
        self.start = self.clock()
        return self

    def __exit__(self, *error: object) -> None:
        seconds = self.clock() - self.start
        self.elapsed = int(1e9 * self.lie(seconds, self.first or seconds))

    def wait(self, seconds: float) -> None:
        """Work that takes that long."""
        self.now += seconds
        if self.first is None:
            self.first = self.now - self.start


LIES: dict[str, Lie] = {
    "nothing": lambda seconds, first: 1e-9,
    "always the same": lambda seconds, first: 30e-6,
    "half": lambda seconds, first: 0.5 * seconds,
    "three quarters": lambda seconds, first: 0.75 * seconds,
    "more": lambda seconds, first: 1.3 * seconds,
    "double": lambda seconds, first: 2 * seconds,
    "all but the first": lambda seconds, first: seconds - first + 30e-6,
    "only the first": lambda seconds, first: first,
    "nothing of what is short": lambda seconds, first: seconds if seconds > 12e-3 else 1e-9,
}

"""Timed spans of work, and formatting of durations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, isfinite, log10
from time import perf_counter


@dataclass(frozen=True)
class Span:
    """A named piece of work: start and end by `time.perf_counter`, and the bytes moved."""

    name: str
    start: float
    end: float
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return self.end - self.start


class Spans(list[Span]):
    """A list of spans, in the order in which they ended."""

    @contextmanager
    def record(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Record a span for the code inside the context, unless it fails."""
        start = perf_counter()
        yield
        self.append(Span(name, start, perf_counter(), nbytes))


UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
"""Units of durations, and their seconds."""
MINUTES = 120.0  # seconds from which on a duration is said in minutes


def duration(seconds: float) -> str:
    """Return seconds as people read them, in three digits: 0.3 us, 1.24 ms, 12.4 s, 3 min 5 s."""
    if not isfinite(seconds):
        return f"{seconds} s"
    size = float(f"{abs(seconds):.3g}")
    if size >= MINUTES:
        minutes, rest = divmod(round(abs(seconds)), 60)
        return f"{'-' if seconds < 0 else ''}{minutes} min {rest} s"
    unit, name = next((one for one in UNITS if size >= one[0]), UNITS[-1 if size else 0])
    digits = max(0, 2 - floor(log10(size / unit))) if size else 0
    text = f"{seconds / unit:.{min(digits, 2)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"

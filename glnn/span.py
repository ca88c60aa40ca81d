"""When something was done, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True)
class Span:
    """What was done, from when to when in seconds of `time.perf_counter`, and the bytes moved."""

    name: str
    start: float
    end: float
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class Spans(list[Span]):
    """What was done, in the order in which it ended."""

    @contextmanager
    def of(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Note what is done inside, unless it fails."""
        start = perf_counter()
        yield
        self.append(Span(name, start, perf_counter(), nbytes))

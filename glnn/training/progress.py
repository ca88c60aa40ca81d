"""The progress bar of training, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from glnn.progress_bar import numbers_column, rich_bar, share_bar

INTERVAL = 0.25  # seconds between two updates: each reads from the device


class Bar(Protocol):
    """What shows how far training is."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        """Show an epoch, the `epoch`-th of `epochs`, of so many samples; some may be done."""

    def due(self) -> bool:
        """Whether it is time for `show`."""

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        """Show that so many samples of the epoch are done, and what is known of them."""


class _Hidden:
    """No bar."""

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        pass

    def due(self) -> bool:
        return False

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        pass


class _Shown:
    """A bar of rich's, which is drawn when it is told to and by no thread."""

    def __init__(self, drawn: Any) -> None:
        self._drawn, self._task = drawn, None
        self._next = self._began = 0.0
        self._before = 0

    def begin(self, epoch: int, epochs: int, samples: int, done: int) -> None:
        if self._task is not None:
            self._drawn.remove_task(self._task)
        described = f"epoch {epoch}/{epochs}"
        self._task = self._drawn.add_task(described, total=samples, completed=done, numbers="")
        self._drawn.refresh()
        self._before, self._began = done, perf_counter()
        self._next = self._began + INTERVAL

    def due(self) -> bool:
        return perf_counter() >= self._next

    def show(self, done: int, loss: float, accuracy: float | None) -> None:
        now = perf_counter()
        pace = (done - self._before) / max(now - self._began, 1e-9)
        right = "" if accuracy is None else f"accuracy {accuracy:.2%}  "
        numbers = f"loss {loss:.4f}  {right}{pace:,.0f} samples/s"
        self._drawn.update(self._task, completed=done, numbers=numbers)
        self._drawn.refresh()
        self._next = perf_counter() + INTERVAL


@contextmanager
def progress(shown: bool | None) -> Iterator[Bar]:
    """A bar that is gone at the end. shown: None is where standard error is a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield _Hidden()
        return
    from rich.progress import MofNCompleteColumn

    made = rich_bar(MofNCompleteColumn(), numbers_column(), prints=True)
    with made as drawn, share_bar(drawn):
        yield _Shown(drawn)

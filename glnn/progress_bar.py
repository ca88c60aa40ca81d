"""A bar on standard error for work that takes long: loading, planning, examining, compiling.

Parts of glnn report their work by `report_work`; `progress` turns the bar on. It is drawn on a
terminal only, by a thread of its own, once the work has taken DELAY seconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from glnn.errors import printable
from glnn.process import ProcessLock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
DELAY, INTERVAL = 1.0, 0.1  # seconds until work is shown, and between two looks at it
MOST = 40  # characters of what the work is done to


class Work:
    """Work under way. total: its number of parts, None where that is not known."""

    def __init__(self, doing: str, on: str, total: int | None) -> None:
        self.doing, self.on, self.total, self.done = doing, on, total, 0

    def advance(self) -> None:
        """Note that another part is done."""
        self.done += 1

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        """Yield each of `items`; each is done once the next is asked for."""
        for item in items:
            yield item
            self.advance()


class _Bar:
    """The work of this process, innermost last, and what draws it."""

    def __init__(self) -> None:
        self.wanted = False
        self.shared: list[Progress] = []
        """Bars that others have open, in which work gets a row."""
        self._work: list[Work] = []
        self._lock = ProcessLock()
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def shown(self) -> bool:
        """True where work is to be drawn."""
        return self.wanted and sys.stderr is not None and sys.stderr.isatty()

    def begin(self, work: Work) -> None:
        """Draw `work` from now on, if it takes long."""
        with self._lock:
            work.on = work.on or (self._work[-1].on if self._work else "")
            self._work.append(work)
            if len(self._work) == 1:
                self._ended = threading.Event()
                self._thread = threading.Thread(target=self._draw, args=(self._ended,), daemon=True)
                self._thread.start()

    def end(self, work: Work) -> None:
        """Draw `work` no more; return once the bar is gone, if it was the last."""
        with self._lock:
            self._work.remove(work)
            if self._work or self._ended is None or self._thread is None:
                return
            self._ended.set()
            thread = self._thread
        thread.join()

    def _draw(self, ended: threading.Event) -> None:
        """Draw the innermost work until `ended`."""
        if ended.wait(DELAY):
            return
        own = None if self.shared else _rich_bar()
        bar = self.shared[-1] if own is None else own
        if own is not None:
            own.start()
        drawn: tuple[Work, TaskID] | None = None
        try:
            while True:
                for work in self._work[-1:]:
                    if drawn is None or drawn[0] is not work:
                        if drawn is not None:
                            bar.remove_task(drawn[1])
                        text = f"{work.doing} {work.on}".rstrip()
                        drawn = work, bar.add_task(text, total=work.total, numbers="")
                    count = "" if work.total is None else f"{work.done} of {work.total}"
                    bar.update(drawn[1], completed=work.done, numbers=count)
                    bar.refresh()
                if ended.wait(INTERVAL):
                    return
        finally:
            if drawn is not None:
                bar.remove_task(drawn[1])
            if own is not None:
                own.stop()


_BAR = _Bar()
_UNSEEN = Work("", "", None)


def progress(shown: bool = True) -> None:
    """Show a bar for work of glnn's that takes more than a second, or no longer.

    It says what is planned, examined and compiled and how much of it is done, on standard error,
    and is gone at the end; there is none where standard error is no terminal.
    """
    _BAR.wanted = bool(shown)


@contextmanager
def report_work(doing: str, on: str = "", total: int | None = None) -> Iterator[Work]:
    """Report what is done inside. Costs next to nothing where no bar is shown.

    doing: a verb, as in `planning`. on: what it is done to; empty where work around it says so.
    total: its number of parts, which the caller counts by `advance`.
    """
    if not _BAR.shown:
        yield _UNSEEN
        return
    name = " ".join(printable(on).split())
    work = Work(doing, name if len(name) <= MOST else f"{name[: MOST - 3]}...", total)
    _BAR.begin(work)
    try:
        yield work
    finally:
        _BAR.end(work)


@contextmanager
def share_bar(bar: Progress) -> Iterator[None]:
    """Give work a row in `bar`, which is open, for as long as this lasts: two bars overlap."""
    _BAR.shared.append(bar)
    try:
        yield
    finally:
        _BAR.shared.remove(bar)


def _rich_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True, markup=False, emoji=False),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,  # which may be a file
    )

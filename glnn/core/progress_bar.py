"""A bar for work that takes long: loading, planning, examining, compiling.

Parts of glnn report their work by `report_work`; `progress` turns the bar on. It is drawn on
standard error, where that is a terminal, or below the cell of a notebook, by a thread of its own,
once the work has taken DELAY seconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from glnn.core.process import process_lock
from glnn.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

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
        self._lock = process_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def _forget(self) -> None:
        """Forget the work and the bars of the process that this one was forked from."""
        self._work, self.shared = [], []
        self._ended = self._thread = None

    @property
    def shown(self) -> bool:
        """True where work is to be drawn."""
        return self.wanted and can_draw()

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
            if work not in self._work:  # it began before a fork
                return
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
        row = _Row()
        try:
            while True:
                with self._lock:  # so that no bar ends to be shared meanwhile
                    for work in self._work[-1:]:
                        row.show(work, self.shared[-1] if self.shared else None)
                if ended.wait(INTERVAL):
                    return
        finally:
            with self._lock:
                row.end(self.shared)

    def unshare(self, bar: Progress) -> None:
        """Draw nothing in `bar` any more."""
        with self._lock:
            if bar in self.shared:
                self.shared.remove(bar)


class _Row:
    """The row of work in a bar: in one that others share, or in a bar of its own."""

    def __init__(self) -> None:
        self._own: Progress | None = None
        self._drawn: tuple[Work, Progress, TaskID] | None = None

    def show(self, work: Work, shared: Progress | None) -> None:
        """Draw `work` in the bar `shared`, or in an own one where that is None."""
        if shared is not None and self._own is not None:
            self._own.stop()  # two bars overlap
            self._own = self._drawn = None
        bar = shared or self._own
        if bar is None:
            from rich.progress import TimeElapsedColumn

            self._own = bar = rich_bar(numbers_column(), TimeElapsedColumn())
            bar.start()
        if self._drawn is not None and self._drawn[:2] != (work, bar):
            if self._drawn[1] is bar:
                bar.remove_task(self._drawn[2])
            self._drawn = None
        if self._drawn is None:
            text = f"{work.doing} {work.on}".rstrip()
            self._drawn = work, bar, bar.add_task(text, total=work.total, numbers="")
        count = "" if work.total is None else f"{work.done} of {work.total}"
        bar.update(self._drawn[2], completed=work.done, numbers=count)
        bar.refresh()

    def end(self, shared: list[Progress]) -> None:
        """Draw it no more; a bar that is not in `shared` any longer is left as it is."""
        if self._drawn is not None and self._drawn[1] in (self._own, *shared):
            self._drawn[1].remove_task(self._drawn[2])
        if self._own is not None:
            self._own.stop()


_BAR = _Bar()
_UNSEEN = Work("", "", None)


def progress(shown: bool = True) -> None:
    """Show a bar for work of glnn's that takes more than a second, or no longer.

    It says what is planned, examined and compiled and how much of it is done, on standard error or
    below the cell of a notebook, and is gone at the end; there is none where standard error is no
    terminal.
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
        _BAR.unshare(bar)


def can_draw() -> bool:
    """Return whether a bar would be seen: on a terminal, or in a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or in_notebook()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, whose cells show HTML."""
    if "IPython" not in sys.modules:  # which is faster to see than it is to import rich
        return False
    from rich.console import Console

    return Console().is_jupyter


def rich_bar(
    *columns: ProgressColumn, hidden: bool = False, refreshed: bool = False, prints: bool = False
) -> Progress:
    """Return a bar, on standard error or below the cell of a notebook: a text, it, and `columns`.

    It is gone at the end. hidden: whether nothing is drawn. refreshed: whether it is drawn anew by
    itself. prints: whether what is printed meanwhile goes above it; standard output may be a file.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    kind: type[Progress] = Progress
    if in_notebook():
        kind = import_module("glnn.core.notebook_bar").NotebookBar  # which imports rich
    return kind(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        console=Console(stderr=True, markup=False, emoji=False),
        transient=True,
        auto_refresh=refreshed,
        disable=hidden,
        redirect_stdout=prints,
    )


def numbers_column() -> ProgressColumn:
    """Return the column of a bar that shows the text `numbers` of its rows."""
    from rich.progress import TextColumn

    return TextColumn("{task.fields[numbers]}", markup=False)

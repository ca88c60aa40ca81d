"""A progress bar for long work: loading, planning, examining, compiling.

Parts of glnn report their work by `report_work`; `progress` turns the bar on. A thread draws it
once the work has taken DELAY seconds: on standard error, if that is a terminal, or below the cell
of a notebook.
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
DELAY, INTERVAL = 1.0, 0.1  # seconds until work is shown, and between updates
MOST = 40  # characters of `Work.on`


class Work:
    """Work in progress. total: its number of parts; None where unknown."""

    def __init__(self, doing: str, on: str, total: int | None) -> None:
        self.doing, self.on, self.total, self.done = doing, on, total, 0

    def advance(self) -> None:
        """Note that another part is done."""
        self.done += 1

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`, counting each as done when the next is requested."""
        for item in items:
            yield item
            self.advance()


class _Bar:
    """The work of this process, innermost last, and the thread that draws it."""

    def __init__(self) -> None:
        self.wanted = False
        self.shared: list[Progress] = []
        """Open bars of other code, in which work gets a row."""
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
        """Add `work`; it is drawn if it takes long."""
        with self._lock:
            work.on = work.on or (self._work[-1].on if self._work else "")
            self._work.append(work)
            if len(self._work) == 1:
                self._ended = threading.Event()
                self._thread = threading.Thread(target=self._draw, args=(self._ended,), daemon=True)
                self._thread.start()

    def end(self, work: Work) -> None:
        """Remove `work`; after the last work, wait until the bar is removed."""
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
                with self._lock:  # so that no shared bar is closed meanwhile
                    for work in self._work[-1:]:
                        row.show(work, self.shared[-1] if self.shared else None)
                if ended.wait(INTERVAL):
                    return
        finally:
            with self._lock:
                row.end(self.shared)

    def unshare(self, bar: Progress) -> None:
        """Stop drawing in `bar`."""
        with self._lock:
            if bar in self.shared:
                self.shared.remove(bar)


class _Row:
    """The row of work in a bar: a shared one, or its own bar."""

    def __init__(self) -> None:
        self._own_bar: Progress | None = None
        self._drawn: tuple[Work, Progress, TaskID] | None = None

    def show(self, work: Work, shared: Progress | None) -> None:
        """Draw `work` in the bar `shared`, or in its own bar where that is None."""
        if shared is not None and self._own_bar is not None:
            self._own_bar.stop()  # two open bars would overlap
            self._own_bar = self._drawn = None
        bar = shared or self._own_bar
        if bar is None:
            from rich.progress import TimeElapsedColumn

            self._own_bar = bar = rich_bar(numbers_column(), TimeElapsedColumn())
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
        """Remove the row, unless its bar is no longer in `shared`, and close its own bar."""
        if self._drawn is not None and self._drawn[1] in (self._own_bar, *shared):
            self._drawn[1].remove_task(self._drawn[2])
        if self._own_bar is not None:
            self._own_bar.stop()


_BAR = _Bar()
_HIDDEN_WORK = Work("", "", None)


def progress(shown: bool = True) -> None:
    """Turn the progress bar on or off.

    The bar shows what glnn loads, plans, examines or compiles, and how much of it is done, where
    that takes more than a second: on standard error, if that is a terminal, or below the cell of a
    notebook. It disappears at the end.
    """
    _BAR.wanted = bool(shown)


@contextmanager
def report_work(doing: str, on: str = "", total: int | None = None) -> Iterator[Work]:
    """Report the work inside the context. It costs almost nothing where no bar is shown.

    doing: the verb, as `planning`. on: its object; empty for the object of the enclosing work.
    total: the number of its parts, which the caller counts by `advance`.
    """
    if not _BAR.shown:
        yield _HIDDEN_WORK
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
    """Draw work in the open bar `bar` inside the context, as two open bars would overlap."""
    _BAR.shared.append(bar)
    try:
        yield
    finally:
        _BAR.unshare(bar)


def can_draw() -> bool:
    """Return True where a bar is visible: on a terminal, or in a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or in_notebook()


def in_notebook() -> bool:
    """Return True where this process is the kernel of a notebook, whose cells show HTML."""
    if "IPython" not in sys.modules:  # avoids the import of rich
        return False
    from rich.console import Console

    return Console().is_jupyter


def rich_bar(
    *columns: ProgressColumn, hidden: bool = False, refreshed: bool = False, prints: bool = False
) -> Progress:
    """Return a bar, on standard error or below the cell of a notebook: a text, bar and `columns`.

    It disappears at the end. hidden: draw nothing. refreshed: refresh it automatically. prints:
    redirect standard output to print above the bar; do not where it is a file.
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

"""Text, tables and progress bars on the terminal, as wide as it is.

Numbers are never cut. In a table that is too wide, texts are folded and the least important columns
are left out, which a line below it says. Nothing is folded or left out where the output is no
terminal, or with `--wide`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import floor, inf, isfinite, log10

import rich.table
import rich_click as click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, Task, TimeRemainingColumn
from rich.text import Text

from glnn.core.process import readable_bytes
from glnn.core.progress_bar import rich_bar, share_bar
from glnn.errors import printable

GAP = 2  # columns of the terminal between two of a table
NOTHING = ("", "-")  # cells that say nothing


@dataclass(frozen=True)
class Column:
    """A column of a table.

    rank: of a table that is too wide, the columns of the greatest rank are left out first, all of
    one rank together; those of rank 0 stay. least: the least width to fold texts to; None to fold
    none. right: whether it is aligned to the right.
    """

    head: str
    rank: int = 0
    least: int | None = 16
    right: bool = False


def figures(head: str, rank: int = 0) -> Column:
    """Make a column of numbers."""
    return Column(head, rank, None, right=True)


@dataclass(frozen=True)
class Table:
    """Rows of cells. split: whether a table that is too wide becomes several, one below another."""

    columns: tuple[Column, ...]
    split: bool = False
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Add a row, whose last cells are empty where there are fewer than columns."""
        empty = ("",) * (len(self.columns) - len(cells))
        self.rows.append((*(printable(cell).replace("\n", "\\n") for cell in cells), *empty))

    def part(self, columns: Sequence[int]) -> Table:
        """Return the table with only `columns`, by their numbers."""
        rows = [tuple(row[i] for i in columns) for row in self.rows]
        return Table(tuple(self.columns[i] for i in columns), self.split, rows)

    def natural(self) -> list[int]:
        """Return the width of each column where only heads are folded."""
        return [
            max(cell_len(text) for text in (*head.head.split("\n"), *(row[i] for row in self.rows)))
            for i, head in enumerate(self.columns)
        ]

    def least(self) -> list[int]:
        """Return the least width of each column, where all is folded that may be."""
        widths = zip(self.columns, self.natural(), strict=True)
        return [n if c.least is None else min(n, c.least) for c, n in widths]

    def with_broken_heads(self) -> Table:
        """Return the table with the words of heads below one another, and no other cell folded."""
        columns = (
            c if c.least is not None else replace(c, head=c.head.replace(" ", "\n"))
            for c in self.columns
        )
        return replace(self, columns=tuple(columns))


def total(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have these widths."""
    return sum(widths) + GAP * (len(widths) - 1)


class Screen:
    """Standard output.

    width: of the terminal or, without one, by COLUMNS; None where lines may have any length.
    """

    def __init__(self, wide: bool = False) -> None:
        columns = os.environ.get("COLUMNS", "")
        limited = sys.stdout.isatty() or (columns.isascii() and columns.isdigit())
        self.width = Console().width if limited and not wide else None

    def say(self, text: str) -> None:
        """Print `text`, lines that are too long broken between words."""
        self._console(self.width or 1 + cell_len(text)).print(printable(text))

    def show(self, table: Table, title: str = "") -> None:
        """Print `table` below its title, and which columns were left out; an empty line follows."""
        if title:
            self.say(title)
        for part in _parts(table, self.width):
            shown, left_out = _fitting(part, self.width)
            self._print(shown)
            if left_out:
                self.say(f"not shown: {', '.join(left_out)}; --wide shows all columns")
            self.say("")

    def _print(self, table: Table) -> None:
        """Print `table`, whose columns of rank 0 need no more than the width, if they can."""
        widths, natural = table.natural(), table.natural()
        if self.width is not None and total(widths) > self.width:
            widths = table.least()
            while total(widths) < self.width and widths != natural:
                narrow = [i for i, width in enumerate(widths) if width < natural[i]]
                widths[min(narrow, key=lambda i: widths[i])] += 1
        drawn = rich.table.Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
        )
        for column, width in zip(table.columns, widths, strict=True):
            drawn.add_column(
                column.head,
                justify="right" if column.right else "left",
                width=width,
                no_wrap=column.least is None and "\n" not in column.head,
                overflow="fold",
                vertical="top",
            )
        for row in table.rows:
            drawn.add_row(*row)
        self._console(total(widths)).print(drawn)

    def _console(self, width: int) -> Console:
        return Console(width=width, highlight=False, markup=False, emoji=False)


def _parts(table: Table, width: int | None) -> list[Table]:
    """Split `table` where it is too wide and may be split; each part repeats the first column."""
    first, *others = table.natural()
    if width is None or not table.split or total([first, *others]) <= width:
        return [table]
    count = max(1, (width - first) // (GAP + max(others)))
    starts = range(1, len(table.columns), count)
    ends = (min(start + count, len(table.columns)) for start in starts)
    return [table.part([0, *range(start, end)]) for start, end in zip(starts, ends, strict=True)]


def _fitting(table: Table, width: int | None) -> tuple[Table, list[str]]:
    """Return the table without the columns that do not fit, and the heads of these."""
    if width is None or total(table.natural()) <= width:
        return table, []
    heads = [column.head for column in table.columns]
    broken = table.with_broken_heads()
    ranks = [
        inf if column.rank and all(row[i] in NOTHING for row in table.rows) else column.rank
        for i, column in enumerate(table.columns)
    ]
    columns = list(range(len(heads)))
    while total(broken.part(columns).least()) > width and any(ranks[i] for i in columns):
        last = max(ranks[i] for i in columns)
        columns = [i for i in columns if ranks[i] < last]
    return broken.part(columns), [head for i, head in enumerate(heads) if i not in columns]


class _Count(MofNCompleteColumn):
    """The column of a progress bar that shows how many parts of all are done."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


@contextmanager
def progress(shown: bool = True) -> Iterator[Progress]:
    """Make a progress bar on standard error, drawn only on a terminal."""
    hidden = not (shown and sys.stderr.isatty())
    bar = rich_bar(_Count(), TimeRemainingColumn(), hidden=hidden, refreshed=True)
    with bar, share_bar(bar):
        yield bar


def say(message: str) -> None:
    """Print `message`, which is no result, to standard error."""
    click.echo(f"glnn: {printable(message)}", err=True)


class BarHandler(logging.Handler):
    """A log handler that prints to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            seconds, part = record.relativeCreated / 1e3, record.name.removeprefix("glnn.")
            say(f"{seconds:.3f} s {part}: {record.getMessage()}")
        except Exception:  # as logging's handlers do: a message ends nothing
            self.handleError(record)


def say_logged(level: int) -> Callable[[], None]:
    """Print glnn's log records of `level` or above; call the returned function to end it."""
    logger, handler = logging.getLogger("glnn"), BarHandler(level)
    former = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)

    def end() -> None:
        logger.removeHandler(handler)
        logger.setLevel(former)

    return end


def number(value: float | None) -> str:
    """Format a number with three significant digits, or all before the point; - for None."""
    if value is None:
        return "-"
    if not value or not isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")  # 0.9996 has one digit before the point
    return f"{value:.{max(0, 2 - floor(log10(abs(rounded))))}f}"


def size(nbytes: int | None) -> str:
    """Format bytes for people; a dash for None."""
    return "-" if nbytes is None else readable_bytes(nbytes)

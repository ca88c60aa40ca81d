"""Tables and progress bars on the terminal."""

from __future__ import annotations

import sys
from typing import Any

import rich_click as click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from glnn.errors import printable

WIDE = 200  # columns, where the output is no terminal and nothing should be folded


class Screen(Console):
    """A console that prints texts as they are: names are no markup, and command no terminal."""

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(printable(text), **{**how, "markup": False, "emoji": False})


def console() -> Console:
    """Standard output, of a width that folds nothing when it is no terminal."""
    return Screen(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def say(message: str) -> None:
    """Print `message` to standard error, as all that is no result."""
    click.echo(f"glnn: {printable(message)}", err=True)


def table(title: str | None, *columns: str) -> Table:
    """A table; a column whose name begins with `>` is right-aligned."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left")
    return made


def progress(shown: bool = True) -> Progress:
    """A progress bar on standard error, drawn only on a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    )


def number(value: float | None, digits: int = 3) -> str:
    """A number as people read it; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def size(nbytes: int | None) -> str:
    """Bytes as people read them; a dash where nobody knows."""
    if nbytes is None:
        return "-"
    if nbytes < 2**20:
        return f"{nbytes} B" if nbytes < 2**10 else f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes / 2**20:.1f} MiB"

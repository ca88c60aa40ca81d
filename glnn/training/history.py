"""The history of a training, epoch by epoch: a table, JSON, a plot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from glnn.core import html
from glnn.core.fileio import atomic_write
from glnn.errors import GlnnError, ModelError, extra, fault, shown

WHOLE = ("epoch", "step")
"""Columns of integers; the others are floats, those of MISSING or None."""
MISSING = ("accuracy", "validation_loss", "validation_accuracy")
FORMATS = {
    "epoch": "d",
    "step": "d",
    "accuracy": ".2%",
    "validation_accuracy": ".2%",
    "learning_rate": ".3g",
    "seconds": ".2f",
}
"""The formats of a table's columns; four digits where there is none."""


@dataclass(frozen=True)
class Row:
    """The metrics of one epoch."""

    epoch: int
    """The epoch's number, from 1."""
    step: int
    """Updates of the parameters until its end, those of earlier epochs too."""
    loss: float
    """The mean of the loss over its samples, each as the parameters were at its step."""
    accuracy: float | None
    """The part of its samples that were classified right; None where the loss has no classes."""
    validation_loss: float | None
    """The mean of the loss over the validation data at its end; None where there is none."""
    validation_accuracy: float | None
    """The part of the validation data that is classified right at its end."""
    learning_rate: float
    """The learning rate of the next step."""
    seconds: float
    """The time that the epoch took, validation included."""


NAMES = tuple(field.name for field in fields(Row))


@dataclass(frozen=True)
class History:
    """The epochs that were trained, in order."""

    rows: tuple[Row, ...] = ()
    """The metrics of each epoch."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def column(self, name: str) -> list[Any]:
        """Return the values of all epochs for `name`, as `loss`.

        Raises GlnnError for an unknown name.
        """
        if name not in NAMES:
            raise GlnnError(f"a column must be one of {', '.join(NAMES)}, got {shown(name)}")
        return [getattr(row, name) for row in self.rows]

    def __str__(self) -> str:
        """Format a line for each epoch, without columns that are empty."""
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in table
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, *rows = self._table()
        return html.table(heads, rows, numbers=range(len(heads)))

    def _table(self) -> list[list[str]]:
        """Return the heads of the columns that are not empty, and the cells of each epoch."""
        named = [n for n in NAMES if n not in MISSING or any(v is not None for v in self.column(n))]
        heads = [name.replace("_", " ") for name in named]
        return [heads, *([_cell(name, getattr(row, name)) for name in named] for row in self.rows)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return a dict for each epoch, of plain numbers, None where there is none."""
        return [asdict(row) for row in self.rows]

    @classmethod
    def from_json(cls, document: object) -> History:
        """Make a history of what `to_json` returned. Raises ModelError for anything else."""
        if not isinstance(document, Sequence) or not all(map(_is_row, document)):
            raise ModelError(f"a history is a list of {', '.join(NAMES)}, got {shown(document)}")
        return cls(tuple(Row(**row) for row in document))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw loss and accuracy over the epochs into the file `path`, as .png, .svg or .pdf.

        Raises GlnnError where matplotlib is not installed, there is no epoch, or the file cannot
        be written.
        """
        if not self.rows:
            raise GlnnError("a plot needs an epoch at least, got none")
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise GlnnError(f"a plot needs matplotlib: {extra('bench')}") from None
        panels = [("loss", "validation_loss"), ("accuracy", "validation_accuracy")]
        panels = [names for names in panels if _has(self, names)]
        figure = Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
        for axes, names in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            for name, label in zip(names, ("training", "validation")):
                if _has(self, (name,)):
                    axes.plot(self.column("epoch"), self.column(name), marker=".", label=label)
            axes.set_xlabel("epoch")
            axes.set_ylabel(names[0])
            axes.legend()
        kind = Path(path).suffix.removeprefix(".").lower() or "png"
        try:
            with atomic_write(path) as stream:
                figure.savefig(stream, format=kind)
        except (OSError, ValueError) as error:
            raise GlnnError(f"{os.fspath(path)}: cannot be written: {fault(error)}") from None


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return format(value, FORMATS.get(name, ".4f") if isfinite(value) else "")


def _has(history: History, names: Sequence[str]) -> bool:
    """Return True where an epoch has a number for one of `names`."""
    return any(value is not None for name in names for value in history.column(name))


def _is_row(document: object) -> bool:
    if not isinstance(document, Mapping) or set(document) != set(NAMES):
        return False
    return all(
        type(value) is (int if name in WHOLE else float) or (value is None and name in MISSING)
        for name, value in document.items()
    )

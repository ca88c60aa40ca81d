"""What a model gives that is no classes: how large it is, and between which numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.tensor_info import show
from glnn.types import Array, Shape

MOST_NOTES = 10


@dataclass(frozen=True)
class Output:
    """What a run gave under a name."""

    name: str
    """The output's."""
    shape: Shape
    """Of its array."""
    type: str
    """As NumPy calls it."""
    least: float | None
    """None where there are no numbers, as for the next two."""
    mean: float | None
    """Of all numbers."""
    greatest: float | None
    """Of all numbers."""

    @classmethod
    def of(cls, name: str, array: Array) -> Output:
        """What `array` is."""
        summary = Summary(name)
        summary.add(array)
        return summary.output


@dataclass
class Summary:
    """What runs gave under a name, one after the other."""

    name: str
    """The output's."""
    shape: Shape | None = None
    """Of all arrays behind one another; of the last where they do not fit."""
    type: str = ""
    """As NumPy calls it."""
    least: float | None = None
    """None as long as there are no numbers."""
    greatest: float | None = None
    """None as long as there are no numbers."""
    total: float = 0.0
    """Of all numbers."""
    count: int = 0
    """Of them."""

    def add(self, array: Array) -> None:
        """Take what another run gave."""
        shape, known = tuple(array.shape), self.shape
        if known is not None and shape and known[1:] == shape[1:]:
            shape = (known[0] + shape[0], *shape[1:])
        self.shape, self.type = shape, array.dtype.name
        if not array.size or array.dtype.kind not in "fiub":
            return
        wide = array.astype(np.float64)
        least, greatest = float(wide.min()), float(wide.max())
        # NumPy's, so that one that is no number stays so.
        self.least = least if self.least is None else float(np.minimum(self.least, least))
        self.greatest = (
            greatest if self.greatest is None else float(np.maximum(self.greatest, greatest))
        )
        with np.errstate(all="ignore"):
            self.total += float(wide.sum())
        self.count += wide.size

    @property
    def output(self) -> Output:
        """All of it."""
        mean = self.total / self.count if self.count else None
        shape = () if self.shape is None else self.shape
        return Output(self.name, shape, self.type, self.least, mean, self.greatest)


@dataclass(frozen=True)
class Outputs:
    """What one run gave."""

    outputs: tuple[Output, ...]
    """In the model's order."""
    notes: tuple[str, ...] = ()
    """What was done to the samples."""

    @classmethod
    def of(cls, results: Mapping[str, Array], notes: Sequence[str] = ()) -> Outputs:
        """What a run gave, by the outputs' names."""
        found = tuple(Output.of(name, np.asarray(array)) for name, array in results.items())
        return cls(found, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        return {"outputs": [asdict(one) for one in self.outputs], "notes": list(self.notes)}

    def show(self, out: Screen, where: str) -> None:
        """Print a row for each."""
        show_notes(out, self.notes)
        show_outputs(out, self.outputs)
        out.say(f"on {where}")


def show_notes(out: Screen, notes: Sequence[str]) -> None:
    """Print the first of what is said of samples."""
    for note in notes[:MOST_NOTES]:
        out.say(note)
    if len(notes) > MOST_NOTES:
        out.say(f"... and {len(notes) - MOST_NOTES} more notes (all of them with --json)")


def show_outputs(out: Screen, outputs: Sequence[Output]) -> None:
    """Print a row for each."""
    numbers = (figures("least"), figures("mean", 1), figures("greatest"))
    rows = Table((Column("output"), Column("shape"), Column("type", 2), *numbers))
    for one in outputs:
        values = (number(n) for n in (one.least, one.mean, one.greatest))
        rows.add(one.name, show(one.shape), one.type, *values)
    out.show(rows)

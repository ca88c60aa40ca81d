"""The documents' own tables and figures, as TOML, and how ours are set beside them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAMES = ("rovder_2017", "gronqvist", "cheng")
"""The documents that measure single ops."""
NETWORKS = ("rovder_2019", "cronin_2018")
"""Those that measure networks and their layers."""
Ours = Mapping[tuple[str, str], float]
"""What was measured here, higher being better, by the names of row and column."""


@dataclass(frozen=True)
class Figure:
    """A table or a figure of a document.

    rows: the document's numbers by row and column; none where the figure is a graph without them.
    rows_here: the rows to measure. columns_here: the sizes to measure them at. claims: what the
    text says of the rows: one is so many times as fast as another.
    """

    key: str
    title: str
    source: str
    device: str
    unit: str
    rows: Mapping[str, Mapping[str, float]]
    rows_here: tuple[str, ...]
    columns_here: tuple[str, ...]
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Claim:
    """`row` is `least` to `most` times as fast as `over`, at `column` or at every one."""

    row: str
    over: str
    least: float
    most: float = float("inf")
    column: str | None = None
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.most == float("inf"):
            return f"{self.row} is faster than {self.over}"
        span = f"{self.least:g}" if self.least == self.most else f"{self.least:g} to {self.most:g}"
        place = f" at {self.column}" if self.column else ""
        return f"{self.row} is {span} times as fast as {self.over}{place}"

    def here(self, ours: Ours) -> tuple[float, float] | None:
        """The least and the greatest ratio that was measured here; None where none was."""
        columns = {column for _, column in ours if self.column in (None, column)}
        ratios = [
            ours[self.row, column] / ours[self.over, column]
            for column in columns
            if (self.row, column) in ours and (self.over, column) in ours
        ]
        return (min(ratios), max(ratios)) if ratios else None


def figures(name: str) -> Iterator[Figure]:
    """The tables and figures of the document called `name`."""
    text = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text("utf-8"))
    for key, table in text.items():
        yield _figure(key, table)


def figure(name: str, key: str) -> Figure:
    """The table or figure `key` of the document called `name`."""
    return next(found for found in figures(name) if found.key == key)


def _figure(key: str, table: Mapping[str, Any]) -> Figure:
    # Cheng counts n^3 operations a product: doubled, they are the others'.
    factor = 2.0 if table.get("flops") == "n^3" else 1.0
    rows = {
        row: {column: factor * float(value) for column, value in values.items()}
        for row, values in table.get("rows", {}).items()
    }
    columns = [str(c) for c in table.get("sizes", table.get("shapes", []))]
    columns = columns or list(dict.fromkeys(c for values in rows.values() for c in values))
    claims = list(_claims(table))
    here = [*table.get("kernels", table.get("variants", rows))]
    return Figure(
        key, table["title"], table["source"], table.get("device", ""), table.get("unit", ""),
        rows, tuple(here), tuple(columns), tuple(claims),
    )  # fmt: skip


def _claims(table: Mapping[str, Any]) -> Iterator[Claim]:
    for says in table.get("says", []):
        if "ratio" in says:
            ratio = says["ratio"]
            least, most = ratio if isinstance(ratio, list) else (ratio, ratio)
            column = str(says["size"]) if "size" in says else None
            yield Claim(says["row"], says["over"], least, most, column, says.get("text", ""))
    for winner, loser in table.get("faster", []):
        yield Claim(winner, loser, 1.0)
    if best := table.get("fastest"):
        for other in table.get("kernels", table.get("variants", [])):
            if other != best:
                yield Claim(best, other, 1.0)

"""The documents' own tables and figures, as TOML, and how ours are set beside them."""

from __future__ import annotations

import re
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
ALL = (*NAMES, *NETWORKS)
Ours = Mapping[tuple[str, str], float]
"""What was measured here by the names of row and column, higher being better unless a time."""


TIMES = ("s", "ms", "us", "ns", "10^9 cycles")
ALIKE = 1.25
"""What is within this factor of each other is about equal."""


def less_is_better(unit: str) -> bool:
    """Whether numbers of `unit` are times: then less of them is faster."""
    return unit.split(",")[0].strip() in TIMES


@dataclass(frozen=True)
class Figure:
    """A table or a figure of a document."""

    key: str
    """Its name in the document's TOML."""
    title: str
    """What it shows."""
    source: str
    """The document, and the table, figure or section."""
    device: str
    """What the document measured on."""
    unit: str
    """Of the document's numbers."""
    rows: Mapping[str, Mapping[str, float]]
    """The document's numbers by row and column; none where the figure is a graph without them."""
    rows_here: tuple[str, ...]
    """The rows to measure."""
    columns_here: tuple[str, ...]
    """The sizes to measure them at."""
    claims: tuple[Claim, ...] = ()
    """What the text says of the rows that numbers can answer: one is so many times another."""
    document: str = ""
    """The TOML's name."""
    command: str = ""
    """What measures it here, as it is typed; empty where nothing can."""
    reason: str = ""
    """Why it is not measured here, or only in part."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """The same for single rows and columns, by their names."""
    told: tuple[Told, ...] = ()
    """What else the text says."""
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Standard errors of the document's numbers, where it gives them."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Units of single columns, where they differ."""
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    """What is measured here in place of a row's device or library."""
    picture: bool = True
    """Whether its numbers over a row of them, drawn as speed, tell anything."""

    @property
    def measured(self) -> str:
        """What `command` writes is called so, `.json` behind it; empty without one."""
        return run_name(self.command)


@dataclass(frozen=True)
class About:
    """A document as a whole."""

    title: str
    """Who wrote what, and when."""
    left_out: str
    """Which of its tables and figures are none of measurements."""


@dataclass(frozen=True)
class Told:
    """What the text says in words."""

    text: str
    """Its sense."""
    reason: str = ""
    """Why nothing here answers it."""


@dataclass(frozen=True)
class Claim:
    """`row` is `least` to `most` times as fast as `over`, at `column` or at every one.

    Without `over` it is a number that has no unit, as a share or an error, that is said to be
    `least` to `most`.
    """

    row: str
    over: str
    least: float
    most: float = float("inf")
    column: str | None = None
    text: str = field(default="", compare=False)
    over_column: str | None = None
    """Where `over` stands, if not at `column`."""
    columns: tuple[str, ...] = ()
    """Those at which it is said, if not at every one."""
    reason: str = field(default="", compare=False)
    """Why nothing here answers it."""

    @property
    def alike(self) -> bool:
        """Whether both are said to be about equal."""
        return bool(self.over) and self.least < 1 < self.most < float("inf")

    def __str__(self) -> str:
        at = self.column or ", ".join(self.columns)
        place = f" {'in' if at == 'all' else 'at'} {at}" if at else ""
        span = f"{self.least:g}" if self.least == self.most else f"{self.least:g} to {self.most:g}"
        if not self.over:
            return f"{self.row} is {span}{place}"
        if self.alike:
            how = "about as fast as"
        elif self.most < float("inf"):
            how = f"{span} times as fast as"
        else:
            how = "faster than" if self.least == 1 else f"at least {self.least:g} times as fast as"
        if self.over_column:
            over = "" if self.over == self.row else f"{self.over} "
            return f"{self.row}{place} is {how} {over}at {self.over_column}"
        return f"{self.row} is {how} {self.over}{place}"

    def ratios(self, ours: Ours) -> list[float]:
        """What was measured here, one for each column that has both."""
        said = self.columns or tuple(dict.fromkeys(column for _, column in ours))
        columns = (self.column,) if self.column else said
        if not self.over:
            return [ours[self.row, column] for column in columns if (self.row, column) in ours]
        pairs = [
            ((self.row, column), (self.over, self.over_column or column)) for column in columns
        ]
        return [ours[a] / ours[b] for a, b in pairs if a in ours and b in ours]


def run_name(command: str) -> str:
    """A short name of a command: its document's, or the words behind `benchmarks.` or `glnn`.

    Options that take a number are left out.
    """
    command = re.sub(r"--\S+ [\d.]+( |$)", "", command)
    words = [word for word in command.split() if word not in ("python", "-m", "glnn")]
    named = [word for word in words if word in ALL]
    return named[0] if named else "_".join(re.sub("^benchmarks.|^--", "", word) for word in words)


def about(name: str) -> About:
    """What the document called `name` is."""
    text = _text(name)
    return About(text["document"], text["left_out"])


def figures(name: str) -> Iterator[Figure]:
    """The tables and figures of the document called `name`."""
    for key, table in _text(name).items():
        if isinstance(table, dict):
            yield _figure(name, key, table)


def _text(name: str) -> Mapping[str, Any]:
    text: Mapping[str, Any] = tomllib.loads(
        (Path(__file__).parent / f"{name}.toml").read_text("utf-8")
    )
    return text


def figure(name: str, key: str) -> Figure:
    """The table or figure `key` of the document called `name`."""
    return next(found for found in figures(name) if found.key == key)


def _figure(name: str, key: str, table: Mapping[str, Any]) -> Figure:
    # Cheng counts n^3 operations a product: doubled, they are the others'.
    factor = 2.0 if table.get("flops") == "n^3" else 1.0
    rows = {
        row: {column: factor * float(value) for column, value in values.items()}
        for row, values in table.get("rows", {}).items()
    }
    columns = [str(c) for c in table.get("sizes", table.get("shapes", []))]
    columns = columns or list(dict.fromkeys(c for values in rows.values() for c in values))
    here = [*table.get("kernels", table.get("variants", rows))]
    return Figure(
        key, table["title"], table["source"], table.get("device", ""), table.get("unit", ""),
        rows, tuple(here), tuple(columns), tuple(dict.fromkeys(_claims(table))), name,
        table.get("command", ""), table.get("reason", ""), table.get("reasons", {}),
        tuple(_told(table)), table.get("standard_error", {}), table.get("units", {}),
        table.get("stand_ins", {}), table.get("picture", True),
    )  # fmt: skip


def _claims(table: Mapping[str, Any]) -> Iterator[Claim]:
    for says in table.get("says", []):
        if "row" in says:
            yield _claim(says)
    for winner, loser in table.get("faster", []):
        yield Claim(winner, loser, 1.0)
    if best := table.get("fastest"):
        for other in table.get("kernels", table.get("variants", [])):
            if other != best:
                yield Claim(best, other, 1.0)
    if equal := table.get("alike"):
        for other in equal[1:]:
            yield Claim(equal[0], other, 1 / ALIKE, ALIKE)


def _claim(says: Mapping[str, Any]) -> Claim:
    """`ratio` or `number` is a number or the least and the most of it; `least` has no most."""
    span = says.get("ratio", says.get("number", [says.get("least", 1.0), float("inf")]))
    least, most = span if isinstance(span, list) else (span, span)
    column = str(says["size"]) if "size" in says else None
    over_column = str(says["over_size"]) if "over_size" in says else None
    over = says.get("over", "") if "number" in says else says.get("over", says["row"])
    return Claim(
        says["row"], over, least, most, column, says.get("text", ""), over_column,
        tuple(map(str, says.get("sizes", []))), says.get("reason", ""),
    )  # fmt: skip


def _told(table: Mapping[str, Any]) -> Iterator[Told]:
    for says in table.get("says", []):
        if "row" not in says:
            yield Told(says["text"], says.get("reason", ""))

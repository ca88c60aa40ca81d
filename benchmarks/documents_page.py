"""docs/documents.md: every table, figure and claim of the five documents, and what is seen here.

It is made of benchmarks/measured/*.json, which `python -m benchmarks.experiments` writes, and of
benchmarks/documents/*.toml. Two runs that have numbers of one figure are an error, and so is a row
without numbers or a reason; --strict makes one of what is not measured yet, too.

    python -m benchmarks.documents_page
    python -m benchmarks.documents_page --strict --no-plots
    python -m benchmarks.documents_page --measured mine/ --into mine.md
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from benchmarks import documents, documents_plots
from benchmarks.command import pyplot, run
from benchmarks.documents import Figure, less_is_better
from benchmarks.judging import (
    LATER,
    RULE,
    VERDICTS,
    Evidence,
    Json,
    Verdict,
    doubles,
    empty_rows,
    evidence,
    verdicts,
)
from benchmarks.tables import four_digits, markdown
from glnn.errors import GlnnError

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
PAGE = ROOT / "docs" / "documents.md"
HEAD = """\
# The documents, experiment by experiment

What the five documents measured, beside what is measured here. `python -m benchmarks.experiments`
runs every experiment, `python -m benchmarks.documents_page` writes this page of what they wrote
(`benchmarks/measured/*.json`). The documents measured other devices: read ratios between rows, not
between devices. In a table, the document's numbers and their unit stand in brackets behind ours; in
a picture, each side is drawn as speed over one of its own rows, on a logarithmic scale.

{device}

{rule}
"""


@dataclass(frozen=True)
class Part:
    """A figure and what is known of it."""

    figure: Figure
    """The document's."""
    evidence: Evidence
    """What was measured."""
    verdicts: tuple[Verdict, ...]
    """Of its claims."""

    @property
    def picture(self) -> str:
        """The name of its picture's file; empty where there is nothing to draw."""
        if not (self.figure.picture and documents_plots.drawable(self.evidence.entries)):
            return ""
        return f"{self.figure.document}_{self.figure.key}.svg"

    @property
    def measured(self) -> bool:
        """Whether a run has numbers of it, or answers."""
        return bool(self.evidence.entries or self.evidence.answers)

    @property
    def late(self) -> bool:
        """Whether it could be measured and is not, or not in full."""
        unseen = self.figure.command and self.figure.rows_here and not self.evidence.entries
        return bool(unseen) or any(verdict.holds == LATER for verdict in self.verdicts)

    @property
    def empty(self) -> list[str]:
        """The rows without numbers or reason of what is measured."""
        if not self.evidence.entries and self.figure.command:
            return []
        missing = empty_rows(self.figure, self.evidence)
        return [row for row, reason in missing.items() if not reason]


def parts(runs: Mapping[str, Json], name: str) -> Iterator[Part]:
    """Every table and figure of the document called `name`."""
    for figure in documents.figures(name):
        found = evidence(figure, runs.get(figure.measured, {}))
        yield Part(figure, found, tuple(verdicts(figure, found)))


def page(runs: Mapping[str, Json]) -> str:
    """The page of what the benchmarks wrote, by the names of their runs."""
    found = {name: list(parts(runs, name)) for name in documents.ALL}
    commands = {part.figure.measured for every in found.values() for part in every}
    text = HEAD.format(
        device=_devices([run for name, run in runs.items() if name in commands]), rule=RULE
    )
    heads = ["document", "tables and figures", *(f"claims: {verdict}" for verdict in VERDICTS)]
    rows: list[list[object]] = []
    for every in found.values():
        count = Counter(verdict.holds for part in every for verdict in part.verdicts)
        link = f"[{_short(every[0].figure)}](#{_anchor(_short(every[0].figure))})"
        rows.append([link, len(every), *(count[verdict] for verdict in VERDICTS)])
    total = [sum(int(str(row[i])) for row in rows) for i in range(1, len(heads))]
    text += markdown(heads, [*rows, ["all", *total]])
    return text + "".join(_document(name, every) for name, every in found.items())


def _devices(runs: list[Json]) -> str:
    """What `runs` were measured on."""
    keys = ("device", "version")
    found = dict.fromkeys(
        ", ".join(run[key] for key in keys) for run in runs if run.get("device", "none") != "none"
    )
    peak = max((run["peak_gflops"] for run in runs if "peak_gflops" in run), default=None)
    text = f"Here: {'; '.join(found) or 'nothing yet'}"
    return text + (
        f", which reaches {four_digits(peak)} GFLOP/s by benchmarks.roofline." if peak else "."
    )


def _document(name: str, every: list[Part]) -> str:
    about = documents.about(name)
    text = f"\n## {_short(every[0].figure)}\n\n{about.title}. Left out: {about.left_out}.\n"
    return text + "".join(_part(part) for part in every)


def _part(part: Part) -> str:
    figure = part.figure
    where = figure.source.removeprefix(_short(figure)).strip(", ")
    text = f"\n### {where[0].upper()}{where[1:]}\n\n{figure.title[0].upper()}{figure.title[1:]}"
    text += f"; {figure.device}.\n" if figure.device else ".\n"
    if figure.command:
        text += f"`{figure.command}`" + ("" if part.measured else f": {LATER}") + "\n"
    if figure.reason:
        text += f"Not measured here{', in part' if part.measured else ''}: {figure.reason}.\n"
    if table := _table(part):
        text += "\n" + table
    if figure.command and part.evidence.entries:
        text += _notes(part)
    if part.picture:
        text += f"\n![{figure.title}](documents/{part.picture})\n"
    if part.verdicts:
        told: list[list[object]] = [[v.says, v.here, v.holds] for v in part.verdicts]
        text += "\n" + markdown(["it says", "here", "holds"], told)
    return text


def _notes(part: Part) -> str:
    """What rows are here that the document had of others, and why some are empty."""
    notes = [f"- {row}: here {what}\n" for row, what in part.figure.stand_ins.items()]
    reasons = empty_rows(part.figure, part.evidence)
    notes += [f"- {row}: {reason or LATER}\n" for row, reason in reasons.items()]
    return "\n" + "".join(notes) if notes else ""


def _table(part: Part) -> str:
    """The document's numbers and ours, and their units."""
    figure, ours = part.figure, part.evidence.ours
    rows = list(dict.fromkeys([*figure.rows_here, *figure.rows]))
    if not figure.rows and not ours:
        return ""
    mine = {entry["column"]: str(entry["unit"]) for entry in part.evidence.entries}
    units = {column: figure.units.get(column, figure.unit) for column in figure.columns_here}
    only = next(iter(mine.values()), "") if len(set(mine.values())) == 1 else ""
    pairs = {column: _units(mine.get(column, only), units[column], figure) for column in units}
    several = len(set(pairs.values())) > 1
    heads = [
        f"{column}, {unit}" if several and unit not in ("", column) else column
        for column, unit in pairs.items()
    ]
    said = "" if several else next(iter(pairs.values()))
    shown = [*mine.values(), *(units.values() if figure.rows else ())]
    if any(less_is_better(unit) for unit in shown):
        said += ("; " if said else "") + "of times less is better"
    cells: list[list[object]] = [
        [row, *(_cell(figure, ours, row, column) for column in figure.columns_here)] for row in rows
    ]
    return (f"{said}:\n\n" if said else "") + markdown(["", *heads], cells)


def _units(mine: str, theirs: str, figure: Figure) -> str:
    """Of what is measured here and, in brackets, of the document's numbers."""
    if not figure.rows:
        return mine
    return f"{mine} ({theirs})" if mine and mine != theirs else mine or theirs


def _cell(figure: Figure, ours: Mapping[tuple[str, str], float], row: str, column: str) -> str:
    here = four_digits(ours.get((row, column)))
    theirs = figure.rows.get(row, {}).get(column)
    if theirs is None:
        return here
    error = figure.errors.get(row, {}).get(column)
    printed = f"{theirs:.0f}" if theirs >= 1e5 else f"{theirs:g}"
    return f"{here} ({printed}{'' if error is None else f' ± {error:g}'})"


def _short(figure: Figure) -> str:
    return figure.source.split(",")[0]


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def faults(runs: Mapping[str, Json], strict: bool) -> list[str]:
    """What is wrong with the page; with what is not measured yet if `strict`."""
    every = [part for name in documents.ALL for part in parts(runs, name)]
    found = list(doubles(runs, (part.figure for part in every)))
    for part in every:
        name = f"{part.figure.document} {part.figure.key}"
        found += [f"{name}: {row} has neither numbers nor a reason" for row in part.empty]
        if not part.figure.command and not part.figure.reason:
            found.append(f"{name}: neither a command nor a reason")
        if strict and part.late:
            claims = [verdict.says for verdict in part.verdicts if verdict.holds == LATER]
            found.append(f"{name}: {LATER}" + "".join(f"; {claim}" for claim in claims))
    return found


def read(folder: Path) -> dict[str, Json]:
    """What the benchmarks wrote into `folder`, by name. Raises GlnnError for no JSON."""
    runs: dict[str, Json] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            runs[path.stem] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise GlnnError(f"{path}: expected what a benchmark wrote, got {error}") from None
    return runs


def draw(folder: Path, runs: Mapping[str, Json]) -> None:
    """The page's pictures into `folder`, in place of those that are there.

    Raises GlnnError, and leaves those, where there is no matplotlib.
    """
    pyplot()
    for old in folder.glob("*.svg"):
        old.unlink()
    for name in documents.ALL:
        for part in parts(runs, name):
            if part.picture:
                documents_plots.draw(folder / part.picture, part.figure, part.evidence.entries)


@click.command(help=__doc__)
@click.option(
    "--measured",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=MEASURED,
    help="The folder of what the benchmarks wrote; benchmarks/measured unless given.",
)
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path), default=PAGE)
@click.option("--plots/--no-plots", default=True, help="Also draw, into documents/ beside it.")
@click.option("--strict", is_flag=True, help="Fail where anything is not measured yet.")
def main(measured: Path, into: Path, plots: bool, strict: bool) -> None:
    runs = read(measured)
    into.write_text(page(runs), "utf-8")
    print(f"wrote {into}")
    if plots:
        draw(into.parent / "documents", runs)
    if found := faults(runs, strict):
        raise GlnnError("; ".join(found))


if __name__ == "__main__":
    run(main)

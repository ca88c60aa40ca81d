"""Ours beside the documents': tables, claims and pictures of what a benchmark measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.command import pyplot, save
from benchmarks.documents import Figure, Ours, less_is_better
from benchmarks.tables import table
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

HOLDS = ("yes", "in part", "no")


def rows(figure: Figure, ours: Ours, unit: str) -> list[dict[str, Any]]:
    """Every number of `figure` and ours, which are `unit`, for the same kernel and size.

    Devices differ, so each is also given over its own side's first row: how many times as fast.
    """
    found: list[dict[str, Any]] = []
    first = next(iter(figure.rows), None) or next(iter(figure.rows_here), None)
    names = list(dict.fromkeys([*figure.rows_here, *figure.rows]))
    for row in names:
        for column in figure.columns_here:
            if not any((name, column) in ours for name in names):
                continue  # not measured at all
            theirs, here = figure.rows.get(row, {}).get(column), ours.get((row, column))
            base = figure.rows.get(str(first), {}).get(column)
            base_here = ours.get((str(first), column))
            theirs_unit = figure.units.get(column, figure.unit)
            found.append(
                {
                    "document": figure.document,
                    "figure": figure.key,
                    "row": row,
                    "column": column,
                    "unit": unit,
                    "theirs_unit": theirs_unit,
                    "theirs": theirs,
                    "ours": here,
                    "theirs_over_first": _over(theirs, base, theirs_unit),
                    "ours_over_first": _over(here, base_here, unit),
                }
            )
    return found


def _over(value: float | None, base: float | None, unit: str) -> float | None:
    if not value or not base:
        return None
    return base / value if less_is_better(unit) else value / base


def claims(figure: Figure, ours: Ours, unit: str = "") -> list[dict[str, Any]]:
    """What the document says of its rows, and the ratios measured here.

    `ours` are rates, higher being better, unless their `unit` is a time. The mean is geometric.
    """
    found: list[dict[str, Any]] = []
    for claim in figure.claims:
        timed = less_is_better(unit) and claim.over
        ratios = claim.ratios(
            {at: 1 / value for at, value in ours.items() if value} if timed else ours
        )
        mean = exp(fmean(log(ratio) for ratio in ratios)) if ratios and min(ratios) > 0 else None
        found.append(
            {
                "document": figure.document,
                "figure": figure.key,
                "claim": str(claim),
                "ours_least": min(ratios, default=None),
                "ours_mean": mean,
                "ours_greatest": max(ratios, default=None),
            }
        )
    return found


def answer(figure: Figure, text: str, here: str, holds: str) -> dict[str, Any]:
    """What was seen `here` of the sentence of `figure` that begins with `text`, for the claims.

    holds: "yes", "no" or "in part". Raises GlnnError where the figure says no such thing.
    """
    found = [told.text for told in figure.told if told.text.startswith(text)]
    if len(found) != 1 or holds not in HOLDS:
        raise GlnnError(
            f"answer: expected the beginning of one sentence of {figure.key} and one of "
            f"{', '.join(HOLDS)}, got {text!r} and {holds!r}"
        )
    entry = {"document": figure.document, "figure": figure.key, "claim": found[0]}
    return {**entry, "here": here, "holds": holds}


def show(out: Screen, figure: Figure, ours: Ours, unit: str) -> None:
    """Print `figure` with ours beside it: the document's number in brackets."""
    found = rows(figure, ours, unit)
    columns = dict.fromkeys(str(entry["column"]) for entry in found)
    units = ", ".join(dict.fromkeys(str(entry["theirs_unit"]) for entry in found))
    theirs = f" ({units} on the {figure.device})" if figure.rows else ""
    title = f"{figure.source}: {figure.title}\n{unit} here{theirs}"
    shown = table("", *(f">{column}" for column in columns))
    for row in dict.fromkeys(entry["row"] for entry in found):
        cells = [_cell(entry) for entry in found if entry["row"] == row]
        shown.add(row, *cells)
    out.show(shown, title)
    say(out, claims(figure, ours, unit))
    out.say("")


def say(out: Screen, found: Iterable[dict[str, Any]]) -> None:
    """Print a line for each of `claims`, and of what `answer` gives."""
    for entry in found:
        here = entry.get("here")
        if here is None:
            least, greatest = entry["ours_least"], entry["ours_greatest"]
            here = "not measured" if least is None else f"{least:.2f} to {greatest:.2f} times"
        out.say(f"  it says: {entry['claim']}; here: {here}")


def _cell(entry: dict[str, Any]) -> str:
    ours = "-" if entry["ours"] is None else f"{entry['ours']:.4g}"
    return ours if entry["theirs"] is None else f"{ours} ({entry['theirs']:g})"


def draw(folder: Path, drawn: Iterable[Figure], ours: Ours, unit: str) -> list[Path]:
    """A picture in `folder` for each of `drawn`. Raises GlnnError where it cannot be drawn."""
    paths: list[Path] = []
    for figure in drawn:
        paths.append(folder / f"{figure.key}.png")
        picture(paths[-1], figure, ours, unit)
    return paths


def picture(path: Path, figure: Figure, ours: Ours, unit: str) -> None:
    """`figure` drawn to `path`: ours as lines, the document's numbers dashed.

    Both are multiples of their side's first row where the document has numbers, since the devices
    differ.
    """
    relative = bool(figure.rows)
    found = rows(figure, ours, unit)
    canvas, axes = pyplot().subplots(figsize=(8, 5))
    for row in dict.fromkeys(entry["row"] for entry in found):
        for side, style in (("ours", "-"), ("theirs", "--")):
            key = f"{side}_over_first" if relative else side
            points = [
                (entry["column"], entry[key])
                for entry in found
                if entry["row"] == row and entry[key] is not None
            ]
            if points:
                label = row if side == "ours" else f"{row}, the document"
                axes.plot(*zip(*points, strict=True), style, marker="o", label=label)
    axes.set_title(f"{figure.source}\n{figure.title}", fontsize="small")
    axes.set_ylabel(f"{unit}, over the first row" if relative else unit)
    axes.set_yscale("log")
    if axes.has_data():
        axes.legend(fontsize="x-small")
    canvas.tight_layout()
    save(canvas, path)

"""Pictures of what a document measured beside what was measured here; the same again and again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.command import pyplot, save
from benchmarks.documents import Figure, less_is_better

Entries = Sequence[dict[str, Any]]
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "glnn",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
}
SIDES = (("ours", "here", "-", 0.9), ("theirs", "the document", "--", 0.45))
TICKS = (1, 2, 5)  # of each power of ten
LOW, HIGH = 0.9, 2.2
SHARE = "%"
"""What is drawn as it is, and not as speed over a row."""
MANY = 8  # columns whose names would lie over one another


def drawable(entries: Entries) -> bool:
    """Whether there are numbers of ours to draw, of more than one row."""
    ours = [entry for entry in _drawn(entries) if entry["ours"]]
    return len(ours) > 2 and len({entry["row"] for entry in ours}) > 1


def _drawn(entries: Entries) -> Entries:
    """Those of one unit: the one that the most are of; of several, the first."""
    units = [(entry["unit"], entry["theirs_unit"]) for entry in entries if entry["ours"]]
    kept = max(dict.fromkeys(units), key=units.count, default=None)
    return [entry for entry in entries if (entry["unit"], entry["theirs_unit"]) == kept]


def _base(entries: Entries) -> str:
    """The row that both sides are drawn over: the first that has all, or most, of them."""
    rows = dict.fromkeys(str(entry["row"]) for entry in entries)

    def known(row: str) -> int:
        mine = [entry for entry in entries if entry["row"] == row]
        return sum(bool(entry["ours"]) + bool(entry["theirs"]) for entry in mine)

    return max(rows, key=known)


def _values(entries: Entries, side: str) -> dict[tuple[str, str], float]:
    """By row and column, as speed over the first row."""
    base = _base(entries)
    below = {entry["column"]: entry[side] for entry in entries if entry["row"] == base}
    found: dict[tuple[str, str], float] = {}
    for entry in entries:
        value, under = entry[side], below[entry["column"]]
        if value and under:
            less = less_is_better(entry["unit" if side == "ours" else "theirs_unit"])
            found[entry["row"], entry["column"]] = under / value if less else value / under
    return found


def draw(path: Path, figure: Figure, entries: Entries) -> None:
    """`figure` to the .svg file `path`. Raises GlnnError where it cannot be drawn."""
    entries = _drawn(entries)
    plot, ticker = pyplot(), import_module("matplotlib.ticker")
    columns = list(dict.fromkeys(str(e["column"]) for e in entries))
    with plot.rc_context(SETTINGS):
        canvas, axes = plot.subplots(figsize=(7, 3.6))
        by_size = len(columns) > 2 and all(c.replace(".", "").isdecimal() for c in columns)
        if by_size and entries[0]["unit"] == SHARE:
            _curves(axes, entries)
        else:
            (_lines if by_size else _bars)(axes, entries, columns)
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            # 1 and 2 are named, and little looks little
            axes.set_ylim(min(low, LOW), max(high, HIGH))
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=TICKS))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(ticker.NullLocator())
            axes.set_ylabel(f"over {_base(entries)}")
            axes.axhline(1, color="0.7", linewidth=0.8, zorder=0)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        axes.set_title(f"{figure.source}", fontsize=9)
        canvas.tight_layout()
        save(canvas, path, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    path.write_text(re.sub(r"\s*\n\s*", "\n", path.read_text("utf-8")), "utf-8")


def _curves(axes: Any, entries: Entries) -> None:
    """Percentages over their columns, ours and the document's."""
    for i, row in enumerate(dict.fromkeys(str(e["row"]) for e in entries)):
        for side, who, style, alpha in SIDES:
            mine = [e for e in entries if e["row"] == row and e[side] is not None]
            if mine:
                x, y = zip(*((float(e["column"]), e[side]) for e in mine), strict=True)
                axes.plot(x, y, style, color=f"C{i}", alpha=alpha, label=f"{row}, {who}")
    axes.set_ylabel(SHARE)


def _lines(axes: Any, entries: Entries, columns: list[str]) -> None:
    rows = list(dict.fromkeys(e["row"] for e in entries))
    for side, who, style, alpha in SIDES:
        values = _values(entries, side)
        for i, row in enumerate(rows):
            points = [(float(c), values[row, c]) for c in columns if (row, c) in values]
            if points:
                x, y = zip(*points, strict=True)
                name = f"{row}, {who}"
                axes.plot(x, y, style, color=f"C{i % 10}", alpha=alpha, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([float(c) for c in columns], columns)
    axes.minorticks_off()


def _bars(axes: Any, entries: Entries, columns: list[str]) -> None:
    rows = list(dict.fromkeys(e["row"] for e in entries))
    shown = [(side, row) for row in rows for side in SIDES if _has(entries, side[0], row)]
    width = 0.8 / len(shown)
    for i, ((side, who, _, alpha), row) in enumerate(shown):
        values = _values(entries, side)
        at = [(k, values[row, c]) for k, c in enumerate(columns) if (row, c) in values]
        x = [k - 0.4 + (i + 0.5) * width for k, _ in at]
        color = f"C{rows.index(row) % 10}"
        name = f"{row}, {who}"
        # From 1 up or down: the scale has no 0 that bars could begin at.
        axes.bar(x, [y - 1 for _, y in at], width, 1, color=color, alpha=alpha, label=name)
    axes.set_xticks(range(len(columns)), columns, rotation=90 if len(columns) > MANY else 0)


def _has(entries: Entries, side: str, row: str) -> bool:
    return any(name == row for name, _ in _values(entries, side))

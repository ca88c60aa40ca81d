"""The page of networks as tables and as a picture, of what `benchmarks.networks_page` found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.command import pyplot, save
from benchmarks.network_process import EAGER, GLNN, GRAPH, HALF, NAMES, WEBGPU
from benchmarks.network_rows import Row
from benchmarks.tables import table
from benchmarks.zoo import NETWORKS
from glnn.cli.screen import Screen, number

Found = Mapping[str, Any]
Cells = tuple[list[str], list[list[str]]]
"""Heads and rows."""
WRONG, WRONG_HALF = 1e-4, 5e-2
"""A relative error above it is no rounding, of float32 and of FP16."""
REASON = 40  # characters of it in a cell


def batches(found: Found) -> list[int]:
    """The sizes that were measured."""
    return sorted({row["batch"] for row in found["rows"]})


def _of(found: Found, batch: int) -> dict[str, dict[str, Row]]:
    """The rows of a batch by network and library."""
    rows = [row for row in found["rows"] if row["batch"] == batch]
    names = [name for name in NETWORKS if any(row["network"] == name for row in rows)]
    return {n: {row["name"]: row for row in rows if row["network"] == n} for n in names}


def wrong(row: Row) -> bool:
    """Whether its result is not the reference's; one that could not be compared is not either."""
    bound = WRONG_HALF if row["name"] == HALF else WRONG
    return row["error"] is None or not row["error"] <= bound


def right(row: Row) -> bool:
    """Whether it has a time, and the reference's result."""
    return "failed" not in row and not wrong(row)


def _cell(row: Row | None) -> str:
    """Milliseconds, or why there are none."""
    if row is None:
        return "-"
    if "failed" in row:
        said = row["failed"]
        return said if len(said) <= REASON else f"{said[: REASON - 1]}…"
    said = "not compared" if row["error"] is None else f"wrong: {row['error']:.0e}"
    return number(row["median_ms"]) + (f", {said}" if wrong(row) else "")


def over(rows: Mapping[str, Row], name: str) -> float | None:
    """How many times as long `name` takes as glnn; None where one of them is not right."""
    pair = [rows[one] for one in (name, GLNN) if one in rows]
    times = [row["median_ms"] for row in pair if right(row)]
    return times[0] / times[1] if len(times) == 2 else None


def beside(found: Found, batch: int) -> Cells:
    """Milliseconds of every library that ran, what some take over glnn, and the error of FP16."""
    by_network = _of(found, batch)
    names = [name for name in NAMES if any(name in rows for rows in by_network.values())]
    others = [name for name in (EAGER, GRAPH, WEBGPU) if name in names]
    halves = [HALF] if HALF in names else []
    heads = ["ms", *names, *(f"{name} / glnn" for name in others)]
    heads += ["error of FP16" for _ in halves]
    cells = [
        [
            network,
            *(_cell(rows.get(name)) for name in names),
            *(number(over(rows, name)) for name in others),
            *(_error(rows.get(name)) for name in halves),
        ]
        for network, rows in by_network.items()
    ]
    return heads, cells


def _error(row: Row | None) -> str:
    """The relative error of `row`, or a dash."""
    error = row and row.get("error")
    return "-" if error is None else f"{error:.1e}"


def plans(found: Found, batch: int) -> Cells:
    """What glnn's plans are and take, and how near they come to the roof."""
    heads = ["glnn", "steps", "on host", "GFLOP", "MB moved", "roof ms", "share", "error"]
    heads += ["GPU MiB", "host MiB", "plan s"]
    cells = []
    for network, rows in _of(found, batch).items():
        row = rows.get(GLNN)
        if row is None or "failed" in row:
            cells.append([network, *(["-"] * (len(heads) - 1))])
            continue
        cells.append(
            [
                network,
                str(row["steps"]),
                str(row["host_steps"]),
                number(row["gflop"]),
                number(row["moved_mb"]),
                number(row["roof_ms"]),
                "-" if row["share"] is None else f"{100 * row['share']:.0f}%",
                _error(row),
                number(row["plan_mib"]),
                number(row["host_mib"]),
                number(row.get("plan_s")),
            ]
        )
    return heads, cells


def both(found: Found, batch: int) -> Iterator[Cells]:
    """The two tables of a batch."""
    yield beside(found, batch)
    yield plans(found, batch)


def told(found: Found, batch: int) -> Iterator[str]:
    """What the tables come to, in sentences."""
    by_network = _of(found, batch)
    ours = [rows[GLNN] for rows in by_network.values() if GLNN in rows]
    yield f"glnn is right with {sum(map(right, ours))} of {len(by_network)} networks"
    for name, times in ((EAGER, 1), (GRAPH, 1), (WEBGPU, 2)):
        ratios = [ratio for rows in by_network.values() if (ratio := over(rows, name))]
        faster = sum(ratio > times for ratio in ratios)
        if not ratios:
            continue
        than = "faster than" if times == 1 else f"more than {times} times as fast as"
        yield f"{than} {name} with {faster} of {len(ratios)}"


def show(out: Screen, found: Found) -> None:
    """Print the tables of every batch."""
    hidden = ("rows",)
    out.say(", ".join(f"{k} {v}" for k, v in found.items() if k not in hidden))
    for batch in batches(found):
        for (first, *heads), rows in both(found, batch):
            shown = table(first, *(f">{head}" for head in heads))
            for row in rows:
                shown.add(*row)
            out.show(shown, f"batch {batch}")
        out.say("; ".join(told(found, batch)))


def draw(found: Found, path: Path) -> None:
    """Bars of the smallest batch: for each network one of each library that ran it."""
    by_network = _of(found, min(batches(found)))
    names = [name for name in NAMES if any(name in rows for rows in by_network.values())]
    canvas, axes = pyplot().subplots(figsize=(8, 1 + 0.17 * len(names) * len(by_network)))
    thick = 0.8 / len(names)
    for i, name in enumerate(names):
        bars = [
            (place + (i + 0.5) * thick - 0.4, rows[name]["median_ms"])
            for place, rows in enumerate(by_network.values())
            if name in rows and "failed" not in rows[name]
        ]
        if bars:
            axes.barh(*zip(*bars, strict=True), height=thick, label=name)
    axes.set_yticks(range(len(by_network)), list(by_network))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"milliseconds, transfers included, batch {min(batches(found))}")
    if axes.has_data():
        axes.legend(fontsize="x-small")
    canvas.tight_layout()
    save(canvas, path)

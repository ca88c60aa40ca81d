"""The page of networks as tables and as a picture, of what `benchmarks.networks_page` found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
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
    """The rows of a batch by network and library, the networks in the order of the zoo."""
    rows = [row for row in found["rows"] if row["batch"] == batch]
    measured = dict.fromkeys(row["network"] for row in rows)
    names = [*(n for n in NETWORKS if n in measured), *(n for n in measured if n not in NETWORKS)]
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
    """What part of the time of `name` glnn takes; None where one of them is not right."""
    pair = [rows[one] for one in (GLNN, name) if one in rows]
    times = [row["median_ms"] for row in pair if right(row)]
    return times[0] / times[1] if len(times) == 2 else None


@dataclass(frozen=True)
class Standing:
    """glnn and PyTorch's CUDA graph, network by network and batch by batch, both in FP32."""

    ratios: Mapping[tuple[str, int], float]
    """glnn's time over the graph's, by network and batch; the greatest first."""
    reasons: Mapping[tuple[str, int], str]
    """Why the others are not compared."""

    @classmethod
    def of(cls, found: Found) -> Standing:
        """Compare what was found."""
        ratios: dict[tuple[str, int], float] = {}
        reasons: dict[tuple[str, int], str] = {}
        for batch in batches(found):
            for network, rows in _of(found, batch).items():
                ratio = over(rows, GRAPH)
                if ratio is not None:
                    ratios[network, batch] = ratio
                else:
                    cells = ((name, rows.get(name)) for name in (GLNN, GRAPH))
                    reasons[network, batch] = "; ".join(
                        f"{name}: {'not measured' if row is None else _cell(row)}"
                        for name, row in cells
                        if row is None or not right(row)
                    )
        return cls(dict(sorted(ratios.items(), key=lambda one: -one[1])), reasons)

    @property
    def slower(self) -> dict[tuple[str, int], float]:
        """Those of `ratios` in which glnn takes longer than the graph."""
        return {place: ratio for place, ratio in self.ratios.items() if ratio > 1}

    @property
    def sentence(self) -> str:
        """How many pairs of a network and a batch glnn is not slower in, and its greatest ratio."""
        if not self.ratios:
            return "No network was measured by both glnn and PyTorch's CUDA graph."
        total, slower = len(self.ratios), len(self.slower)
        (network, batch), worst = next(iter(self.ratios.items()))
        said = (
            f"glnn takes at most the time of PyTorch's CUDA graph in {total - slower} of {total} "
            f"pairs of a network and a batch; none takes more than {_up(worst)} times the graph's, "
            f"which is {network} at batch {batch}."
        )
        return f"{said} Not compared: {len(self.reasons)}." if self.reasons else said


def _up(ratio: float) -> str:
    """`ratio` rounded up to two decimals, so that none is above what is said."""
    return f"{ceil(100 * ratio) / 100:.2f}"


def beside_graph(found: Found) -> Cells:
    """Milliseconds of glnn and PyTorch's CUDA graph, and the ratio, of each network and batch."""
    ratios = Standing.of(found).ratios
    by_batch = {batch: _of(found, batch) for batch in batches(found)}
    cells = []
    for network in dict.fromkeys(network for rows in by_batch.values() for network in rows):
        for batch, networks in by_batch.items():
            if network not in networks:
                continue
            times = [_cell(networks[network].get(name)) for name in (GLNN, GRAPH)]
            ratio = ratios.get((network, batch))
            over_graph = "-" if ratio is None else f"{ratio:.2f}"
            cells.append([network, str(batch), *times, over_graph])
    return ["FP32", "batch", "glnn ms", "CUDA graph ms", "glnn / graph"], cells


def slower(found: Found) -> Cells:
    """Where glnn takes longer than PyTorch's CUDA graph, the greatest ratio first."""
    heads = ["network", "batch", "glnn ms", "CUDA graph ms", "glnn / graph"]
    cells = []
    for (network, batch), ratio in Standing.of(found).slower.items():
        rows = _of(found, batch)[network]
        times = (number(rows[name]["median_ms"]) for name in (GLNN, GRAPH))
        cells.append([network, str(batch), *times, f"{ratio:.3f}"])
    return heads, cells


def not_compared(found: Found) -> Cells:
    """Pairs of a network and a batch that have no ratio, and why."""
    reasons = Standing.of(found).reasons
    cells = [[network, str(batch), said] for (network, batch), said in reasons.items()]
    return ["network", "batch", "why"], cells


def beside(found: Found, batch: int) -> Cells:
    """Milliseconds of every library that ran, what glnn takes over some, and the error of FP16."""
    by_network = _of(found, batch)
    names = [name for name in NAMES if any(name in rows for rows in by_network.values())]
    others = [name for name in (EAGER, GRAPH, WEBGPU) if name in names]
    halves = [HALF] if HALF in names else []
    heads = ["ms", *names, *(f"glnn / {name}" for name in others)]
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
        faster = sum(ratio < 1 / times for ratio in ratios)
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
    if any(row["name"] == GRAPH for row in found["rows"]):
        for title, ((first, *heads), rows) in (
            ("slower than PyTorch's CUDA graph", slower(found)),
            ("not compared with it", not_compared(found)),
        ):
            shown = table(first, *(f">{head}" for head in heads))
            for row in rows:
                shown.add(*row)
            if rows:
                out.show(shown, title)
        out.say(Standing.of(found).sentence)


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

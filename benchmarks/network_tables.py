"""Tables and a picture of the results of `benchmarks.networks_page`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.command import pyplot, save
from benchmarks.network_process import EAGER, GLNN, GRAPH, HALF, NAMES, WEBGPU, Row
from benchmarks.tables import table
from benchmarks.zoo import NETWORKS
from glnn.cli.screen import Screen, number

Results = Mapping[str, Any]
"""The header of a results file, and its `rows`."""
Cells = tuple[list[str], list[list[str]]]
"""Heads and rows."""
WRONG, WRONG_HALF = 1e-4, 5e-2
"""The largest relative error that rounding explains, of float32 and of FP16."""
MAX_REASON = 40  # characters of a reason in a cell


def batches(results: Results) -> list[int]:
    """Return the batches that were measured."""
    return sorted({row["batch"] for row in results["rows"]})


def _rows_by_network(results: Results, batch: int) -> dict[str, dict[str, Row]]:
    """Return the rows of a batch by network and name, the networks in the order of the zoo."""
    rows = [row for row in results["rows"] if row["batch"] == batch]
    measured = dict.fromkeys(row["network"] for row in rows)
    names = [*(n for n in NETWORKS if n in measured), *(n for n in measured if n not in NETWORKS)]
    return {n: {row["name"]: row for row in rows if row["network"] == n} for n in names}


def wrong(row: Row) -> bool:
    """Return True where the result differs from the reference, or could not be compared."""
    bound = WRONG_HALF if row["name"] == HALF else WRONG
    return row["error"] is None or not row["error"] <= bound


def right(row: Row) -> bool:
    """Return True where the row has a time, and the reference's result."""
    return "failed" not in row and not wrong(row)


def _cell(row: Row | None) -> str:
    """Format the milliseconds of a row, or why there are none."""
    if row is None:
        return "-"
    if "failed" in row:
        reason = row["failed"]
        return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"
    doubt = "not compared" if row["error"] is None else f"wrong: {row['error']:.0e}"
    return number(row["median_ms"]) + (f", {doubt}" if wrong(row) else "")


def over(rows: Mapping[str, Row], name: str) -> float | None:
    """Return glnn's time over that of `name`; None where one of them is not right."""
    pair = [rows[one] for one in (GLNN, name) if one in rows]
    times = [row["median_ms"] for row in pair if right(row)]
    return times[0] / times[1] if len(times) == 2 else None


@dataclass(frozen=True)
class GraphComparison:
    """glnn and PyTorch's CUDA graph, network by network and batch by batch, both in FP32."""

    ratios: Mapping[tuple[str, int], float]
    """glnn's time over the graph's, by network and batch; the greatest first."""
    reasons: Mapping[tuple[str, int], str]
    """Why the others are not compared."""

    @classmethod
    def from_results(cls, results: Results) -> GraphComparison:
        """Compare the rows of all networks and batches."""
        ratios: dict[tuple[str, int], float] = {}
        reasons: dict[tuple[str, int], str] = {}
        for batch in batches(results):
            for network, rows in _rows_by_network(results, batch).items():
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
        """The `ratios` above 1: glnn takes longer than the graph."""
        return {key: ratio for key, ratio in self.ratios.items() if ratio > 1}

    @property
    def sentence(self) -> str:
        """The number of pairs in which glnn is not slower, and its greatest ratio."""
        if not self.ratios:
            return "No network was measured by both glnn and PyTorch's CUDA graph."
        total, slower = len(self.ratios), len(self.slower)
        (network, batch), worst = next(iter(self.ratios.items()))
        sentence = (
            f"glnn takes at most the time of PyTorch's CUDA graph in {total - slower} of {total} "
            f"pairs of a network and a batch; none takes more than {_round_up(worst)} times the "
            f"graph's, which is {network} at batch {batch}."
        )
        return f"{sentence} Not compared: {len(self.reasons)}." if self.reasons else sentence


def _round_up(ratio: float) -> str:
    """Format `ratio` rounded up to two decimals, so that no ratio is above the printed bound."""
    return f"{ceil(100 * ratio) / 100:.2f}"


def graph_comparison(results: Results) -> Cells:
    """Return the milliseconds of glnn and PyTorch's CUDA graph, and the ratio, of each pair."""
    ratios = GraphComparison.from_results(results).ratios
    by_batch = {batch: _rows_by_network(results, batch) for batch in batches(results)}
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


def slower(results: Results) -> Cells:
    """Return the pairs in which glnn takes longer than the CUDA graph, the greatest ratio first."""
    heads = ["network", "batch", "glnn ms", "CUDA graph ms", "glnn / graph"]
    cells = []
    for (network, batch), ratio in GraphComparison.from_results(results).slower.items():
        rows = _rows_by_network(results, batch)[network]
        times = (number(rows[name]["median_ms"]) for name in (GLNN, GRAPH))
        cells.append([network, str(batch), *times, f"{ratio:.3f}"])
    return heads, cells


def not_compared(results: Results) -> Cells:
    """Return the pairs of a network and a batch that have no ratio, and why."""
    reasons = GraphComparison.from_results(results).reasons
    cells = [[network, str(batch), why] for (network, batch), why in reasons.items()]
    return ["network", "batch", "why"], cells


def library_times(results: Results, batch: int) -> Cells:
    """Return the milliseconds of every library, glnn's time over some, and the error of FP16."""
    by_network = _rows_by_network(results, batch)
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
    """Format the relative error of `row`, or a dash."""
    error = row and row.get("error")
    return "-" if error is None else f"{error:.1e}"


def plans(results: Results, batch: int) -> Cells:
    """Return the size, memory and planning time of glnn's plans, and their share of the roof."""
    heads = ["glnn", "steps", "on host", "GFLOP", "MB moved", "roof ms", "share", "error"]
    heads += ["GPU MiB", "host MiB", "plan s"]
    cells = []
    for network, rows in _rows_by_network(results, batch).items():
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


def batch_tables(results: Results, batch: int) -> Iterator[Cells]:
    """Yield the two tables of a batch."""
    yield library_times(results, batch)
    yield plans(results, batch)


def conclusions(results: Results, batch: int) -> Iterator[str]:
    """Yield the counts that the tables of a batch come to, in sentences."""
    by_network = _rows_by_network(results, batch)
    ours = [rows[GLNN] for rows in by_network.values() if GLNN in rows]
    yield f"glnn is right with {sum(map(right, ours))} of {len(by_network)} networks"
    for name, factor in ((EAGER, 1), (GRAPH, 1), (WEBGPU, 2)):
        ratios = [ratio for rows in by_network.values() if (ratio := over(rows, name))]
        faster = sum(ratio < 1 / factor for ratio in ratios)
        if not ratios:
            continue
        than = "faster than" if factor == 1 else f"more than {factor} times as fast as"
        yield f"{than} {name} with {faster} of {len(ratios)}"


def show(out: Screen, results: Results) -> None:
    """Print the tables of every batch."""
    hidden = ("rows",)
    out.say(", ".join(f"{k} {v}" for k, v in results.items() if k not in hidden))
    for batch in batches(results):
        for (first, *heads), rows in batch_tables(results, batch):
            shown = table(first, *(f">{head}" for head in heads))
            for row in rows:
                shown.add(*row)
            out.show(shown, f"batch {batch}")
        out.say("; ".join(conclusions(results, batch)))
    if any(row["name"] == GRAPH for row in results["rows"]):
        for title, ((first, *heads), rows) in (
            ("slower than PyTorch's CUDA graph", slower(results)),
            ("not compared with it", not_compared(results)),
        ):
            shown = table(first, *(f">{head}" for head in heads))
            for row in rows:
                shown.add(*row)
            if rows:
                out.show(shown, title)
        out.say(GraphComparison.from_results(results).sentence)


def draw(results: Results, path: Path) -> None:
    """Draw the smallest batch: for each network a bar of each library that ran it."""
    by_network = _rows_by_network(results, min(batches(results)))
    names = [name for name in NAMES if any(name in rows for rows in by_network.values())]
    canvas, axes = pyplot().subplots(figsize=(8, 1 + 0.17 * len(names) * len(by_network)))
    thickness = 0.8 / len(names)
    for i, name in enumerate(names):
        bars = [
            (y + (i + 0.5) * thickness - 0.4, rows[name]["median_ms"])
            for y, rows in enumerate(by_network.values())
            if name in rows and "failed" not in rows[name]
        ]
        if bars:
            axes.barh(*zip(*bars, strict=True), height=thickness, label=name)
    axes.set_yticks(range(len(by_network)), list(by_network))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"milliseconds, transfers included, batch {min(batches(results))}")
    if axes.has_data():
        axes.legend(fontsize="x-small")
    canvas.tight_layout()
    save(canvas, path)

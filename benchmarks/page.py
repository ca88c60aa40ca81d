"""One page in Markdown, and pictures, from what benchmarks wrote with --json on another machine.

python -m benchmarks.matmul --document cheng --json > cheng.json
python -m benchmarks.page matmul.json mlp.json cheng.json bias.json > h200.md
python -m benchmarks.page cheng.json --plot figures/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from benchmarks import beside, documents, network_tables
from benchmarks.command import check_folder, run
from glnn.errors import GlnnError

Json = dict[str, Any]
HEAD = """\
# Measured on {}

By the benchmarks of the same names, with `--json`, put together by `python -m benchmarks.page`.
The documents measured on other GPUs: read ratios between rows, not between devices.

"""


def markdown(heads: list[str], rows: list[list[object]]) -> str:
    """A table."""
    lines: list[list[object]] = [[*heads], ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def sections(name: str, found: Json) -> Iterator[str]:
    """What one file holds: a benchmark's rows, its document's numbers, claims."""
    plain = {k: v for k, v in found.items() if not isinstance(v, list | dict) and k != "note"}
    yield f"## {name}\n\n" + ", ".join(f"{k} {v}" for k, v in plain.items())
    rows = found.get("rows", [])
    if isinstance(rows, dict):  # of several versions measured in turn
        sides = ("here", "there", "ratio", "peer", "over_peer")
        yield _columns([{"": what, **row} for what, row in rows.items()], "", *sides)
    elif _has(rows, "name", "size", "gflops"):
        yield _grid(rows, "name", "size", "gflops", "GFLOP/s")
    elif _has(rows, "kernel", "shape", "us", "gb_s"):
        yield _grid(rows, "kernel", "shape", "gb_s", "GB/s")
    elif _has(rows, "network"):
        for batch in network_tables.batches(found):
            yield f"batch {batch}: " + "; ".join(network_tables.told(found, batch))
            for heads, cells in network_tables.both(found, batch):
                yield markdown(heads, [[*row] for row in cells])
    elif _has(rows, "name", "model", "median_ms"):
        yield _grid(rows, "name", "model", "median_ms", "ms")
    elif _has(rows, "name", "scenario", "median_ms", "kernel_ms", "kind"):
        yield _grid(rows, "name", "scenario", "median_ms", "ms")
        yield _grid(
            [r for r in rows if r["kernel_ms"]], "name", "scenario", "kernel_ms", "GPU's ms"
        )
        yield from _steps(found)
    elif _has(rows, "name", "what", "per_s"):
        yield _columns(rows, "name", "what", "per_s", "ratio")
    elif _has(rows, "name", "median_ms", "resident_ms"):
        yield _columns(rows, "name", "median_ms", "least_ms", "resident_ms", "error")
    elif rows:
        yield _columns(rows, *(k for k, v in rows[0].items() if not isinstance(v, list | dict)))
    if layers := found.get("layers"):
        keys = ("op", "kernel", "gflop", "kernel_ms", "wall_ms", "overhead_ms", "clblast_ms")
        yield _columns(layers, "layer", *keys)
    for variant in found.get("variants", [])[:1]:
        kernels = list(variant["ms"])
        table = [
            [v["layer"], *(number(v["ms"].get(k)) for k in kernels), v["default"]]
            for v in found["variants"]
        ]
        yield markdown(["GPU's ms", *kernels, "default"], table)
    entries = found.get("beside", [])
    for figure in dict.fromkeys(entry["figure"] for entry in entries):
        yield _beside(figure, [entry for entry in entries if entry["figure"] == figure])
    if found.get("claims"):
        said = [[c["figure"], c["claim"], _span(c)] for c in found["claims"]]
        yield markdown(["figure", "it says", "here"], said)


def _has(rows: list[Json], *keys: str) -> bool:
    """Whether there are rows, and the first has all of `keys`."""
    return bool(rows) and set(keys) <= set(rows[0])


def _steps(found: Json) -> Iterator[str]:
    """The feedback plans of the first scenario by step, and how they compare with Cronin's form."""
    if over := found.get("over_cronin"):
        ratios = ", ".join(f"{name} {number(ratio)}" for name, ratio in over.items())
        yield f"feedback, times as fast as the best of Cronin's forms: {ratios}"
    rows = [r for r in found["rows"] if r["scenario"] == found["rows"][0]["scenario"]]
    steps = [
        {"plan": row["name"], **step}
        for row in rows
        if row["kind"] in ("cronin", "feedback")
        for step in row.get("steps", ())
    ]
    if steps:
        yield f"{rows[0]['scenario']} by step of the plan:"
        yield _columns(steps, "plan", "name", "kernel", "kernel_ms", "wall_ms")


def _grid(rows: list[Json], down: str, across: str, value: str, unit: str) -> str:
    columns = list(dict.fromkeys(row[across] for row in rows))
    table: list[list[object]] = []
    for name in dict.fromkeys(row[down] for row in rows):
        cells = {row[across]: row.get(value) for row in rows if row[down] == name}
        table.append([name, *(number(cells.get(column)) for column in columns)])
    return markdown([unit, *columns], table)


def _columns(rows: list[Json], *keys: str) -> str:
    """A column for each of `keys`."""
    table: list[list[object]] = [
        [v if isinstance(v, str) else number(v) for v in (row.get(key) for key in keys)]
        for row in rows
    ]
    return markdown(list(keys), table)


def _beside(figure: str, entries: list[Json]) -> str:
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    table: list[list[object]] = []
    for row in dict.fromkeys(entry["row"] for entry in entries):
        cells: list[object] = [row]
        for entry in (e for e in entries if e["row"] == row):
            theirs = "" if entry["theirs"] is None else f" ({entry['theirs']:g})"
            cells.append(number(entry["ours"]) + theirs)
        table.append(cells)
    said = f"{figure}, {entries[0]['unit']}"
    if any(entry["theirs"] is not None for entry in entries):
        theirs = entries[0]["theirs_unit"]
        said += ", the document's in brackets"
        said += f" ({theirs})" if theirs != entries[0]["unit"] else ""
    return f"{said}:\n\n" + markdown(["", *columns], table)


def number(value: float | None) -> str:
    """Four digits of a thing measured; a dash where it was not."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _span(claim: Json) -> str:
    if "here" in claim:
        return f"{claim['here']}: {claim['holds']}"
    if claim["ours_least"] is None:
        return "not measured"
    return f"{claim['ours_least']:.2f} to {claim['ours_greatest']:.2f}"


def page(measured: Mapping[str, Json]) -> str:
    """The page of what benchmarks wrote, each under its name."""
    devices = dict.fromkeys(found["device"] for found in measured.values() if "device" in found)
    head = HEAD.format(", ".join(devices) or "an unknown device")
    return head + "".join("\n\n".join(sections(*item)) + "\n" for item in measured.items())


def draw(folder: Path, found: Json) -> list[Path]:
    """The pictures of a file that was measured for a document."""
    units = {entry["figure"]: entry["unit"] for entry in found.get("beside", [])}
    ours = {(e["row"], e["column"]): e["ours"] for e in found.get("beside", []) if e["ours"]}
    drawn = [f for name in documents.NAMES for f in documents.figures(name) if f.key in units]
    return [path for f in drawn for path in beside.draw(folder, [f], ours, units[f.key])]


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--plot", type=click.Path(file_okay=False, path_type=Path), help="Also draw here.")
def main(files: tuple[Path, ...], plot: Path | None) -> None:
    check_folder(plot)
    measured: dict[str, Json] = {}
    for file in files:
        try:
            measured[file.stem] = found = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise GlnnError(
                f"{file}: expected what a benchmark wrote, got no JSON: {error}"
            ) from None
        if plot is not None:
            draw(plot, found)
    print(page(measured), end="")


if __name__ == "__main__":
    run(main)

"""The documents' models of the cache, beside what `glnn kernels --cache` says by the same model.

Gronqvist's table 1.2 and Rovder 2017's table 8.1 count cache lines; nothing is measured.

    python -m benchmarks.cache
    python -m benchmarks.cache --json
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import rich_click as click

from benchmarks import beside, documents
from benchmarks.command import run
from glnn.cli.kernels import STEP, cost_rows
from glnn.cli.screen import Screen
from glnn.documents.cache_lines import CACHE_LINES, INVOCATIONS, workgroups

Counted = tuple[documents.Figure, documents.Ours, str]


def counted() -> Iterator[Counted]:
    """Each table of a document, what the model says of its rows and columns, and in what unit."""
    kernels = {row["name"]: row for row in cost_rows()["kernels"]}
    for key, whole, unit in (
        ("table_1_2", 1, "cache lines"),
        ("table_1_2_fraction", CACHE_LINES, f"fraction of {CACHE_LINES} lines"),
    ):
        figure = documents.figure("gronqvist", key)
        yield (
            figure,
            {
                (name, str(y)): kernels[name]["lines"][f"{x}x{y}"] / whole
                for name in figure.rows
                for x, y in workgroups(INVOCATIONS)
            },
            unit,
        )
    figure = documents.figure("rovder_2017", "table_8_1")
    yield figure, {(name, "bulk"): kernels[name]["bulk"] for name in figure.rows}, "cache lines"
    periods = {(name, "period"): kernels[name]["period"] / STEP for name in figure.rows}
    yield figure, periods, "iterations"


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(as_json: bool) -> None:
    if as_json:
        found = [entry for one in counted() for entry in beside.rows(*one)]
        print(json.dumps({"beside": found, "claims": []}, indent=2))
        return
    for one in counted():
        beside.show(Screen(), *one)


if __name__ == "__main__":
    run(main)

"""Several versions of the project measured in turn, each time in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import rich_click as click

from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress

HERE = Path(__file__).resolve().parents[1]
Found = dict[str, list[float]]
"""What each round found, by what was measured."""

against_option = click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with another version.",
)
rounds_option = click.option(
    "--rounds", type=click.IntRange(1), default=5, show_default=True, help="Processes of each."
)


def measured(tree: Path, script: str, *arguments: str) -> dict[str, float]:
    """What one process finds with the project of `tree`: the JSON object `script` prints last.

    No tuned kernels are taken and none is examined. Raises ClickException where it fails.
    """
    own = {"PYTHONPATH": str(tree), "GLNN_TRUST": "1", "GLNN_CACHE": ""}
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise click.ClickException(f"{tree}: {said[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(
    against: Path | None, rounds: int, script: str, *arguments: str, shown: bool
) -> dict[str, dict[str, Any]]:
    """What `script` finds here and in `against`: medians of `rounds`, and their ratio.

    Of each thing "here" and "there", "ratio" of the two, and in "rounds" the ratio of each round.
    """
    trees = {"here": HERE} | ({"there": against.resolve()} if against else {})
    found: dict[str, Found] = {name: {} for name in trees}
    with progress(shown) as bar:
        task = bar.add_task("measuring", total=rounds * len(trees))
        for _ in range(rounds):
            for name, tree in trees.items():
                for what, value in measured(tree, script, *arguments).items():
                    found[name].setdefault(what, []).append(value)
                bar.advance(task)
    return {what: _compared(found, what) for what in found["here"]}


def _compared(found: Mapping[str, Found], what: str) -> dict[str, Any]:
    here, there = found["here"][what], found.get("there", {}).get(what)
    row: dict[str, Any] = {"here": median(here), "there": None, "ratio": None, "rounds": []}
    if there:
        row |= {"there": median(there), "ratio": median(here) / median(there)}
        row["rounds"] = [a / b for a, b in zip(here, there, strict=True)]
    return row


def show(rows: Mapping[str, Mapping[str, Any]], units: Mapping[str, str], title: str) -> None:
    """Print what `in_turn` gave. units: of what is no milliseconds."""
    shown = table("", ">here", ">there", "", ">here / there", ">of the rounds")
    for what, row in rows.items():
        spread = [number(bound(row["rounds"])) for bound in (min, max)] if row["rounds"] else []
        shown.add(
            what, number(row["here"]), number(row["there"]), units.get(what, "ms"),
            number(row["ratio"]), " to ".join(spread),
        )  # fmt: skip
    Screen().show(shown, title)

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
few_rounds_option = click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Processes of each."
)


def measured(tree: Path, script: str, *arguments: str) -> dict[str, float]:
    """What one process finds with the project of `tree`: the JSON object `script` prints last.

    No tuned kernels are taken and none is examined. Raises ClickException where it fails.
    """
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": path, "GLNN_TRUST": "1", "GLNN_CACHE": ""}
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise click.ClickException(f"{tree}: {said[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(
    against: Path | None, rounds: int, script: str, *arguments: str, shown: bool, peer: str = ""
) -> dict[str, dict[str, Any]]:
    """What `script` finds here and in `against`: medians of `rounds`, and their ratio.

    Of each thing "here" and "there", "ratio" of the two, and in "rounds" the ratio of each round.
    peer: a script that finds what another library takes for things of the same names, in a process
    of its own, once: "peer", and "over_peer", the ratio of here to it. Each process that ended is
    told on standard error, where there is no progress bar.
    """
    trees = {"here": HERE} | ({"there": against.resolve()} if against else {})
    found: dict[str, Found] = {name: {} for name in (*trees, "peer")}
    turns = [(name, tree, script) for _ in range(rounds) for name, tree in trees.items()]
    turns += [("peer", HERE, peer)] if peer else []
    with progress(shown) as bar:
        task = bar.add_task("measuring", total=len(turns))
        for name, tree, text in turns:
            values = measured(tree, text, *arguments)
            for what, value in values.items():
                found[name].setdefault(what, []).append(value)
            bar.advance(task)
            if bar.disable:
                said = "; ".join(f"{what} {number(value)}" for what, value in values.items())
                click.echo(f"{name}: {said or 'nothing'}", err=True)
    names = dict.fromkeys((*found["here"], *found["peer"]))
    return {what: _compared(found, what) for what in names}


def _compared(found: Mapping[str, Found], what: str) -> dict[str, Any]:
    here, there, peer = (found.get(side, {}).get(what) for side in ("here", "there", "peer"))
    row: dict[str, Any] = {
        "here": _median(here), "there": _median(there), "ratio": _ratio(here, there), "rounds": [],
        "peer": _median(peer), "over_peer": _ratio(here, peer),
    }  # fmt: skip
    if here and there and all(there):
        row["rounds"] = [a / b for a, b in zip(here, there, strict=True)]
    return row


def _median(values: list[float] | None) -> float | None:
    return median(values) if values else None


def _ratio(one: list[float] | None, other: list[float] | None) -> float | None:
    return median(one) / median(other) if one and other and median(other) else None


def show(
    rows: Mapping[str, Mapping[str, Any]], units: Mapping[str, str], title: str, peer: str = ""
) -> None:
    """Print what `in_turn` gave. units: of what is no milliseconds. peer: its name, if any ran."""
    heads = (f">{peer}", f">here / {peer}") if peer else ()
    shown = table("", ">here", ">there", "", ">here / there", ">of the rounds", *heads)
    for what, row in rows.items():
        spread = [number(bound(row["rounds"])) for bound in (min, max)] if row["rounds"] else []
        beside = (number(row["peer"]), number(row["over_peer"])) if peer else ()
        shown.add(
            what, number(row["here"]), number(row["there"]), units.get(what, "ms"),
            number(row["ratio"]), " to ".join(spread), *beside,
        )  # fmt: skip
    Screen().show(shown, title)

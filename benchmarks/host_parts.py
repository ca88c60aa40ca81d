"""The host's time of a training step and of a session's run, by parts, here and in another glnn.

Steps of an MLP 784-512-10 by SGD with momentum, each waited for, and runs of sessions of the same
network, of LeNet and of a text's embeddings, from host array to host array. GL's functions of a run
are replaced by ones that note when they were called and how long they took: what passes until the
upload, between upload and launches, while the launches are given, behind them and behind the wait.
With `--idle` they do nothing while a run is timed, so that all that passes is Python's own time,
the same on any driver. Both versions run alternately, each time in a process of its own.

    python -m benchmarks.host_parts --against ../before
    python -m benchmarks.host_parts --against ../before --idle --only "training 64" --json
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.compiled import compiled
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

SCRIPT = Path(__file__).with_name("one_host_parts.py")
SOURCE = Path(__file__).with_name("host_parts.c")
WORKS = ("training 64", "training 512", "session 64", "lenet 1", "embeddings 8")
PARTS = ("before the launches", "launches", "before the wait", "wait", "behind the wait")
"""The parts of a step or a run; the first is in three where an upload is a call of GL's."""


@click.command(help=__doc__)
@trees.against_option
@click.option("--only", default=",".join(WORKS), show_default=True, help="Works, by commas.")
@click.option("--idle", is_flag=True, help="Have GL's functions do nothing.")
@trees.few_rounds_option
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.5, show_default=True, help="Of each work."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    against: Path | None, only: str, idle: bool, rounds: int, seconds: float, as_json: bool
) -> None:
    if unknown := next((name for name in only.split(",") if name not in WORKS), None):
        raise GlnnError(f"--only: no {unknown!r}, expected some of {', '.join(WORKS)}")
    about = {**machine(open_backend("compute").device), "idle": str(idle), "rounds": str(rounds)}
    with TemporaryDirectory(prefix="glnn-") as folder:
        built = compiled(SOURCE, Path(folder))
        asked = str(built), only, "1" if idle else "0", str(seconds)
        found = trees.in_turn(against, rounds, SCRIPT.read_text("utf-8"), *asked, shown=not as_json)
    if as_json:
        print(json.dumps({**about, "rows": found}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    units = {name: "" if "calls of" in name else "us" for name in found}
    trees.show(found, units, "parts of a step and of a run")


if __name__ == "__main__":
    run(main)

"""What launches cost: chains of tiny steps, and the host's part of LeNet, here and in another glnn.

Both versions run alternately, each time in a process of its own. A chain has so many layers, each
of 64 numbers that the one before it made, a step for each (planned without fusing): sigmoids, and
products of 8 x 8. "issued" is the host's time to ask for all of it, "in all" until the last result
is there. LeNet runs one image from host array to host array; "steps" are its steps waited for with
everything on the device. "no work" is the host's time where GL's launches are a function that does
nothing: on a CPU's driver they compute before they return.

    python -m benchmarks.launches --against ../before
    python -m benchmarks.launches --against ../before --steps 50,200 --rounds 5 --json
    python -m benchmarks.launches --backend feedback --steps 50 --seconds 0.2
"""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

SCRIPT = Path(__file__).with_name("one_launches.py")


def _lengths(steps: str) -> str:
    parts = [part.strip() for part in steps.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise GlnnError(f"--steps: expected numbers as 50,200, got {steps!r}")
    return ",".join(parts)


@click.command(help=__doc__)
@trees.against_option
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option("--steps", default="50,200", show_default=True, help="Lengths of the chains.")
@trees.few_rounds_option
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.2, show_default=True, help="Of each measure."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    against: Path | None, backend: str, steps: str, rounds: int, seconds: float, as_json: bool
) -> None:
    asked = backend, _lengths(steps), str(seconds)
    about = {**machine(open_backend(backend).device), "backend": backend, "rounds": str(rounds)}
    found = trees.in_turn(against, rounds, SCRIPT.read_text("utf-8"), *asked, shown=not as_json)
    if as_json:
        print(json.dumps({**about, "rows": found}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    trees.show(found, {}, "tiny steps and LeNet, one image")


if __name__ == "__main__":
    run(main)

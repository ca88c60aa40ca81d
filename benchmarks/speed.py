"""How long networks and products take, here and in another version of glnn, measured in turn.

Each round runs both versions, one after the other, each in a process of its own. VGG-16 (one
image), LeNet and the four perceptrons of Rovder 2017 (batches) are from host array to host array,
matrix products on the device alone. What is to be compared is the last columns' ratios.

    python -m benchmarks.speed --against ../before
    python -m benchmarks.speed --against ../before --backend feedback --rounds 9 --json
    python -m benchmarks.speed --against ../before --only vgg16,sgemm2048 --size 64
"""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.mlp import perceptrons
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

SCRIPT = Path(__file__).with_name("one_version.py")
PRODUCTS = ("sgemm1024", "sgemm2048", "sgemm4096")
NAMES = ("vgg16", "lenet", *perceptrons(), *PRODUCTS)


def _names(only: str | None) -> str:
    names = [part.strip() for part in only.split(",")] if only else list(NAMES)
    for name in names:
        if name not in NAMES and not name.removeprefix("sgemm").isdecimal():
            raise GlnnError(f"--only: no {name!r}, expected some of {', '.join(NAMES)}")
    return ",".join(names)


@click.command(help=__doc__)
@trees.against_option
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option("--only", help="What to measure, by commas; sgemm and a number is a product.")
@trees.rounds_option
@click.option("--seconds", type=click.FloatRange(0), default=2.0, show_default=True)
@click.option("--size", type=click.IntRange(32), default=224, show_default=True, help="VGG-16's.")
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    against: Path | None,
    backend: str,
    only: str | None,
    rounds: int,
    seconds: float,
    size: int,
    batch: int,
    as_json: bool,
) -> None:
    asked = backend, _names(only), str(seconds), str(size), str(batch)
    about = {**machine(open_backend(backend).device), "backend": backend, "rounds": str(rounds)}
    found = trees.in_turn(against, rounds, SCRIPT.read_text("utf-8"), *asked, shown=not as_json)
    if as_json:
        print(json.dumps({**about, "size": size, "batch": batch, "rows": found}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    trees.show(found, {}, f"milliseconds; VGG-16 of {size} x {size}, batches of {batch}")


if __name__ == "__main__":
    run(main)

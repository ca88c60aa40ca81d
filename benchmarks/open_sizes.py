"""What a size costs that a model is given for the first time: CPU time beside a second run of it.

    python -m benchmarks.open_sizes encoder --backend cpu
    python -m benchmarks.open_sizes detector --count 50 --versus-onnxruntime --json
    python -m benchmarks.open_sizes rec.onnx --input x --shape 1,3,48,W --sizes W=64:1200
    python -m benchmarks.open_sizes det.onnx --input x --shape 1,3,H,W --sizes H=64:960:32
        --sizes W=64:960:32 --against ../before --rounds 1

MODEL is a file, or one that benchmarks.open_models builds. The shapes are drawn by --seed from the
ranges of their symbols, LEAST:MOST or LEAST:MOST:STEP. Each runs twice; times are CPU milliseconds
of the process. "plans" counts the first runs in which a plan was made whole (a regime's first:
docs/architecture.md), "planned" is their median. "new" is the median of the other first runs,
"again" of second runs; "new / again" has the ratio of each shape. "bind" is what it takes to give a
plan the sizes of a run. --against measures another version in turn; --versus-onnxruntime runs
ONNX Runtime, too, and compares results.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import onnx
import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.open_models import BUILDERS
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

SCRIPT = Path(__file__).with_name("one_shapes.py")
UNITS = dict.fromkeys(
    ("shapes", "plans", "new / again", "new / again, p90", "new / again, mean", "bind / again",
     "error"), "",
) | {"bind a command, us": "us"}  # fmt: skip
BUILT = {
    "encoder": (
        dict.fromkeys(("input_ids", "attention_mask"), "batch,length"),
        ("batch=1:4", "length=1:256"),
    ),
    "detector": ({"x": "1,3,H,W"}, ("H=32:480", "W=32:480")),
}
"""The shapes of the inputs of each model that is built, and the ranges of their sizes."""


def parsed_shape(text: str, known: dict[str, list[int]]) -> list[int | str]:
    """The shape that `text` is, of numbers and of known symbols. Raises GlnnError."""
    try:
        return [part if part in known else int(part) for part in text.split(",")]
    except ValueError:
        raise GlnnError(f"--shape: expected sizes and symbols by commas, got {text!r}") from None


def ranges(texts: tuple[str, ...]) -> dict[str, list[int]]:
    """The least and the greatest size of each symbol, and its step. Raises GlnnError."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, ends = text.partition("=")
        try:
            low, high, step = [*map(int, ends.split(":")), 1][:3]
        except ValueError:
            low = high = step = 0
        if not name or not 0 <= low <= high or step < 1:
            raise GlnnError(f"--sizes: expected NAME=LEAST:MOST or :STEP behind, got {text!r}")
        found[name] = [low, high, step]
    return found


@click.command(help=__doc__)
@click.argument("model")
@click.option("--input", "names", multiple=True, help="An input's name.")
@click.option("--shape", "shapes", multiple=True, help="Its shape, as 1,3,48,W.")
@click.option("--sizes", multiple=True, help="A symbol's range, as W=64:1200.")
@click.option(
    "--count", type=click.IntRange(1), default=200, show_default=True, help="How many shapes."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--versus-onnxruntime", "versus", is_flag=True, help="Run it by that, too.")
@trees.against_option
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Processes of each."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    model: str,
    names: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    count: int,
    seed: int,
    backend: str,
    versus: bool,
    against: Path | None,
    rounds: int,
    as_json: bool,
) -> None:
    given = dict(zip(names, shapes, strict=False))
    if model in BUILT:
        given, sizes = given or BUILT[model][0], sizes or BUILT[model][1]
    elif not Path(model).is_file():
        raise GlnnError(f"no file {model!r}, and none of {', '.join(BUILT)}")
    if len(names) != len(shapes) or not given:
        raise GlnnError("--shape: expected one for each --input, and at least one")
    known = ranges(sizes)
    parsed = {name: parsed_shape(text, known) for name, text in given.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(model)
        if model in BUILT:
            path = Path(folder, f"{model}.onnx")
            onnx.save(BUILDERS[model](seed), path)
        asked: dict[str, Any] = {
            "what": "sizes", "model": str(path.resolve()), "backend": backend, "shapes": parsed,
            "ranges": known, "count": count, "seed": seed, "versus": versus,
        }  # fmt: skip
        script = SCRIPT.read_text("utf-8")
        rows = trees.in_turn(against, rounds, script, json.dumps(asked), shown=not as_json)
    if as_json:
        about = {"model": Path(model).name, "backend": backend, "rounds": rounds}
        click.echo(json.dumps({**about, "rows": rows}, indent=2))
        return
    Screen().say(f"{Path(model).name} on {backend}")
    trees.show(rows, UNITS, "CPU time of sizes")


if __name__ == "__main__":
    run(main)

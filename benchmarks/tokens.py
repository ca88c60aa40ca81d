"""What a token of a decoder costs whose inputs are new each time, beside a run that repeats them.

    python -m benchmarks.tokens
    python -m benchmarks.tokens --growing decoder-growing.onnx --fixed decoder-fixed.onnx
        --versus-onnxruntime --backend cpu
    python -m benchmarks.tokens --layers 30 --width 576 --tokens 49152 --count 100 --json
    python -m benchmarks.tokens --against ../before --count 20

growing: a cache that is an input and an output, longer by each token. fixed: one of so many places,
and the position an input. Without files both are built from a seed (benchmarks.open_models); the
third example has the shape of SmolLM2-135M. After the prompt, --count tokens are taken greedily;
each run is done twice. Times are milliseconds from the fifth run on, of the CPU unless they say
wall: "new" the median of the first of two runs, "again" of the second. "plans" counts runs in which
a plan was made whole, which are apart from "new"; "bind" is what it takes to give a plan the sizes
of a run. --versus-onnxruntime tells which share of the tokens is what that takes.
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
from benchmarks.open_models import DECODERS, decoder, decoder_options, decoder_shape
from benchmarks.open_sizes import SCRIPT, UNITS
from glnn.errors import GlnnError

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(help=__doc__)
@click.option("--growing", type=FILE, help="A model of ids and past.")
@click.option("--fixed", type=FILE, help="A model of ids, pos and past.")
@click.option("--seed", default=0, show_default=True)
@decoder_options
@click.option(
    "--count", type=click.IntRange(8), default=200, show_default=True, help="How many tokens."
)
@click.option("--backend", default="compute", show_default=True)
@click.option("--versus-onnxruntime", "versus", is_flag=True, help="Compare with that.")
@trees.against_option
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Processes of each."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    growing: Path | None,
    fixed: Path | None,
    seed: int,
    count: int,
    backend: str,
    versus: bool,
    against: Path | None,
    rounds: int,
    as_json: bool,
    **sizes: int,
) -> None:
    shape = decoder_shape(sizes)
    given = {name: path for name, path in zip(DECODERS, (growing, fixed), strict=True) if path}
    if count + 8 > shape.places and not given:
        raise GlnnError(f"--places: expected room for {count} tokens and 8, got {shape.places}")
    with tempfile.TemporaryDirectory() as folder:
        for name in () if given else DECODERS:
            given[name] = Path(folder, f"{name}.onnx")
            onnx.save(decoder(seed, growing=name == "growing", shape=shape), given[name])
        asked: dict[str, Any] = {
            "what": "tokens", "models": {k: str(path.resolve()) for k, path in given.items()},
            "backend": backend, "count": count, "versus": versus,
        }  # fmt: skip
        script = SCRIPT.read_text("utf-8")
        rows = trees.in_turn(against, rounds, script, json.dumps(asked), shown=not as_json)
    if as_json:
        about = {"backend": backend, "tokens": count, "rounds": rounds}
        click.echo(json.dumps({**about, "rows": rows}, indent=2))
        return
    units = {name: UNITS.get(name.partition(": ")[2], "ms") for name in rows}
    units |= {name: "" for name in rows if "growing / fixed" in name or "alike" in name}
    trees.show(rows, units, f"a token, {backend}")


if __name__ == "__main__":
    run(main)

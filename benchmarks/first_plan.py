"""What the first plan of a model costs: CPU time in a new process, nothing kept by glnn yet.

Both versions run alternately, each time in a process of its own with an empty folder as GLNN_CACHE,
so that kernels are examined, too. The driver's programs are warm: each version runs once before it
is measured. "plan" is `session.plan` for one sample; "all" begins with the import of glnn and ends
with the first result. Times are CPU milliseconds of the process with all its threads, where the
driver computes on the CPU those of the kernels that are examined, too.

MODELS are files (benchmarks.export_networks writes some), or names that glnn.load takes. Open
dimensions are 1 unless --shape says otherwise.

    python -m benchmarks.first_plan networks/*.onnx --against ../before
    python -m benchmarks.first_plan rec.onnx --shape 1,3,48,320 --against ../before --rounds 5
    python -m benchmarks.first_plan lenet vgg16 --backend feedback --json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Screen
from glnn.errors import GlnnError

SCRIPT = """
import json, os, sys, tempfile
from time import process_time

sys.dont_write_bytecode = False  # as programs are run
model, backend, shape = sys.argv[1:]
os.environ.pop("GLNN_TRUST", None)
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    os.environ["GLNN_CACHE"] = folder
    begin = process_time()
    import numpy as np
    import glnn
    session = glnn.InferenceSession(model, backend)
    feeds, kinds = {}, {"float": "float32", "double": "float64"}
    for info in session.get_inputs():
        dims = json.loads(shape) or [n if isinstance(n, int) else 1 for n in info.shape]
        kind = info.type[len("tensor(") : -1]
        feeds[info.name] = np.zeros(dims, kinds.get(kind, kind))
    start = process_time()
    session.plan({name: array.shape for name, array in feeds.items()})
    planned = process_time()
    session.run(None, feeds)
    done = process_time()
    print(json.dumps({"plan": 1e3 * (planned - start), "all": 1e3 * (done - begin)}))
    sys.stdout.flush()
    del session
"""


def sizes(text: str | None) -> list[int]:
    """The sizes that `text` has by commas, none where it is None. Raises GlnnError."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise GlnnError(f"--shape: expected sizes as 1,3,48,320, got {text!r}")
    return list(map(int, parts))


def located(model: str) -> str:
    """`model`, whole where it is a file: each version runs in a folder of its own."""
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True)
@trees.against_option
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option("--shape", help="Of each input, by commas.")
@trees.few_rounds_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...],
    against: Path | None,
    backend: str,
    shape: str | None,
    rounds: int,
    as_json: bool,
) -> None:
    about = {**machine(open_backend(backend).device), "backend": backend, "rounds": str(rounds)}
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        asked = located(model), backend, json.dumps(sizes(shape))
        for tree in filter(None, (trees.HERE, against)):
            trees.measured(tree.resolve(), SCRIPT, *asked)  # so that the driver knows the programs
        found = trees.in_turn(against, rounds, SCRIPT, *asked, shown=not as_json)
        rows |= {f"{Path(model).stem}, {what}": row for what, row in found.items()}
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    trees.show(rows, {}, "first plan, CPU time")


if __name__ == "__main__":
    run(main)

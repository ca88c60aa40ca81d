"""How long plans take to make, and what a newly assigned weight costs: ratios to another glnn.

    python -m benchmarks.planning --against FOLDER [--backend compute] [--repeat 5] [--json]

FOLDER holds another version of the project. Both are run alternately, each time in a process of its
own. vgg16: VGG-16's plan before any GL, for a shape that was not seen yet. steps: a chain of 200
small products with activations, until its first result is there, the programs being compiled.
weight: LeNet's run after one weight was assigned, in units of its normal run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import rich_click as click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

HERE = Path(__file__).resolve().parents[1]
SEEN = """
import json, sys, time
import numpy as np
import glnn
from glnn.layers import Linear, Sigmoid
from glnn.model import Model
try:
    from glnn.compile.plan import Outline
except ImportError:
    from glnn.model.plan import Outline

def graph(model):
    return getattr(model, "graph", model)

def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

name, found = sys.argv[1], {}
vgg = glnn.load("vgg16")
backend = glnn.InferenceSession("lenet", name).backend
perform = getattr(backend, "perform", lambda work: work())  # older ones have none
graph(vgg)
def outline(batch):
    return perform(lambda: Outline.of(graph(vgg), backend, {"input": (batch, 3, 224, 224)}))
outline(1)
found["vgg16"] = min(seconds(lambda: outline(batch)) for batch in (2, 3, 5))

def chain(width):
    layers = []
    for i in range(200):
        layers += [Linear(width, width, seed=i), Sigmoid()]
    return Model.sequential(layers, (width,))

def first(model, batch):
    glnn.InferenceSession(model, name).run(None, {"input": np.zeros((batch, 16), np.float32)})

model = chain(16)
first(model, 8)
found["steps"] = min(seconds(lambda: first(model, batch)) for batch in (7, 9, 10))

lenet = glnn.load("lenet")
session = glnn.InferenceSession(lenet, name)
x = {"input" if session.get_inputs()[0].name == "input" else session.get_inputs()[0].name:
     np.zeros((1, 1, 28, 28), np.float32)}
layer = next(node.layer for node in lenet.nodes if "weight" in node.layer.shapes)
run = lambda: session.run(None, x)
for _ in range(5): run()
plain = sorted(seconds(run) for _ in range(21))[10]
def assigned():
    layer.weight = layer.weight
    return seconds(run)
assigned()
found["weight"] = sorted(assigned() for _ in range(21))[10] / plain
print(json.dumps(found))
"""


def measured(tree: Path, backend: str) -> dict[str, float]:
    """What one process with the glnn of `tree` finds."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "GLNN_TRUST": "1"}
    command = [sys.executable, "-c", SEEN, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if done.returncode:
        raise click.ClickException(f"{tree}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command(help=__doc__)
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--backend", default="compute", show_default=True)
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True)
def main(against: Path | None, backend: str, repeat: int, as_json: bool) -> None:
    trees = {"here": HERE, **({"there": against.resolve()} if against else {})}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=repeat * len(trees))
        for _ in range(repeat):
            for name, tree in trees.items():
                runs[name].append(measured(tree, backend))
                bar.advance(task)
    report: dict[str, Any] = {"backend": backend, "repeat": repeat}
    for what in runs["here"][0]:
        medians = {name: median(run[what] for run in found) for name, found in runs.items()}
        ratio = medians["here"] / medians["there"] if against else None
        report[what] = {"here": medians["here"], "there": medians.get("there"), "ratio": ratio}
    if as_json:
        print(json.dumps(report, indent=1))
        return
    table = Table("", "here", "there", "ratio", title=f"planning, {backend}")
    for what in ("vgg16", "steps", "weight"):
        row = report[what]
        unit = (lambda v: f"{v:.2f} x") if what == "weight" else (lambda v: f"{1e3 * v:.1f} ms")
        cells = [unit(row[n]) if row[n] is not None else "" for n in ("here", "there")]
        table.add_row(what, *cells, "" if row["ratio"] is None else f"{row['ratio']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()

"""How long plans take to make, and what a newly assigned weight costs: ratios to another glnn.

    python -m benchmarks.planning --against FOLDER [--backend compute] [--rounds 5] [--json]

FOLDER holds another version of the project. Both are run alternately, each time in a process of its
own. vgg16: VGG-16's plan before any GL, for a shape that was not seen yet. steps: a chain of 200
small products with activations, until its first result is there, the programs being compiled.
weight: LeNet's run after one weight was assigned, in units of its normal run.
"""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from benchmarks import trees
from benchmarks.command import run

UNITS = {"weight": "runs"}
SEEN = """
import json, sys, time
import numpy as np
import glnn
from glnn.layers import Linear, Sigmoid
from glnn.model import Model
try:
    from glnn.compiler.memory_budget import Outline
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
    return perform(lambda: Outline.create(graph(vgg), backend, {"input": (batch, 3, 224, 224)}))
outline(1)
found["vgg16"] = 1e3 * min(seconds(lambda: outline(batch)) for batch in (2, 3, 5))

def chain(width):
    layers = []
    for i in range(200):
        layers += [Linear(width, width, seed=i), Sigmoid()]
    return Model.sequential(layers, (width,))

def first(model, batch):
    glnn.InferenceSession(model, name).run(None, {"input": np.zeros((batch, 16), np.float32)})

model = chain(16)
first(model, 8)
found["steps"] = 1e3 * min(seconds(lambda: first(model, batch)) for batch in (7, 9, 10))

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


@click.command(help=__doc__)
@trees.against_option
@click.option("--backend", default="compute", show_default=True)
@trees.rounds_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(against: Path | None, backend: str, rounds: int, as_json: bool) -> None:
    found = trees.in_turn(against, rounds, SEEN, backend, shown=not as_json)
    if as_json:
        print(json.dumps({"backend": backend, "rounds": rounds, **found}, indent=2))
        return
    trees.show(found, UNITS, f"planning, {backend}")


if __name__ == "__main__":
    run(main)

"""ResNets of glnn's layers: how much longer a run takes than its steps, here and in another glnn.

Both versions run alternately, each time in a process of its own, and PyTorch, eager and as a CUDA
graph, in one more, where it is installed and has CUDA. "run" is from host array to host array,
"steps" what is between, waited for, with everything on the device. Weights are random; shapes are
torchvision's.

    python -m benchmarks.resnet --depth 50 --against ../before
    python -m benchmarks.resnet --depth 18 --batch 8 --no-peers --json
    python -m benchmarks.resnet --depth 50 --size 64 --rounds 1
"""

from __future__ import annotations

import json
from pathlib import Path

import rich_click as click

from benchmarks import trees
from benchmarks.command import run
from benchmarks.one_resnet import DEPTHS
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Screen

SCRIPT = Path(__file__).with_name("one_resnet.py")
PYTORCH = """
import json, sys
import numpy as np
from benchmarks.networks import timed
from benchmarks.one_resnet import resnet
from benchmarks.peers import torch_peers

_, depth, size, batch, seconds = sys.argv[1:]
x = np.random.default_rng(1).random((int(batch), 3, int(size), int(size)), np.float32)
found = {}
try:
    import torch
    there = torch.cuda.is_available()
except ImportError:
    there = False
for peer in torch_peers(resnet(int(depth), size=int(size)), x) if there else ():
    ways = {"run": peer.run, "steps": peer.resident}
    for _ in range(10):  # cuDNN picks its algorithms
        peer.run()
    suffix = ", CUDA graph" if "graph" in peer.name else ""
    times = {way: timed(work, 10**6, float(seconds))["median_ms"] for way, work in ways.items()}
    times["run / steps"] = times["run"] / times["steps"]
    found |= {f"{way}{suffix}": time for way, time in times.items()}
print(json.dumps(found))
"""


@click.command(help=__doc__)
@trees.against_option
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option(
    "--depth", type=click.Choice([str(depth) for depth in DEPTHS]), default="50", show_default=True
)
@click.option("--size", type=click.IntRange(32), default=224, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True)
@trees.few_rounds_option
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.7, show_default=True, help="Of each measure."
)
@click.option("--peers/--no-peers", default=True, help="Also time PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    against: Path | None,
    backend: str,
    depth: str,
    size: int,
    batch: int,
    rounds: int,
    seconds: float,
    peers: bool,
    as_json: bool,
) -> None:
    asked = backend, depth, str(size), str(batch), str(seconds)
    about = {**machine(open_backend(backend).device), "backend": backend, "rounds": str(rounds)}
    about |= {"depth": depth, "size": str(size), "batch": str(batch)}
    script, peer = SCRIPT.read_text("utf-8"), PYTORCH if peers else ""
    found = trees.in_turn(against, rounds, script, *asked, shown=not as_json, peer=peer)
    if as_json:
        print(json.dumps({**about, "rows": found}, indent=2))
        return
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    ran = any(row["peer"] for row in found.values())
    units = {what: "" for what in found if "/" in what}
    trees.show(found, units, f"resnet{depth}, batch {batch}", "PyTorch" if ran else "")


if __name__ == "__main__":
    run(main)

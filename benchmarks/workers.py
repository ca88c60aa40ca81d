"""Images a second of one process, of two on one GPU, and of one on each GPU.

A worker is a process with one session of the model, which keeps two runs in flight, as a worker of
an engine for many machines does (docs/serving.md). All workers of a row begin together, and their
results must be alike before anything is timed. The GPUs are NVIDIA's, by CUDA's numbers; without
any, or with --gpus "", the workers share the device that opens first.

    python -m benchmarks.workers --model vgg16 --batch 8
    python -m benchmarks.workers --model net.onnx --batch 8 --gpus cuda:0,cuda:1 --seconds 5 --json
    python -m benchmarks.workers --model lenet --batch 100 --gpus "" --seconds 1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click

import glnn
from benchmarks.command import run
from benchmarks.in_flight import inputs
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.errors import GlnnError
from glnn.validation.comparison import relative_error

Row = dict[str, Any]
ROUNDS, DEPTH, SHOWN = 3, 2, 64
TOLERANCE = 1e-5
NVIDIA = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU


class Worker:
    """A process with a session, on the GPU that it was given."""

    def __init__(self, gpu: str, asked: Sequence[str]) -> None:
        """gpu: as GLNN_GPU has it, empty for the first. asked: model, batch and backend."""
        environment = {**os.environ, "GLNN_GPU": gpu} if gpu else None
        command = [sys.executable, "-m", "benchmarks.workers", "--be", *asked]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # which tells it to end
        self._process.wait()
        self._process.stdout.close()

    def ask(self, seconds: float) -> None:
        """Have it begin with runs for so many seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")

    def answer(self) -> Row:
        """What it says next. Raises GlnnError where it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise GlnnError(f"a worker ended with {self._process.wait()}")
        found: Row = json.loads(line)
        return found


def work(model: str, batch: int, backend: str) -> None:
    """Be a worker: say what the result is, then do as many seconds of runs as each line says."""
    session = glnn.InferenceSession(glnn.load(model), backend)
    feeds = inputs(session.model, batch, DEPTH)
    for one in feeds * 2:
        (first, *_) = session.run(None, one)
    device = session.backend.device
    where = device.capabilities.renderer if device else "NumPy"
    say({"device": where, "result": first.ravel()[:SHOWN].tolist()})
    for line in sys.stdin:
        seconds, start, runs = float(line), perf_counter(), 0
        waiting: deque[Future[Any]] = deque()
        while not runs or perf_counter() - start < seconds:
            waiting.append(session.run_async(None, feeds[runs % DEPTH]))
            runs += 1
            if len(waiting) == DEPTH:
                waiting.popleft().result()
        for future in waiting:
            future.result()
        say({"images": runs * batch, "seconds": perf_counter() - start})


def say(what: Row) -> None:
    """Give the parent one line."""
    print(json.dumps(what), flush=True)


def measured(name: str, gpus: Sequence[str], asked: Sequence[str], seconds: float) -> Row:
    """Images a second of a worker on each of `gpus`, together: the median of some rounds."""
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(gpu, asked)) for gpu in gpus]
        ready = [worker.answer() for worker in workers]
        rates = []
        for _ in range(ROUNDS + 1):  # the first one is not counted
            for worker in workers:
                worker.ask(seconds / ROUNDS)
            found = [worker.answer() for worker in workers]
            rates.append([one["images"] / one["seconds"] for one in found])
    each = [median(column[1:]) for column in zip(*rates)]
    return {
        "name": name,
        "gpus": list(gpus),
        "devices": [one["device"] for one in ready],
        "result": ready[0]["result"],
        "alike": all(_alike(one["result"], ready[0]["result"]) for one in ready),
        "each_per_s": each,
        "images_per_s": median(sum(row) for row in rates[1:]),
    }


def _alike(found: list[float], expected: list[float]) -> bool:
    return relative_error(np.array(found), np.array(expected)) <= TOLERANCE


def rows_to_measure(gpus: Sequence[str]) -> dict[str, list[str]]:
    """The rows, and the GPU of each worker."""
    first = gpus[0] if gpus else ""
    rows = {"one process": [first], "two processes on one GPU": [first] * 2}
    if len(gpus) > 1:
        rows[f"one process on each of {len(gpus)} GPUs"] = list(gpus)
        rows[f"two processes on each of {len(gpus)} GPUs"] = list(gpus) * 2
    return rows


@click.command(help=__doc__)
@click.option("--model", default="vgg16", show_default=True, help="What `glnn.load` takes.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--gpus", help="As GLNN_GPU has them, with commas between; CUDA's unless given.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=6.0, show_default=True, help="Of each row."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--be", is_flag=True, hidden=True, help="Be a worker.")
def main(
    model: str,
    batch: int,
    backend: str,
    gpus: str | None,
    seconds: float,
    as_json: bool,
    be: bool,
) -> None:
    """Measure, printing each row when it is done."""
    if be:
        work(model, batch, backend)
        return
    if gpus is None:
        gpus = ",".join(f"cuda:{i}" for i, _ in enumerate(NVIDIA.glob("*")))
    listed = [gpu for gpu in gpus.split(",") if gpu]
    out = Screen()
    asked = ["--model", model, "--batch", str(batch), "--backend", backend]
    about: Row = machine() | {"model": model, "batch": batch, "backend": backend}
    rows: list[Row] = []
    for name, places in rows_to_measure(listed).items():
        click.echo(f"{name}: {', '.join(filter(None, places)) or 'the first device'}", err=True)
        row = measured(name, places, asked, seconds)
        if not row.pop("alike") or not _alike(row["result"], (rows or [row])[0]["result"]):
            raise GlnnError(f"{name}: the workers' results differ, no rate is given")
        rows.append(row)
        row["ratio"] = row["images_per_s"] / rows[0]["images_per_s"]
        click.echo(f"  {number(row['images_per_s'])} images/s, {row['devices']}", err=True)
    for row in rows:
        del row["result"]
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    shown = table("", ">images a second", ">over one process")
    for row in rows:
        shown.add(row["name"], number(row["images_per_s"]), number(row["ratio"]))
    out.show(shown, f"{model}, batches of {batch}")


if __name__ == "__main__":
    run(main)

"""How much another program on the device slows one down, and how little one of low priority does.

Another process runs a model without end, by `priority="normal"` or "low". Beside it this one
measures runs of its own, and a task of the processor's alone: medians and 95th percentiles, as
ratios to what they take with nothing beside them. Each round has all three in turn. What the other
gets done, alone and beside this, is told as well.

    python -m benchmarks.priority --model vgg16 --batch 8 --beside vgg16 --beside-batch 32
    python -m benchmarks.priority --seconds 2 --json
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median, quantiles
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

Row = dict[str, Any]
ALONE, NORMAL, LOW = "nothing", "normal", "low"
SIDE = 200  # of the matrices that the processor multiplies
PAUSE = 0.02  # seconds between runs, as of a program that answers now and then
OTHER = """
import sys, time
import glnn
from benchmarks.in_flight import inputs
model, batch, backend, gpu, priority = sys.argv[1:]
session = glnn.InferenceSession(model, backend, gpu=gpu or None, priority=priority)
(feeds,) = inputs(session.model, int(batch), 1)
session.run(None, feeds)
start, runs = time.perf_counter(), 0
while True:
    session.run(None, feeds)
    runs += 1
    print(runs / (time.perf_counter() - start), flush=True)
"""


@contextmanager
def beside(priority: str, model: str, batch: int, backend: str, gpu: str) -> Iterator[list[float]]:
    """Another process runs the model; its runs a second are in the list afterwards."""
    rates: list[float] = []
    if priority == ALONE:
        yield rates
        return
    command = [sys.executable, "-c", OTHER, model, str(batch), backend, gpu, priority]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        if not other.stdout.readline():
            raise GlnnError(f"the other process: {other.communicate()[1].strip()[-300:]}")
        yield rates
    finally:
        other.terminate()
        said = other.communicate()[0].split()
        rates += map(float, said[-2:-1])  # the last line may be half of one


def latencies(work: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each `work`, with pauses between, for so long."""
    found: list[float] = []
    start = perf_counter()
    while len(found) < 3 or perf_counter() - start < seconds:
        time.sleep(PAUSE)
        before = perf_counter()
        work()
        found.append(1e3 * (perf_counter() - before))
    return found


@click.command(help=__doc__)
@click.option("--model", default="lenet", show_default=True, help="That is measured.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--beside", "other", default="lenet", show_default=True, help="That never ends.")
@click.option("--beside-batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--gpu", default="", help="An index, a name or cuda:N.")
@click.option("--seconds", type=click.FloatRange(0), default=5.0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def main(
    model: str,
    batch: int,
    other: str,
    beside_batch: int,
    backend: str,
    gpu: str,
    seconds: float,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure, printing each part on standard error."""
    session = glnn.InferenceSession(model, backend, gpu=gpu or None)
    (feeds,) = inputs(session.model, batch, 1)
    a = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    works: dict[str, Callable[[], object]]
    works = {"runs": partial(session.run, None, feeds), "processor": partial(np.matmul, a, a)}
    times: dict[tuple[str, str], list[float]] = {}
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        for priority in (ALONE, NORMAL, LOW):
            with beside(priority, other, beside_batch, backend, gpu) as done:
                for what, work in works.items():
                    work()
                    found = latencies(work, seconds / rounds / len(works))
                    times.setdefault((what, priority), []).extend(found)
                    said = f"{what} beside {priority}: median {median(found):.4g} ms"
                    click.echo(said, err=True)
            rates.setdefault(priority, []).extend(done)
    rows = [_row(what, priority, times, rates) for what, priority in times]
    if as_json:
        about: Row = machine(session.backend.device) | {"backend": backend}
        about |= {"model": model, "batch": batch, "beside": other, "beside_batch": beside_batch}
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    shown = table("", ">median ms", ">95% ms", ">median ratio", ">95% ratio", ">the other's runs/s")
    for row in rows:
        values = (row[k] for k in ("median_ms", "most_ms", "median_ratio", "most_ratio", "other"))
        shown.add(f"{row['what']} beside {row['beside']}", *map(number, values))
    Screen().show(shown, f"{model} of {batch} beside {other} of {beside_batch}")


def _row(
    what: str, priority: str, times: dict[tuple[str, str], list[float]], rates: dict[str, Any]
) -> Row:
    here, alone = (
        (median(found), quantiles(found, n=20)[-1])
        for found in (times[what, priority], times[what, ALONE])
    )
    return {
        "what": what,
        "beside": priority,
        "median_ms": here[0],
        "most_ms": here[1],
        "median_ratio": here[0] / alone[0],
        "most_ratio": here[1] / alone[1],
        "other": median(rates[priority]) if rates[priority] else None,
    }


if __name__ == "__main__":
    run(main)

"""One session used by several threads at once: throughput, CPU time, memory, right answers.

Each thread has inputs of its own, different ones, and waits for every answer, of `run` or of a
future of `run_async`; each answer is compared with what one thread got before, bit for bit. In each
round all numbers of threads have their turn; throughput is the median of rounds, and its ratio is
to that of one thread by `run`. "alone" is the process's only thread, which keeps GL's context, and
comes first; "1" is a thread beside it, whose work the device's own thread does. Resident memory and
objects of GL are counted before the first round of these and after the last.

    python -m benchmarks.threads --model lenet --batch 100 --runs 1000
    python -m benchmarks.threads --model vgg16 --batch 8 --runs 200 --json
    python -m benchmarks.threads --model lenet --batch 1 --wait spin --wait sleep --wait block
"""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks.command import run
from benchmarks.in_flight import inputs
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.core.settings import PRIORITIES, WAITS
from glnn.errors import GlnnError
from glnn.gl import Device

Array = NDArray[np.float32]
Row = dict[str, Any]
WARM_UP = 5
KINDS = ("Buffer", "Program", "Texture", "VertexArray")


class Work:
    """Runs of one session, each with one of several inputs, whose answers are known."""

    def __init__(self, session: glnn.InferenceSession, batch: int, most: int) -> None:
        self.session = session
        self._feeds = inputs(session.model, batch, most)
        for _ in range(WARM_UP):
            self._right = [session.run(None, feeds) for feeds in self._feeds]

    def once(self, which: int, later: bool) -> None:
        """One run; later: by a future. Raises GlnnError where its answer is another one."""
        feeds = self._feeds[which]
        if later:
            found = self.session.run_async(None, feeds).result()
        else:
            found = self.session.run(None, feeds)
        for got, right in zip(found, self._right[which], strict=True):
            if got.tobytes() != right.tobytes():
                raise GlnnError(f"input {which}: another answer than that of one thread")

    def seconds(self, threads: int, runs: int, later: bool) -> tuple[float, float]:
        """Wall and CPU time of so many runs by so many threads; 0 is this one."""
        failed: list[Exception] = []

        def work(first: int) -> None:
            try:
                for each in range(first, runs, max(threads, 1)):
                    self.once((first + each) % len(self._feeds), later)
            except Exception as error:
                failed.append(error)

        crowd = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
        cpu, start = process_time(), perf_counter()
        if not threads:
            work(0)
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        took = perf_counter() - start, process_time() - cpu
        if failed:
            raise failed[0]
        return took


def resident() -> float:
    """MiB of this process's memory, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def objects(device: Device | None) -> int:
    """How many objects of GL Python knows."""
    gc.collect()
    if device is not None:
        device.perform(lambda: None)  # frees what was dropped
    return sum(type(one).__name__ in KINDS for one in gc.get_objects())


def measure(
    work: Work, crowds: Sequence[int], runs: int, rounds: int, say: Callable[[str], object]
) -> tuple[list[Row], Row]:
    """Rows for each number of threads and way to ask, and what has grown meanwhile."""
    device = work.session.backend.device
    ways = [(0, False), *((count, later) for later, count in product((False, True), crowds))]
    found: dict[tuple[int, bool], list[tuple[float, float]]] = {way: [] for way in ways}
    begun = 0, 0.0
    for place, way in enumerate([ways[0]] * rounds + ways[1:] * rounds):
        if place == rounds:  # from here on there are other threads
            for later in (False, True):
                work.seconds(max(crowds), WARM_UP * max(crowds), later)
            begun = objects(device), resident()
        took = work.seconds(way[0], runs, way[1])
        found[way].append(took)
        say(f"{_name(*way)}: {runs / took[0]:.5g} runs a second, {1e6 * took[1] / runs:.0f} us CPU")
    grown = {"objects": objects(device) - begun[0], "mib": round(resident() - begun[1], 1)}
    rates = {way: median(runs / wall for wall, _ in took) for way, took in found.items()}
    one = rates.get((1, False), rates[0, False])
    rows = [
        {
            "threads": way[0],
            "way": "run_async" if way[1] else "run",
            "name": _name(*way),
            "per_s": rates[way],
            "ratio": rates[way] / one,
            "cpu_us": median(1e6 * cpu / runs for _, cpu in took),
            "busy": median(cpu / wall for wall, cpu in took),
        }
        for way, took in found.items()
    ]
    return rows, grown


def _name(threads: int, later: bool) -> str:
    return f"{threads or 'alone'} by {'run_async' if later else 'run'}"


@click.command(help=__doc__)
@click.option("--model", default="lenet", show_default=True, help="What `glnn.load` takes.")
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--gpu", default=None, help="An index, a name or cuda:N.")
@click.option("--threads", default="1,2,4,8", show_default=True, help="Numbers of threads.")
@click.option("--runs", type=click.IntRange(1), default=1000, show_default=True, help="In a round.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--wait", "waits", multiple=True, type=click.Choice(WAITS), default=["block"])
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.option("--apart", is_flag=True, help="No run begins before the last is over, to compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def main(
    model: str,
    batch: int,
    backend: str,
    gpu: str | None,
    threads: str,
    runs: int,
    rounds: int,
    waits: Sequence[str],
    priority: str,
    apart: bool,
    as_json: bool,
) -> None:
    """Measure, printing each round on standard error."""
    crowds, out, parts = _numbers(threads), Screen(), []
    loaded = glnn.load(model)
    overlapping = patch.object(Device, "contended", PropertyMock(return_value=False))
    with overlapping if apart else nullcontext():
        for wait in waits:
            device = None if backend == "cpu" else Device(gpu, wait=wait, priority=priority)
            work = Work(glnn.InferenceSession(loaded, backend, device=device), batch, max(crowds))
            told = partial(click.echo, err=True)
            rows, grown = measure(work, crowds, runs, rounds, told)
            parts.append({"wait": wait, "rows": rows, "grown": grown, "wrong": 0})
            about = machine(device)
            if device is not None:
                device.close()
            if not as_json:
                _show(out, rows, f"{model}, batches of {batch}, wait={wait}")
                out.say(f"grown by {grown['mib']} MiB and {grown['objects']} objects of GL\n")
    if as_json:
        about |= {"backend": backend, "model": model, "priority": priority}
        print(json.dumps({**about, "batch": batch, "runs": runs, "parts": parts}, indent=2))


def _numbers(text: str) -> list[int]:
    found = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(0 < count <= 1000 for count in found):
        raise GlnnError(f"--threads: expected numbers of threads as 1,2,4,8, got {text!r}")
    return found


def _show(out: Screen, rows: Sequence[Row], title: str) -> None:
    heads = ">runs a second", ">over one thread", ">CPU us a run", ">processors busy"
    shown = table("threads", *heads)
    for row in rows:
        shown.add(row["name"], *(number(row[k]) for k in ("per_s", "ratio", "cpu_us", "busy")))
    out.show(shown, title)


if __name__ == "__main__":
    run(main)

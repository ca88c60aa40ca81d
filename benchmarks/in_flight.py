"""Images a second with several runs in flight, and requests a second that are joined to batches.

"run" is one `session.run` at a time; "2 in flight" keeps so many of `session.run_async` asked for
and waits for the oldest. "steps" is what a plan's steps take with everything on the device, waited
for each time; "steps, back to back" waits once for several: what nothing that also moves data can
exceed. That the host's part can be done while the GPU computes is what Cronin 2018 expects in its
section 4.4. Requests are of one image each, 64 at a time: by a session with `max_batch` those that
wait are joined to one run. Results are checked before anything is timed in flight.

    python -m benchmarks.in_flight --model vgg16 --batch 8
    python -m benchmarks.in_flight --model vgg16 --batch 8 --seconds 5 --json
    python -m benchmarks.in_flight --model lenet --batch 1 --requests lenet --seconds 0.5
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks import beside, documents
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Feeds = Sequence[Mapping[str, Array]]
Row = dict[str, Any]
Way = Callable[[float], int]
"""Performs runs for so many seconds, at least one, waits for them, and says how many."""
ROUNDS = 3
QUEUES = (2, 4)
TOGETHER = 8  # runs of steps that are waited for at once
REQUESTS, MOST = 64, 32
TOLERANCE = 1e-5


def each(work: Callable[[int], object], count: int = 1) -> Way:
    """`work`, which gets a running number, and each time is so many runs."""

    def way(seconds: float) -> int:
        start, runs = perf_counter(), 0
        while not runs or perf_counter() - start < seconds:
            work(runs // count)
            runs += count
        return runs

    return way


def queued(session: glnn.InferenceSession, feeds: Feeds, depth: int) -> Way:
    """`depth` runs in flight, of which the oldest is waited for."""

    def way(seconds: float) -> int:
        start, runs = perf_counter(), 0
        waiting: deque[Future[list[Array]]] = deque()
        while not runs or perf_counter() - start < seconds:
            waiting.append(session.run_async(None, feeds[runs % len(feeds)]))
            runs += 1
            if len(waiting) == depth:
                waiting.popleft().result()
        for future in waiting:
            future.result()
        return runs

    return way


def at_once(session: glnn.InferenceSession, feeds: Feeds) -> list[Array]:
    """The first output of all `feeds`, which are asked for before any is waited for."""
    futures = [session.run_async(None, one) for one in feeds]
    return [future.result()[0] for future in futures]


def rates(ways: Mapping[str, Way], seconds: float) -> dict[str, float]:
    """Runs a second of each way: medians of rounds in which all have their turn, after one more."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    with progress() as bar:
        for place in bar.track(range(ROUNDS + 1), description="in flight"):
            for name, way in ways.items():
                start = perf_counter()
                runs = way(seconds / ROUNDS / (1 if place else 2))
                if place:
                    found[name].append(runs / (perf_counter() - start))
    return {name: median(values) for name, values in found.items()}


def inputs(model: glnn.Model, batch: int, count: int) -> list[dict[str, Array]]:
    """So many different feeds of so many images, for a model of one input."""
    if len(model.inputs) != 1:
        raise GlnnError(f"{model.name} has {len(model.inputs)} inputs, expected one")
    (info,) = model.inputs
    generator = np.random.default_rng(0)
    return [{info.name: generator.random(info.with_batch(batch), np.float32)} for _ in range(count)]


def check(found: Sequence[Array], expected: Sequence[Array], what: str) -> None:
    """Raise GlnnError unless `what` gives what runs one by one do."""
    for got, right in zip(found, expected, strict=True):
        error = relative_error(got, right.astype(np.float64))
        if not error <= TOLERANCE:
            raise GlnnError(f"{what}: a result is off by {error:.1e}, no time is given")


def in_flight(model: glnn.Model, backend: str, batch: int, seconds: float) -> list[Row]:
    """Images a second: one run at a time, several in flight, and by the steps alone."""
    session = glnn.InferenceSession(model, backend)
    feeds = inputs(model, batch, max(QUEUES))
    plan = session.plan({name: array.shape for name, array in feeds[0].items()})
    expected = [session.run(None, one)[0] for one in feeds]

    def steps(count: int) -> None:
        for _ in range(count):
            plan.launch()
        plan.backend.finish()

    alone = "steps, back to back"
    ways = {
        "run": each(lambda i: session.run(None, feeds[i % len(feeds)])),
        "steps": each(lambda _: steps(1)),
        alone: each(lambda _: steps(TOGETHER), TOGETHER),
    }
    found = rates(ways, seconds)  # before other threads have the device, which costs a hop
    check(at_once(session, feeds), expected, f"{len(feeds)} in flight")
    found |= rates({f"{n} in flight": queued(session, feeds, n) for n in QUEUES}, seconds)
    return [_row(name, "images", batch * n, n / found[alone]) for name, n in found.items()]


def requests(model: glnn.Model, backend: str, seconds: float) -> list[Row]:
    """Requests of one image a second: run one by one, at once, and joined to batches."""
    plain = glnn.InferenceSession(model, backend)
    joining = glnn.InferenceSession(model, backend, max_batch=MOST)
    feeds = inputs(model, 1, REQUESTS)
    expected = [plain.run(None, one)[0] for one in feeds]
    first = "one by one"
    ways = {first: each(lambda i: plain.run(None, feeds[i % len(feeds)]))}
    for name, session in (("at once", plain), (f"at once, max_batch {MOST}", joining)):
        check(at_once(session, feeds), expected, name)
        ways[f"{REQUESTS} {name}"] = each(partial(_all, session, feeds), REQUESTS)
    found = rates(ways, seconds)
    return [_row(name, "requests", n, n / found[first]) for name, n in found.items()]


def _all(session: glnn.InferenceSession, feeds: Feeds, _: int) -> None:
    at_once(session, feeds)


def _row(name: str, what: str, rate: float, ratio: float) -> Row:
    return {"name": name, "what": what, "per_s": rate, "ratio": ratio}


def show(out: Screen, rows: Sequence[Row], title: str, against: str) -> None:
    """Print `rows`, whose ratios are to the one called `against`."""
    shown = table("", f">{rows[0]['what']} a second", f">over {against}")
    for row in rows:
        shown.add(row["name"], number(row["per_s"]), number(row["ratio"]))
    out.show(shown, title)


def compared(model: str, rows: Sequence[Row]) -> Row:
    """What section 4.4 of Cronin 2018 expects, beside the rows of `model`."""
    figure = documents.figure("cronin_2018", "asynchronous_section_4_4")
    ours = {(row["name"], model): row["per_s"] for row in rows}
    rate = {row["name"]: row["per_s"] for row in rows}
    best = max(rate[f"{n} in flight"] for n in QUEUES)
    alone, whole = rate["run"], rate["steps, back to back"]
    here = f"of the rate of the GPU's work alone, {alone / whole:.0%} one by one"
    here += f" and {best / whole:.0%} in flight"
    said = beside.answer(figure, "the host could do", here, "yes" if best > alone else "no")
    return {
        "beside": beside.rows(figure, ours, "images/s"),
        "claims": [*beside.claims(figure, ours), said],
    }


@click.command(help=__doc__)
@click.option("--model", default="vgg16", show_default=True, help="What `glnn.load` takes.")
@click.option("--batch", type=click.IntRange(1), default=8, show_default=True)
@click.option("--requests", "asked", default="lenet", show_default=True, help="Their model.")
@click.option("--backend", default="compute", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0), default=1.5, show_default=True, help="Of each way."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(model: str, batch: int, asked: str, backend: str, seconds: float, as_json: bool) -> None:
    """Measure, printing each part when it is done."""
    out, loaded, small = Screen(), glnn.load(model), glnn.load(asked)
    about: Row = machine(glnn.InferenceSession(small, backend).backend.device)
    about |= {"backend": backend, "model": model, "batch": batch, "requests": asked}
    if not as_json:
        out.say(", ".join(f"{k} {v}" for k, v in about.items()))
    rows = in_flight(loaded, backend, batch, seconds)
    if not as_json:
        show(out, rows, f"{model}, batches of {batch}", "steps, back to back")
    joined = requests(small, backend, seconds)
    if not as_json:
        show(out, joined, f"{asked}, requests of one image", joined[0]["name"])
        return
    about |= compared(model, rows)
    print(json.dumps({**about, "rows": rows + joined}, indent=2))


if __name__ == "__main__":
    run(main)

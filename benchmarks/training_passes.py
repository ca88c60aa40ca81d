"""Steps of training with a pass and without it, in turns in one process.

Two plans of one step, with separate states, take turns of twenty steps, so that other load of host
and device affects both alike. "waited" is the time of a step after which the host waits for the
device, "queued" that of twenty steps with one wait at their end, divided by twenty; both in
microseconds. Losses are not compared: see `benchmarks.training`, whose networks these are.

    python -m benchmarks.training_passes
    python -m benchmarks.training_passes --only mlp,transformer --without consumers --json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import rich_click as click

from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from benchmarks.training_glnn import plan_step
from benchmarks.training_process import WORKS, Work, batches, select_works
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, progress
from glnn.compiler.plan import Plan
from glnn.core.types import Array
from glnn.graph.passes import Pass

TURN = 20  # steps
SKIPPED = 4  # first steps of a turn, disturbed by the turn of the other plan
PASSES = [one.value for one in Pass]

Feeds = list[Mapping[str, Array]]
Row = dict[str, Any]


def measure(work: Work, batch: int, backend: GlBackend, left_out: Pass, seconds: float) -> Row:
    """Run both plans for `seconds`, and return the times of the second half."""
    plans: dict[str, tuple[Plan, Feeds]] = {}
    for name, without in (("with", frozenset[Pass]()), ("without", frozenset({left_out}))):
        plan, inputs = plan_step(work, batch, backend, without)
        plans[name] = plan, [dict(zip(inputs, one, strict=True)) for one in batches(work, batch)]
    waited: dict[str, list[float]] = {name: [] for name in plans}
    queued: dict[str, list[float]] = {name: [] for name in plans}
    begin, turns = perf_counter(), 0
    while turns < 4 or perf_counter() - begin < seconds:
        for name, (plan, feeds) in plans.items():
            waited[name] += turn(plan, feeds, backend)
            start = perf_counter()
            for i in range(TURN):
                plan.run(feeds[i % len(feeds)], ())
            backend.finish()
            queued[name].append(1e6 * (perf_counter() - start) / TURN)
        turns += 1
    row: Row = {"work": work.name, "batch": batch}
    for name, (plan, _) in plans.items():
        commands = [kind for kind, *_ in plan.executable.commands.commands]
        times = sorted(waited[name][len(waited[name]) // 2 :])
        row[name] = {
            "launches": len(plan.steps),
            "barriers": commands.count("barrier"),
            "waited_us": median(times),
            "waited_10_percent_us": quantiles(times, n=10)[0],
            "queued_us": median(queued[name][len(queued[name]) // 2 :]),
        }
    return row


def turn(plan: Plan, feeds: Feeds, backend: GlBackend) -> list[float]:
    """Return the microseconds of the steps of one turn that count."""
    times: list[float] = []
    for i in range(TURN):
        start = perf_counter()
        plan.run(feeds[i % len(feeds)], ())
        backend.finish()
        times.append(1e6 * (perf_counter() - start))
    return times[SKIPPED:]


@click.command(help=__doc__)
@click.option("--only", default="mlp", show_default=True, help="Beginnings of networks' names.")
@click.option("--batch", type=click.IntRange(1), help="Samples a step, in place of several.")
@click.option("--without", default=Pass.CONSUMERS.value, show_default=True,
              type=click.Choice(PASSES), help="The pass.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0), default=4.0, show_default=True,
              help="Of each network and batch.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(only: str, batch: int | None, without: str, seconds: float, as_json: bool) -> None:
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    with progress(not as_json) as bar:
        rows = [
            measure(WORKS[name], size, backend, Pass(without), seconds)
            for name, size in bar.track(select_works(only, batch), description="networks")
        ]
    about = {**machine(backend.device), "without": without}
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    screen = Screen()
    screen.say(", ".join(f"{key} {value}" for key, value in about.items()))
    heads = (">launches", ">barriers", ">waited", ">10%", ">queued")
    shown = table("network", ">batch", "pass", *heads)
    for row in rows:
        for name in ("with", "without"):
            times = (f"{number:.1f}" for number in list(row[name].values())[2:])
            counts = row[name]["launches"], row[name]["barriers"]
            shown.add(row["work"], str(row["batch"]), name, *map(str, counts), *times)
    screen.show(shown, f"one step of training with {without} and without, microseconds")


if __name__ == "__main__":
    run(main)

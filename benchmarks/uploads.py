"""Where the time of a large input goes on its way to a GPU with memory of its own, in milliseconds.

The input of a network at a batch is copied by threads of the host to memory that the device reads
("host"), and from there by the device ("device"). An upload does both in parts, the device's first
copy behind the host's first part ("upload, 8 parts"); as one part nothing overlaps. "steps" is the
network with its input on the device. "steps and device, one behind the other" gives the device's
copy, of an input that nothing reads, behind the steps without waiting in between: where that is
their sum, the device does not copy while it computes, and slices of an input hide no more than the
host's part. "run" is from host array to host array, by the number of parts; "4 requests" are the
same samples as requests of a quarter of the batch, two under way. "first steps" are times of single
steps, from the first on, until they add up to the time of an upload: what would have to run by
slices to hide all of it.

    python -m benchmarks.uploads
    python -m benchmarks.uploads --network resnet50 --batch 8 --parts 8,16 --json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click

import glnn
from benchmarks.command import run
from benchmarks.layered_networks import NETWORKS
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number
from glnn.core.layout.layout import DENSE
from glnn.core.types import Array
from glnn.errors import GlnnError
from glnn.gl import transfer
from glnn.gl.buffer import Buffer, StagedBlock
from glnn.profiling import profile

LEAST = 3  # runs
PROFILED = 3  # runs of the profile
REQUESTS = 4  # into which a batch is divided


def in_turn(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the median milliseconds of `ways`, which wait, called one after another."""
    for least, most in ((1, seconds / 2), (LEAST, seconds)):  # to warm up, then to measure
        times: dict[str, list[float]] = {name: [] for name in ways}
        begun, runs = perf_counter(), 0
        while runs < least or perf_counter() - begun < most:
            for name, way in ways.items():
                before = perf_counter()
                way()
                times[name].append(1e3 * (perf_counter() - before))
            runs += 1
    return {name: median(values) for name, values in times.items()}


def of_requests(session: glnn.InferenceSession, name: str, x: Array) -> None:
    """Run `x` as requests of equal parts of its samples, and wait for all."""
    for request in [session.run_async(None, {name: part}) for part in np.split(x, REQUESTS)]:
        request.result()


class Staged:
    """An array on its way to the device by staged memory, in at most so many parts."""

    def __init__(self, backend: GlBackend, x: Array, parts: int) -> None:
        self.device, self.x, self.parts = backend.device, x, parts
        with Parts(parts):
            self.block = StagedBlock(x.size, self.device)
            self.buffer = Buffer(x.shape, DENSE, memory=self.block)

    def host(self) -> None:
        """Copy by the host alone."""
        assert self.block.host is not None
        with Parts(self.parts):
            transfer.threaded_copy(self.block.host[: self.x.size], self.x.reshape(-1).view("u4"))

    def begin(self) -> None:
        """Have the device copy, and do not wait."""
        self.block.to_device(0, self.block.size)

    def upload(self) -> None:
        """Do both, and wait."""
        with Parts(self.parts):
            self.buffer.put(self.x)
        self.device.wait()


class Parts:
    """So many parts of a copy at the most, for the time of a `with`."""

    def __init__(self, most: int) -> None:
        self._most, self._before = most, transfer.MAX_PARTS

    def __enter__(self) -> None:
        transfer.MAX_PARTS = self._most

    def __exit__(self, *_: object) -> None:
        transfer.MAX_PARTS = self._before


def measured(name: str, batch: int, counts: list[int], seconds: float) -> dict[str, Any]:
    """Return all rows for the network `name`. Raises GlnnError where nothing can be staged."""
    model = NETWORKS[name]()
    sessions = {count: glnn.InferenceSession(model, "compute") for count in counts}
    session = next(iter(sessions.values()))
    backend = session.backend
    assert isinstance(backend, GlBackend)
    if not backend.device.capabilities.buffer_storage:
        raise GlnnError("expected a device with EXT_buffer_storage, which staged memory takes")
    (given,) = session.get_inputs()
    shape = (batch, *(int(size) for size in given.shape[1:]))
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    plan = session.plan({given.name: shape})

    def whole(count: int) -> Callable[[], object]:
        with Parts(count):  # whose buffers are made in so many parts
            sessions[count].plan({given.name: shape})
            sessions[count].run(None, {given.name: x})

        def again() -> None:
            with Parts(count):
                sessions[count].run(None, {given.name: x})

        return again

    def steps() -> None:
        plan.launch()
        backend.finish()

    def of_device() -> dict[str, float]:
        staged = {count: Staged(backend, x, count) for count in (1, *counts)}
        one = next(iter(staged.values()))

        def device() -> None:
            one.begin()
            backend.device.wait()

        def both() -> None:
            plan.launch()
            one.begin()
            backend.device.wait()

        ways: dict[str, Callable[[], object]] = {
            f"upload, {count} parts": way.upload for count, way in staged.items()
        }
        ways["host, 1 part"] = one.host
        ways["host"] = staged[counts[0]].host
        ways |= {"device": device, "steps": steps}
        ways["steps and device, one behind the other"] = both
        return in_turn(ways, seconds * len(ways))

    plan.upload({given.name: x})
    rows = backend.perform(of_device)
    runs = {f"run, {count} parts": whole(count) for count in counts}
    if batch % REQUESTS == 0:
        session.plan({given.name: (batch // REQUESTS, *shape[1:])})
        runs[f"{REQUESTS} requests"] = partial(of_requests, sessions[counts[0]], given.name, x)
    rows |= in_turn(runs, seconds * len(runs))
    layers = profile(plan, {given.name: x}, PROFILED).layers
    times = [one.wall_ms if one.kernel_ms is None else one.kernel_ms for one in layers]
    upload = rows[f"upload, {counts[0]} parts"]
    first = sum(so_far < upload for so_far in accumulate(times)) + 1
    steps_ms = dict(zip((f"{i}" for i in range(1, first + 1)), times, strict=False))
    return {"mb": x.nbytes / 1e6, "rows": rows, "first_steps_ms": steps_ms}


@click.command(help=__doc__)
@click.option("--network", default="mobilenet_v2", show_default=True, help=", ".join(NETWORKS))
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--parts", default="8,16,32", show_default=True, help="The most parts, by commas.")
@click.option("--seconds", type=click.FloatRange(0), default=0.3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(network: str, batch: int, parts: str, seconds: float, as_json: bool) -> None:
    if network not in NETWORKS:
        raise GlnnError(f"--network: expected {', '.join(NETWORKS)}, got {network!r}")
    counts = parts.split(",")
    if not all(one.isascii() and one.isdecimal() and int(one) > 1 for one in counts):
        raise GlnnError(f"--parts: expected numbers above 1 as 8,16, got {parts!r}")
    found = measured(network, batch, [int(one) for one in counts], seconds)
    device = glnn.InferenceSession("lenet", "compute").backend.device
    result = {**machine(device), "network": network, "batch": batch, **found}
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out, shown = Screen(), table("", ">ms")
    for name, ms in found["rows"].items():
        shown.add(name, number(ms))
    out.show(shown, f"{result['device']}: {network}, batch {batch}, {found['mb']:.1f} MB")
    each = ", ".join(number(ms) for ms in found["first_steps_ms"].values())
    out.say(f"first steps, until an upload's time is reached: {each} ms")


if __name__ == "__main__":
    run(main)

"""The time of a random read of the CPU and of the GPU, as by LMBench (Cheng, figures 1 and 2).

One load after the other walks a random cycle through all lines of 128 bytes of so much memory; each
says where the next one is, so none begins before the one before has ended. On the CPU a few lines
of C do it, compiled here where there is a compiler; on the GPU one invocation of a compute shader.
Where both end up is checked. Levels are read off the curve: l1 is its beginning, memory its end,
and l2 where it is flattest in between.

    python -m benchmarks.latency
    python -m benchmarks.latency --mib 16 --json
    python -m benchmarks.latency --plot latency.png
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.command import chart, check_picture, run
from benchmarks.compiled import library
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.errors import GlnnError
from glnn.gl import Buffer, Program, Source
from glnn.profiling import time_work

Order = NDArray[np.int64]
Chase = Callable[[int, int], int]
SMALLEST = 1 << 12  # bytes
LINE = 128  # bytes: at least a cache's line, and two where neighbours are fetched along
LOADS = 1 << 15  # a launch: llvmpipe leaves loops that are twice as long
MEASURE_SECONDS = 0.02  # of the CPU's clock
REPEAT = 5
APART = 1.5  # times: what is nearer to the first or the last level belongs to it
SOURCE = Path(__file__).with_name("chase.c")
SHADER = """\
layout(local_size_x = 1) in;
layout(std430, binding = 0) buffer Next { int next[]; };
layout(std430, binding = 1) buffer Place { int place[]; };
uniform int loads;
void main() {
    int at = place[0];
    for (int i = 0; i < loads; ++i) at = next[at];
    place[0] = at;
}
"""


def cycle(nbytes: int) -> Order:
    """The lines of so much memory in a random order, the first of them first."""
    rest = 1 + np.random.default_rng(nbytes).permutation(nbytes // LINE - 1)
    return np.concatenate([np.zeros(1, np.int64), rest])


def compiled() -> Chase:
    """The CPU's walk. Raises GlnnError where there is no compiler."""
    chase: Any = library(SOURCE).chase
    chase.restype, chase.argtypes = ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_size_t]
    found: Chase = chase
    return found


def cpu_ns(chase: Chase, order: Order) -> float:
    """Nanoseconds of one load of the CPU. Raises GlnnError where it ends elsewhere than it must."""
    words = LINE // 8
    memory = np.zeros((len(order) + 1) * words, np.uint64)
    start = -(-memory.ctypes.data // LINE) * LINE
    lines = memory[(start - memory.ctypes.data) // 8 :][: len(order) * words]
    lines[order * words] = start + np.roll(order, -1).astype(np.uint64) * np.uint64(LINE)
    place, done, count = start, 0, len(order)  # the first walk brings what caches hold

    def seconds(loads: int) -> float:
        nonlocal place, done
        begun = perf_counter()
        place = chase(place, loads)
        took = perf_counter() - begun
        done += loads
        return took

    while seconds(count) < MEASURE_SECONDS:
        count *= 2
    taken = median(seconds(count) for _ in range(REPEAT)) / count
    if place != start + int(order[done % len(order)]) * LINE:
        raise GlnnError(f"the CPU's walk of {len(order)} lines went astray, no time is given")
    return 1e9 * taken


def gpu_ns(backend: GlBackend, order: Order) -> tuple[float, bool]:
    """Nanoseconds of one load of the GPU, and whether its own timer told them.

    Raises GlnnError where the walk ends elsewhere than it must.
    """
    words = LINE // 4
    following = np.zeros(len(order) * words, np.int32)
    following[order * words] = np.roll(order, -1) * words
    lines = Buffer(following.shape, parse("R"), dtype=DType.int32)
    place = Buffer((1,), parse("R"), dtype=DType.int32)
    lines.set(following)
    place.set(np.zeros(1, np.int32))
    device, launches = backend.device, 0
    text = device.capabilities.header("compute") + SHADER
    origin = tuple(("latency", i) for i in range(1, len(text.splitlines()) + 1))

    def prepared() -> Program:
        program = Program.compute(device, Source("latency", text, origin))
        program.set({"loads": LOADS})
        return program

    program = backend.perform(prepared)

    def work() -> None:
        nonlocal launches
        lines.push(device).bind_to_storage_buffer(0)
        place.push(device).bind_to_storage_buffer(1)
        program.dispatch((1, 1, 1))
        device.barrier()
        launches += 1

    def warm() -> None:
        for _ in range(-(-len(order) // LOADS)):
            work()

    backend.perform(warm)
    timing = time_work(backend, work, REPEAT, warm=0.0)
    place.mark_written()
    ended = int(backend.perform(place.pull)[0])
    lines.release()
    if ended != int(order[launches * LOADS % len(order)]) * words:
        raise GlnnError(f"the GPU's walk of {len(order)} lines went astray, no time is given")
    return 1e9 * timing.seconds / LOADS, timing.by_timer


def levels(times: list[tuple[int, float]]) -> dict[str, float]:
    """The time at each level, of (bytes, ns) by growing size: l2 only where it stands apart."""
    if len(times) < 2:
        return {}
    first, last = times[0][1], times[-1][1]
    slopes = {
        ns: log(after / before) / log(more / less)
        for (less, before), (_, ns), (more, after) in zip(times, times[1:], times[2:], strict=False)
        if APART * first < ns < last / APART
    }
    flattest = {"l2": min(slopes, key=lambda ns: slopes[ns])} if slopes else {}
    return {"l1": first, **flattest, "memory": last}


@click.command(help=__doc__)
@click.option("--mib", type=click.IntRange(1, 1024), default=256, show_default=True, help="Most.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(mib: int, plot: Path | None, as_json: bool) -> None:
    check_picture(plot)
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    most = backend.device.capabilities.max_shader_storage_block_size
    rows: list[dict[str, Any]] = []
    reason: str | None = None
    sizes = [SMALLEST << i for i in range((mib << 20).bit_length()) if SMALLEST << i <= mib << 20]
    with progress(not as_json) as bar:
        chase: Chase | None = None
        try:
            chase = compiled()
        except GlnnError as error:
            reason = str(error)
        for nbytes in bar.track(sizes, description="walking"):
            order = cycle(nbytes)
            row: dict[str, Any] = {"bytes": nbytes, "cpu_ns": None, "gpu_ns": None}
            row["cpu_ns"] = None if chase is None else cpu_ns(chase, order)
            if nbytes <= most:
                row["gpu_ns"], row["by_timer"] = gpu_ns(backend, order)
            rows.append(row)
    found = {
        side: levels([(r["bytes"], r[f"{side}_ns"]) for r in rows if r[f"{side}_ns"] is not None])
        for side in ("cpu", "gpu")
    }
    ours = {(side, level): ns for side in found for level, ns in found[side].items()}
    figure = documents.figure("cheng", "figure_1")
    result = {
        **machine(backend.device),
        "line": LINE,
        "no_cpu": reason,
        "rows": rows,
        "levels": found,
        "beside": beside.rows(figure, ours, "ns"),
        "claims": beside.claims(figure, ours, "ns"),
    }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, figure, ours)
    if plot is not None:
        _draw(rows, plot)


def _print(result: dict[str, Any], figure: documents.Figure, ours: documents.Ours) -> None:
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in list(result.items())[:6]))
    if result["no_cpu"]:
        out.say(result["no_cpu"])
    shown = table(">KiB", ">CPU, ns", ">GPU, ns", "by")
    for row in result["rows"]:
        told = "" if "by_timer" not in row else "timer" if row["by_timer"] else "clock"
        times = ("-" if row[k] is None else number(row[k]) for k in ("cpu_ns", "gpu_ns"))
        shown.add(str(row["bytes"] >> 10), *times, told)
    out.show(shown, "a random read")
    beside.show(out, figure, ours, "ns")


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The time of a load over the size."""
    with chart(path, "bytes", "ns a load") as axes:
        for side in ("cpu", "gpu"):
            points = [(r["bytes"], r[f"{side}_ns"]) for r in rows if r[f"{side}_ns"] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=side.upper())
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")


if __name__ == "__main__":
    run(main)

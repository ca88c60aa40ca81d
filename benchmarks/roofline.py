"""This device's roofline and transfers, as Cheng measures them (mixbench, transfer tests).

Arithmetic rate over operational intensity: every invocation reads a vec4, multiplies and adds to it
so many times, and writes it. Transfers: host to device, device to host, device to device.

    python -m benchmarks.roofline
    python -m benchmarks.roofline --backend feedback
    python -m benchmarks.roofline --json
    python -m benchmarks.roofline --plot roofline.png
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click

from benchmarks.command import check_picture, pyplot, run, save
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.device import Buffer, Device, Program, Source, Timer
from glnn.layout import parse

INTENSITIES = (0, 1, 4, 16, 64, 256, 1024)  # multiply-adds of each float
MORE = {"compute": (), "feedback": (4096,)}  # to begin a vertex takes time
FLOATS = 1 << 24  # 64 MiB
SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)  # floats a transfer
WARM_SECONDS = 0.1
SHADER = """\
#define STEPS {steps}
uniform float factor;
vec4 worked(vec4 a) {{
    vec4 b = a + 1.0;
    // Two chains, so that one need not wait for itself.
    for (int step = 0; step < STEPS / 2; ++step) {{
        a = a * factor + b;
        b = b * factor + a;
    }}
    return a + b;
}}
"""
MAINS = {
    "compute": """\
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
void main() {
    int i = int(gl_GlobalInvocationID.y * gl_NumWorkGroups.x * 64u + gl_GlobalInvocationID.x);
    result[i] = worked(x[i]);
}
""",
    "feedback": """\
in highp vec4 x;
out highp vec4 result;
void main() { result = worked(x); }
""",
}


def program(device: Device, steps: int, backend: str) -> Program:
    """The program of `steps` multiply-adds a float."""
    text = device.capabilities.header(backend) + SHADER.format(steps=steps) + MAINS[backend]
    origin = tuple(("roofline", i) for i in range(1, len(text.splitlines()) + 1))
    source = Source("roofline", text, origin)
    if backend == "compute":
        return Program.compute(device, source)
    return Program.feedback(device, source, ("result",))


def worker(device: Device, made: Program, source: Buffer, out: Buffer) -> Callable[[], None]:
    """What runs the program `made` on every float of `source`."""
    made.set({"factor": 0.5})
    if made.stride:
        array = made.vertices({"x": (source.push(device), 4)})
        return partial(made.capture, array, FLOATS // 4, 1, out.push(device))

    def work() -> None:
        source.push(device).bind_to_storage_buffer(0)
        out.push(device).bind_to_storage_buffer(1)
        made.dispatch((FLOATS // 4 // 64 // 64, 64, 1))
        device.barrier()

    return work


def seconds(device: Device, work: Callable[[], None]) -> tuple[float, bool]:
    """Median seconds of `work`, and whether the GPU's own timer told them."""
    start = perf_counter()
    while perf_counter() - start < WARM_SECONDS:
        work()
        device.finish()
    timer = Timer(device)
    if timer.prove(work) is None and (sample := timer.measure(work, 9)) is not None:
        return sample.gpu, True
    return median(_wall(work, device.finish) for _ in range(5)), False


def _wall(work: Callable[[], object], finish: Callable[[], None]) -> float:
    finish()
    start = perf_counter()
    work()
    finish()
    return perf_counter() - start


def intensities(device: Device, backend: str = "compute") -> list[dict[str, Any]]:
    """GFLOP/s and GB/s at each operational intensity, by compute or by vertex shaders."""
    source, out = Buffer((FLOATS,), parse("R")), Buffer((FLOATS,), parse("R"))
    source.set(np.full(FLOATS, 1e-3, np.float32))
    rows = []
    for steps in (*INTENSITIES, *MORE[backend]):
        work = worker(device, program(device, steps, backend), source, out)
        time, by_timer = seconds(device, work)
        flops = FLOATS * (2 * (steps // 2 * 2) + 2)
        rows.append(
            {
                "flop_per_byte": flops / (8 * FLOATS),
                "gflops": flops / time / 1e9,
                "gb_s": 8 * FLOATS / time / 1e9,
                "by_timer": by_timer,
            }
        )
    return rows


def peak_gflops(device: Device) -> float:
    """The device's greatest FP32 rate: what utilisation is a share of."""
    return max(float(row["gflops"]) for row in intensities(device))


def transfers(device: Device) -> list[dict[str, Any]]:
    """GB/s of uploads, readbacks and copies on the device, by the clock on the wall."""
    rows = []
    for floats in SIZES:
        array = np.zeros(floats, np.float32)
        one, two = Buffer((floats,), parse("R")), Buffer((floats,), parse("R"))
        first, second = one.push(device), two.push(device)
        read = np.empty(floats, np.float32)
        ways: dict[str, Callable[[], object]] = {
            "host to device": partial(first.write, array),
            "device to host": partial(second.read_into, read),
            "device to device": partial(device.context.copy_buffer, second, first),
        }
        row: dict[str, Any] = {"bytes": 4 * floats}
        for name, work in ways.items():
            for _ in range(3):
                work()
            time = median(_wall(work, device.finish) for _ in range(15))
            moved = 8 if name == "device to device" else 4  # read and written
            row[name] = moved * floats / time / 1e9
        rows.append(row)
    return rows


@click.command()
@click.option(
    "--backend", "name", type=click.Choice(list(MAINS)), default="compute", show_default=True
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(name: str, plot: Path | None, as_json: bool) -> None:
    """Measure the arithmetic rate and bandwidth of a device's shaders, and its transfers."""
    check_picture(plot)
    backend = open_backend(name)
    assert isinstance(backend, GlBackend)
    device = backend.device
    with progress(not as_json) as bar:
        task = bar.add_task("measuring", total=2)
        rows = intensities(device, name)
        bar.advance(task)
        moved = transfers(device)
        bar.advance(task)
    result = {
        **machine(device),
        "backend": name,
        "peak_gflops": max(row["gflops"] for row in rows),
        "peak_gb_s": max(row["gb_s"] for row in rows),
        "roofline": rows,
        "transfers": moved,
    }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
    if plot is not None:
        draw(rows, plot)


def _print(result: dict[str, Any]) -> None:
    """Print what was measured as tables."""
    rows, moved = result["roofline"], result["transfers"]
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in list(result.items())[:7]))
    roof = table(">flop / byte", ">GFLOP/s", ">GB/s", "by")
    for row in rows:
        told = "timer" if row["by_timer"] else "clock"
        roof.add(number(row["flop_per_byte"]), number(row["gflops"]), number(row["gb_s"]), told)
    out.show(roof, "roofline")
    names = list(moved[0])[1:]
    trips = table(">bytes", *(f">{name}" for name in names))
    for row in moved:
        trips.add(str(row["bytes"]), *(number(row[name]) for name in names))
    out.show(trips, "transfers, GB/s by the clock")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """GFLOP/s over the operational intensity."""
    figure, axes = pyplot().subplots(figsize=(7, 5))
    axes.loglog([r["flop_per_byte"] for r in rows], [r["gflops"] for r in rows], marker="o")
    axes.set_xlabel("FLOP / byte")
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    save(figure, path)


if __name__ == "__main__":
    run(main)

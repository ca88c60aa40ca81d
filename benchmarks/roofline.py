"""The rate of arithmetic over operational intensity, as Cheng has it by mixbench (figures 5 to 10).

Every invocation reads four numbers, multiplies and adds so many times, and writes four: in FP32, in
FP16 and in 32-bit integers. Results are checked before anything is timed. GLSL ES has no FP16 of
its own: an extension's is taken where the driver has one, else mediump, and what the driver makes
of that. By the feedback backend there is FP32 only.

    python -m benchmarks.roofline
    python -m benchmarks.roofline --backend feedback
    python -m benchmarks.roofline --mib 16 --json
    python -m benchmarks.roofline --plot roofline.png
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import rich_click as click

from benchmarks import beside, documents
from benchmarks.arithmetic import FP32, INT32, MAINS, Arithmetic, halves
from benchmarks.command import chart, check_picture, run
from benchmarks.record import machine, synchronized_seconds
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.gl import Buffer, Device, Program, Timer

STEPS = (0, 2, 4, 16, 64, 256, 1024)  # multiply-adds of each number
MORE = {"compute": (), "feedback": (4096,)}  # to begin a vertex takes time
NUMBERS, FEW = 1 << 24, 1 << 18  # floats, 64 MiB and 1 MiB
LONG_ENOUGH = 0.005  # seconds
WARM_SECONDS = 0.1
LONG_SECONDS = 0.1  # of one run: the clock is near enough
roof_option = click.option(
    "--roof-mib",
    type=click.IntRange(1, 256),
    default=NUMBERS >> 18,
    show_default=True,
    help="Of FP32 numbers that the roof is measured by.",
)
LEAP = 1.1  # times the bandwidth at the intensity before
UNITS = {"fp32": "GFLOP/s", "fp16": "GFLOP/s", "int32": "GIOP/s"}


def worker(
    device: Device, made: Program, source: Buffer, out: Buffer, quads: int
) -> Callable[[], None]:
    """What runs the program `made` on so many times four numbers of `source`."""
    if made.stride:
        array = made.vertex_array({"x": (source.push(device), 4)})
        return partial(made.capture, array, quads, 1, out.push(device))

    def work() -> None:
        source.push(device).bind_to_storage_buffer(0)
        out.push(device).bind_to_storage_buffer(1)
        made.dispatch((quads // 64 // 64, 64, 1))
        device.barrier()

    return work


def seconds(device: Device, work: Callable[[], None]) -> tuple[float, bool]:
    """Median seconds of `work`, and whether the GPU's own timer told them."""
    start = perf_counter()
    while perf_counter() - start < WARM_SECONDS:
        once = synchronized_seconds(work, device.finish)
    if once > LONG_SECONDS:
        return median([once, *(synchronized_seconds(work, device.finish) for _ in range(2))]), False
    timer = Timer(device)
    if timer.prove(work) is None and (sample := timer.measure(work, 9)) is not None:
        return sample.gpu, True
    return median(synchronized_seconds(work, device.finish) for _ in range(5)), False


def intensities(
    device: Device,
    backend: str = "compute",
    arithmetic: Arithmetic = FP32,
    numbers: int = NUMBERS,
    least: int = 0,
) -> list[dict[str, Any]]:
    """Operations and bytes a second at each operational intensity, by compute or vertex shaders.

    numbers: how many are read, a multiple of 16,384. least: multiply-adds of each. Raises GlnnError
    where a result is wrong.
    """
    source, out = arithmetic.numbers(numbers), arithmetic.room(numbers)
    moved = 2 * arithmetic.number_bytes * numbers
    rows = []
    for steps in (steps for steps in (*STEPS, *MORE[backend]) if steps >= least):
        program = arithmetic.program(device, steps, backend)
        checked = arithmetic.room(numbers)  # a result that was read may stay on the host
        worker(device, program, source, checked, numbers // 4)()
        checked.mark_written()
        arithmetic.check(checked, steps)
        checked.release()
        time, by_timer = seconds(device, worker(device, program, source, out, numbers // 4))
        flops = numbers * (2 * steps + 2)
        rows.append(
            {
                "arithmetic": arithmetic.name,
                "multiply_adds": steps,
                "flop_per_byte": flops / moved,
                "gflops": flops / time / 1e9,
                "gb_s": moved / time / 1e9,
                "by_timer": by_timer,
            }
        )
    source.release()
    out.release()
    return rows


def peak_gflops(device: Device) -> float:
    """The device's greatest FP32 rate: what utilisation is a share of.

    Of as many numbers as keep it busy for LONG_ENOUGH, up to NUMBERS.
    """
    numbers = FEW
    while True:
        rows = intensities(device, numbers=numbers, least=STEPS[-2])
        if numbers >= NUMBERS or 8 * numbers / rows[-1]["gb_s"] / 1e9 >= LONG_ENOUGH:
            return max(float(row["gflops"]) for row in rows)
        numbers *= 8


def leaps(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The first intensity at which bandwidth and rate grow together, by arithmetic, if at any."""
    found: dict[str, float] = {}
    for before, row in pairwise(rows):
        same = before["arithmetic"] == row["arithmetic"]
        if same and row["gb_s"] > LEAP * before["gb_s"]:
            found.setdefault(row["arithmetic"], row["flop_per_byte"])
    return found


@click.command(help=__doc__)
@click.option(
    "--backend", "name", type=click.Choice(list(MAINS)), default="compute", show_default=True
)
@click.option(
    "--mib", type=click.IntRange(1, 256), default=64, show_default=True, help="Of FP32 numbers."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(name: str, mib: int, plot: Path | None, as_json: bool) -> None:
    check_picture(plot)
    backend = open_backend(name)
    assert isinstance(backend, GlBackend)
    device = backend.device
    kinds = [FP32, halves(device), INT32] if name == "compute" else [FP32]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for kind in bar.track(kinds, description="measuring"):
            rows += intensities(device, name, kind, mib << 18)
    figure = documents.figure("cheng", "figures_5_to_7")
    ours = {(row["arithmetic"], str(row["multiply_adds"])): row["gflops"] for row in rows}
    result = {
        **machine(device),
        "backend": name,
        "arithmetic": {kind.name: kind.said for kind in kinds},
        "peak_gflops": max(row["gflops"] for row in rows if row["arithmetic"] == "fp32"),
        "peak_gb_s": max(row["gb_s"] for row in rows if row["arithmetic"] == "fp32"),
        "roofline": rows,
        "leaps": leaps(rows),
    }
    if name == "compute":
        result["beside"] = beside.rows(figure, ours, "10^9 operations/s")
        result["claims"] = [*beside.claims(figure, ours), _leap(figure, result["leaps"])]
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
    if plot is not None:
        draw(rows, plot)


def _leap(figure: documents.Figure, found: dict[str, float]) -> dict[str, Any]:
    """Whether rates leap as the document says."""
    told = ", ".join(f"{kind} at {at:.3g} operations a byte" for kind, at in found.items())
    holds = {0: "no", len(UNITS): "yes"}.get(len(found), "in part")
    here = f"bandwidth and rate grow together: {told}" if told else "bandwidth never grows"
    return beside.answer(figure, "both rates leap at one intensity", here, holds)


def _print(result: dict[str, Any]) -> None:
    """Print what was measured as tables."""
    out = Screen()
    hidden = ("arithmetic", "roofline", "leaps", "beside", "claims")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    for kind, said in result["arithmetic"].items():
        roof = table(">operations / byte", f">{UNITS[kind]}", ">GB/s", "by")
        for row in result["roofline"]:
            if row["arithmetic"] == kind:
                rates = (number(row[key]) for key in ("flop_per_byte", "gflops", "gb_s"))
                roof.add(*rates, "timer" if row["by_timer"] else "clock")
        out.show(roof, said)
    for entry in result.get("claims", ()):
        out.say(f"  Cheng says: {entry['claim']}; here: {entry['here']}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The rate over the operational intensity, a line for each arithmetic."""
    with chart(path, "operations / byte", "10^9 operations / s") as axes:
        for kind in dict.fromkeys(row["arithmetic"] for row in rows):
            own = [row for row in rows if row["arithmetic"] == kind]
            points = [row["flop_per_byte"] for row in own], [row["gflops"] for row in own]
            axes.loglog(*points, marker="o", label=f"{kind}, {UNITS[kind]}")


if __name__ == "__main__":
    run(main)

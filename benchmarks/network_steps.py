"""The time of each step of a network beside two bounds, by the bytes it moves and by its FLOPs.

A step's time is by the GPU's timer where that is reliable, else by the wall clock. The bounds are
the least bytes over the bandwidth of a copy, and the least FLOPs over the peak FP32 rate, both
measured in the same run; the share is that of the greater bound in the time. Equal steps are one
row with their number. Networks are layers with random weights, or .onnx files; with --training the
steps are those of an update by SGD with momentum, of the networks of benchmarks.training.

    python -m benchmarks.network_steps
    python -m benchmarks.network_steps --networks mobilenet_v2 --batches 1,8,32 --json
    python -m benchmarks.network_steps --networks mobilenet_v2.onnx --least-share 2
    python -m benchmarks.network_steps --training --networks resnet18_32 --longest 20
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

import glnn
from benchmarks.command import run
from benchmarks.layered_networks import NETWORKS
from benchmarks.record import machine
from benchmarks.roofline import intensities, roof_option
from benchmarks.tables import table
from benchmarks.training_glnn import plan_step
from benchmarks.training_process import WORKS, batches
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.feeds import random_feeds
from glnn.cli.screen import Screen, progress
from glnn.compiler.plan import Plan
from glnn.compiler.step import Step
from glnn.core.types import Array, Shape
from glnn.errors import GlnnError
from glnn.profiling import profile

BATCHES = (8, 32)
"""Samples of inference."""


def loaded(name: str) -> glnn.Model:
    """Return the network of that name, or of the .onnx file. Raises GlnnError."""
    if name in NETWORKS:
        return NETWORKS[name]()
    if not name.endswith(".onnx"):
        known = ", ".join(NETWORKS)
        raise GlnnError(f"--networks: expected {known} or .onnx files, got {name!r}")
    return glnn.load(Path(name))


def sizes(step: Step) -> str:
    """Describe what `step` computes, as 6272 x 64 > 384 or 32 x 96 x 112 x 112 > 56 x 56."""
    shapes = dict(step.shapes)
    if step.op.name == "matmul":
        dims = step.op.sizes(shapes)
        batch = f"{dims['batch']} of " if dims["batch"] > 1 else ""
        return f"{batch}{dims['m']} x {dims['k']} > {dims['n']}"
    first = " x ".join(map(str, shapes.get("x", next(iter(shapes.values()), ()))))
    kernel = shapes["weight"][2:] if "weight" in shapes else ()
    by = f" by {'x'.join(map(str, kernel))}" if kernel else ""
    return f"{first}{by} > {' x '.join(map(str, step.shape[1:]))}"


def inference(backend: GlBackend, name: str, batch: int) -> tuple[Plan, dict[str, Array]]:
    """Return the plan of inference of `batch` samples, and its inputs."""
    model = loaded(name)
    shapes: dict[str, Shape] = {}
    for info in model.inputs:
        sample = tuple(size for size in info.shape[1:] if isinstance(size, int))
        if len(sample) + 1 != len(info.shape):
            raise GlnnError(
                f"{name}: expected no open size but the batch, {info.name} is {info.shape}"
            )
        shapes[info.name] = (batch, *sample)
    feeds = random_feeds(model, shapes, tuple(shapes))
    return glnn.InferenceSession(model, backend.name).plan(shapes, feeds=feeds), feeds


def training(backend: GlBackend, name: str, batch: int) -> tuple[Plan, dict[str, Array]]:
    """Return the plan of a training step with `batch` samples, and its inputs."""
    plan, inputs = plan_step(WORKS[name], batch, backend)
    return plan, dict(zip(inputs, batches(WORKS[name], batch)[0], strict=True))


def measured(
    plan: Plan, feeds: Mapping[str, Array], repeat: int, roof: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of step, in the order of the plan.

    roof: FLOPs and bytes a second of the device.
    """
    timed = profile(plan, feeds, repeat)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for step, time in zip(plan.steps, timed.layers, strict=True):
        key = step.op.name, step.kernel, sizes(step)
        ms = time.wall_ms if time.kernel_ms is None else time.kernel_ms
        row = rows.setdefault(
            key,
            {
                **dict(zip(("op", "kernel", "sizes"), key, strict=True)),
                **{"via": step.via, "count": 0, "ms": 0.0},
                "operations_ms": 1e3 * step.cost.flops / roof[0],
                "bytes_ms": 1e3 * step.cost.bytes / roof[1],
                "by_timer": time.kernel_ms is not None,
            },
        )
        row["count"] += 1
        row["ms"] += ms
    for row in rows.values():
        row["ms"] /= row["count"]
        row["share"] = max(row["operations_ms"], row["bytes_ms"]) / row["ms"]
        yield row


@click.command(help=__doc__)
@click.option(
    "--networks",
    help=f"By commas: {', '.join(NETWORKS)} (all by default) or .onnx files; with --training "
    f"{', '.join(WORKS)}.",
)
@click.option("--training", "trains", is_flag=True, help="Steps of an update, not of inference.")
@click.option("--batches", help="By commas; 8,32 by default, with --training each network's own.")
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--least-share",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    help="Percent of a network's time: rows with less are not printed.",
)
@click.option("--longest", type=click.IntRange(1), help="Rows a network: those of the most time.")
@roof_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    networks: str | None, trains: bool, batches: str | None, repeat: int, least_share: float,
    longest: int | None, roof_mib: int, as_json: bool,
) -> None:  # fmt: skip
    counts = None if batches is None else batches.split(",")
    if not all(one.isascii() and one.isdecimal() and int(one) > 0 for one in counts or ()):
        raise GlnnError(f"--batches: expected numbers as 8,32, got {batches!r}")
    names = list(WORKS if trains else NETWORKS) if networks is None else networks.split(",")
    for name in names:  # refuse unknown names before the work begins
        if not trains:
            loaded(name)
        elif name not in WORKS:
            raise GlnnError(f"--networks: expected {', '.join(WORKS)}, got {name!r}")
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    rates = intensities(backend.device, numbers=roof_mib << 18)
    roof = max(r["gflops"] for r in rates) * 1e9, max(r["gb_s"] for r in rates) * 1e9
    result: dict[str, Any] = {**machine(backend.device), "rows": []}
    result |= {"roof_gflops": roof[0] / 1e9, "roof_gb_s": roof[1] / 1e9}
    work = [
        (name, int(count))
        for name in names
        for count in counts or (WORKS[name].batches if trains else BATCHES)
    ]
    with progress(not as_json) as bar:
        for name, batch in bar.track(work, description="networks"):
            plan, feeds = (training if trains else inference)(backend, name, batch)
            for row in measured(plan, feeds, repeat, roof):
                result["rows"].append({"network": name, "batch": batch, **row})
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = Screen()
    out.say(f"{result['device']}: {roof[0] / 1e12:.3g} TFLOP/s and {roof[1] / 1e9:.0f} GB/s")
    for name, batch in work:
        _show(out, name, batch, result["rows"], least_share / 100, longest)


def _show(
    out: Screen, name: str, batch: int, rows: list[dict[str, Any]], least: float,
    longest: int | None,
) -> None:  # fmt: skip
    shown_rows = [row for row in rows if (row["network"], row["batch"]) == (name, batch)]
    total = sum(row["count"] * row["ms"] for row in shown_rows)
    bound = sum(row["count"] * row["ms"] * row["share"] for row in shown_rows)
    shown = table("op", "kernel", "sizes", ">of", ">us", ">bytes", ">operations", ">share")
    launches = sum(row["count"] for row in shown_rows)
    if longest is not None:
        shown_rows = sorted(shown_rows, key=lambda row: -row["count"] * row["ms"])[:longest]
    for row in shown_rows:
        if row["count"] * row["ms"] < least * total:
            continue
        times = (f"{1e3 * row[key]:.1f}" for key in ("ms", "bytes_ms", "operations_ms"))
        texts = row["op"], row["kernel"], row["sizes"], str(row["count"])
        shown.add(*texts, *times, f"{row['share']:.0%}")
    title = f"{name}, batch {batch}: {launches} steps, {total:.3f} ms, bounds {bound:.3f} ms"
    out.show(shown, title)


if __name__ == "__main__":
    run(main)

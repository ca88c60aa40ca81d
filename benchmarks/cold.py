"""What making a plan takes: weights packed by threads or not, programs compiled or from binaries.

Each model is planned anew on a new device in each of three ways, in turn: `alone`, the device's
thread reads and packs weights between compiling programs; `ahead`, threads do while it compiles;
`restored`, as `ahead`, with the programs of the first. Kernels are not held against NumPy. The
driver may keep programs of its own: have it not, by __GL_SHADER_DISK_CACHE=0 (NVIDIA) or a new
MESA_SHADER_CACHE_DIR (Mesa, which gives no binaries where its cache is off).

    python -m benchmarks.cold
    python -m benchmarks.cold --models vgg16,net.onnx --repeat 5 --json
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import rich_click as click

import glnn
from benchmarks.command import run
from benchmarks.record import machine
from glnn.compiler import weights
from glnn.core.settings import Settings
from glnn.gl import Device
from glnn.model import Model

WAYS = ("alone", "ahead", "restored")
NEVER = 1 << 62  # bytes of weights from which on threads pack them
Row = dict[str, Any]


@contextmanager
def packing(way: str) -> Iterator[None]:
    """Weights are packed so inside."""
    before = weights.LEAST
    weights.LEAST = NEVER if way == "alone" else before
    try:
        yield
    finally:
        weights.LEAST = before


def planned(model: Model, backend: str, way: str, cache: Path) -> Row:
    """The seconds of a plan for one sample, and of its parts."""
    settings = replace(Settings.from_environment(), cache=cache if way == "restored" else None)
    with packing(way), Device(settings=settings) as device:
        session = glnn.InferenceSession(model, backend, device=device)
        (info, *_) = session.get_inputs()
        plan = session.plan({info.name: info.with_batch(1)})
        return {
            "plan": plan.made[-1].seconds,
            "prepare": plan.made[-2].seconds,
            "compiled": sum(span.seconds for span in device.compiled),
            "restored": sum(span.seconds for span in device.restored),
            "programs": len(device.compiled) + len(device.restored),
            "uploaded": sum(span.seconds for span in plan.uploaded),
            "bytes": sum(span.nbytes for span in plan.uploaded),
        }


def measured(name: str, backend: str, repeat: int) -> Row:
    """Medians of each way, after one of each that does not count."""
    model = glnn.load(name)
    found: dict[str, list[Row]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(1 + repeat):
            for way in WAYS:
                found[way].append(planned(model, backend, way, Path(cache)))
    return {
        "model": name,
        **{
            way: {key: median(row[key] for row in rows[1:]) for key in rows[0]}
            for way, rows in found.items()
        },
    }


@click.command()
@click.option("--models", default="lenet,vgg16", show_default=True, help="Names or files.")
@click.option(
    "--backend",
    type=click.Choice(["compute", "feedback"]),
    default="compute",
    show_default=True,
    help="Where they are planned.",
)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Of each way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def main(models: str, backend: str, repeat: int, as_json: bool) -> None:
    """Measure what making a plan takes, with weights packed and programs made in several ways."""
    rows: list[Row] = []
    for name in models.split(","):
        rows.append(measured(name, backend, repeat))
        for way in WAYS:
            one = rows[-1][way]
            parts = ", ".join(f"{key} {one[key]:.4g}" for key in one)
            click.echo(f"{name} {way}: {parts}", err=as_json)
    if as_json:
        with Device() as device:
            click.echo(json.dumps({"machine": machine(device), "backend": backend, "rows": rows}))


if __name__ == "__main__":
    run(main)

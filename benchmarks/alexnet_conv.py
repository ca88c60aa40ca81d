"""AlexNet's conv2 to conv5 as Cronin 2018 ran them: one image, no bias, 'same' padding.

Wall times go from host array to host array, the weight being where it is to stay; kernel times are
the device's for every step of the plan. The document's are CPU cycles at 1.4 GHz from call to
result, im2row included. Cronin's form of the product is the kernels cronin_*: the same orders by
the same partial dot products, their sums on the GPU. Its table 4.4 has where the time goes by GL
function; ours is by step of the plan.

    python -m benchmarks.alexnet_conv
    python -m benchmarks.alexnet_conv --scenarios conv3,conv5 --repeat 100 --json
    python -m benchmarks.alexnet_conv --steps conv2 --plot alexnet.png
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from rich.progress import Progress

import glnn
from benchmarks import documents, variants
from benchmarks.command import check_picture, run
from benchmarks.networks import Array, draw, measure, ours
from benchmarks.peers import Contender, installed
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.layers import Conv2d
from glnn.profiling import profile

GIGAHERTZ = 1.4  # of the document's CPU
IM2ROW = ("im2row_ab_ik", "im2row_abt_ik", "im2row_abt_ki")
CRONIN = tuple(
    {"conv2d": f"feedback_im2row_{order}", "matmul": f"cronin_{form}"}
    for order, form in (("ik", "ab"), ("ik", "abt"), ("ki", "abt"))
)
WAYS: tuple[tuple[str, dict[str, str]], ...] = (
    *(("compute", {"conv2d": k}) for k in (*IM2ROW, *variants.IMPLICIT, "winograd_4")),
    ("compute", {}),
    *(("feedback", kernels) for kernels in CRONIN),
    *(
        ("feedback", {"conv2d": k})
        for k in ("feedback_im2row_ik", "feedback_im2row_ki", "feedback")
    ),
    ("feedback", {}),
    ("cpu", {}),
)
PROFILED = 3  # runs, at most, of each step by itself
LONGEST = 2.0  # seconds of one measure: Cronin's form takes its time


def scenarios() -> dict[str, dict[str, int]]:
    """The document's convolutions, each by its sizes."""
    sizes = documents.figure("cronin_2018", "alexnet_table_4_1").rows
    return {name: {key: int(value) for key, value in row.items()} for name, row in sizes.items()}


def convolution(sizes: dict[str, int]) -> glnn.Model:
    """A model of that one convolution."""
    k = sizes["k"]
    layer = Conv2d(
        sizes["channels"], sizes["kernels"], k, sizes["stride"], padding=k // 2, bias=False
    )
    return glnn.Model.sequential([layer], (sizes["channels"], sizes["height"], sizes["width"]))


def ways(
    model: glnn.Model, x: Array, peers: bool, repeat: int
) -> Iterator[tuple[Contender, dict[str, Any]]]:
    """Who can run `model`, and for ours what the device took, by step of the plan."""
    for backend, kernels in WAYS:
        try:
            session = glnn.InferenceSession(model, backend, kernels=kernels)
            contender = ours(session, x, kernels)
        except GlnnError:
            continue
        feeds = {"input": x}
        found = profile(session.plan({"input": x.shape}), feeds, min(repeat, PROFILED))
        steps = [asdict(step) for step in found.layers]
        kind = "cronin" if kernels in CRONIN else backend
        yield contender, {"kind": kind, "kernel_ms": found.kernel_ms, "steps": steps}
    if peers:
        for contender in installed(model, x):
            yield contender, {"kind": "peer", "kernel_ms": None}


def _measure(
    bar: Progress, name: str, sizes: dict[str, int], repeat: int, peers: bool
) -> Iterator[dict[str, Any]]:
    model = convolution(sizes)
    shape = model.inputs[0].with_batch(1)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    exact = model(x, backend="cpu")
    task = bar.add_task(name, total=None)
    for contender, more in ways(model, x, peers, repeat):
        row = measure(contender, exact, repeat, LONGEST)
        row.pop("layers_ms", None)  # there is but one
        yield {"scenario": name, **row, **more}
        bar.advance(task)
    bar.update(task, visible=False)


@click.command()
@click.option("--scenarios", "names", default="conv2,conv3,conv4,conv5", show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=50, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also time other libraries.")
@click.option("--steps", help="Also show a scenario's time by step of each feedback plan.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the times to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    names: str, repeat: int, peers: bool, steps: str | None, plot: Path | None, as_json: bool
) -> None:
    """Time AlexNet's convolutions by kernel and by backend, beside what else is installed."""
    check_picture(plot)
    known = scenarios()
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise GlnnError(f"--scenarios: no {unknown[0]!r}, expected {', '.join(known)}")
    if steps not in (None, *chosen):
        raise GlnnError(f"--steps: {steps!r} is not measured, expected {', '.join(chosen)}")
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for name in chosen:
            rows += _measure(bar, name, known[name], repeat, peers)
    theirs = documents.figure("cronin_2018", "alexnet_table_4_3")
    printed = [
        {"name": row, "scenario": name, "gigacycles": cycles, "ms": 1e3 * cycles / GIGAHERTZ}
        for row, times in theirs.rows.items()
        for name, cycles in times.items()
        if name in chosen
    ]
    result = {
        **machine(open_backend().device), "rows": rows, "over_cronin": _over_cronin(rows),
        "theirs": printed,
    }  # fmt: skip
    if plot is not None:
        draw([{**row, "name": f"{row['scenario']}, {row['name']}"} for row in rows], plot)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(Screen(), result, chosen, theirs.device)
        if steps:
            _print_steps(Screen(), [row for row in rows if row["scenario"] == steps])


def _over_cronin(rows: list[dict[str, Any]]) -> dict[str, float]:
    """By scenario, how many times as fast as the best of Cronin's forms the feedback backend is."""
    found: dict[str, float] = {}
    for scenario in dict.fromkeys(row["scenario"] for row in rows):
        here = [row for row in rows if row["scenario"] == scenario]
        cronin = [row["median_ms"] for row in here if row["kind"] == "cronin"]
        plain = [row["median_ms"] for row in here if row["name"] == "glnn feedback"]
        if cronin and plain:
            found[scenario] = min(cronin) / plain[0]
    return found


def _print_steps(out: Screen, rows: list[dict[str, Any]]) -> None:
    """Where the time goes, by step, and Cronin's table 4.4 by GL function."""
    for row in rows:
        if row["kind"] not in ("feedback", "cronin"):
            continue
        total = sum(step["wall_ms"] for step in row["steps"])
        shown = table("step", "kernel", ">ms", ">%")
        for step in row["steps"]:
            share = 100 * step["wall_ms"] / total
            shown.add(step["name"], step["kernel"], number(step["wall_ms"]), f"{share:.1f}")
        out.show(shown, f"{row['scenario']}, {row['name']}")
    theirs = documents.figure("cronin_2018", "alexnet_table_4_4")
    shown = table("", ">ms", ">% of GL")
    for name, times in theirs.rows.items():
        shown.add(name, number(times["total"] / 1e3), f"{times['gl']:.1f}")
    out.show(shown, f"{theirs.source}, {theirs.device}: {theirs.title}")


def _print(out: Screen, result: dict[str, Any], chosen: list[str], device: str) -> None:
    out.say(
        ", ".join(
            f"{k} {v}" for k, v in result.items() if k not in ("rows", "theirs", "over_cronin")
        )
    )
    heads = [head for name in chosen for head in (f">{name} wall", ">kernel")]
    shown = table("", *heads, ">worst error")
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        mine = {row["scenario"]: row for row in result["rows"] if row["name"] == name}
        cells = [
            number(mine.get(scenario, {}).get(key))
            for scenario in chosen
            for key in ("median_ms", "kernel_ms")
        ]
        shown.add(name, *cells, f"{max(row['error'] for row in mine.values()):.1e}")
    out.show(shown, "ms of one image")
    over = ", ".join(f"{name} {ratio:.3g}" for name, ratio in result["over_cronin"].items())
    out.say(f"feedback, times as fast as the best of Cronin's forms: {over}")
    out.say(f"Cronin 2018, table 4.3, {device}: ms (10^9 cycles at {GIGAHERTZ} GHz)")
    shown = table("", *(f">{name}" for name in chosen))
    for name in dict.fromkeys(entry["name"] for entry in result["theirs"]):
        mine = {e["scenario"]: e for e in result["theirs"] if e["name"] == name}
        shown.add(
            name,
            *(f"{mine[s]['ms']:.0f} ({mine[s]['gigacycles']:g})" if s in mine else "-"
              for s in chosen),
        )  # fmt: skip
    out.show(shown)


if __name__ == "__main__":
    run(main)

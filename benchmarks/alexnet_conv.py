"""AlexNet's conv2 to conv5 as Cronin 2018 ran them: one image, no bias, 'same' padding.

Wall times go from host array to host array, the weight being where it is to stay; kernel times are
the device's for every step of the plan. The document's are CPU cycles at 1.4 GHz from call to
result, im2row included. Cronin's form of the product is the kernels cronin_*: the same orders by
the same partial dot products, their sums on the GPU. With --document it is only what the document
measured: those, and the same orders on the CPU by plain loops in C. Where the time goes by GL
function, its table 4.4, is `benchmarks.gl_calls`; by step of the plan it is --steps.

    python -m benchmarks.alexnet_conv
    python -m benchmarks.alexnet_conv --scenarios conv3,conv5 --repeat 100 --json
    python -m benchmarks.alexnet_conv --steps conv2 --plot alexnet.png
    python -m benchmarks.alexnet_conv --document
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from rich.progress import Progress

import glnn
from benchmarks import beside, documents, plain_gemm, variants
from benchmarks.command import check_picture, run
from benchmarks.compiled import library
from benchmarks.cronin import FORMS, compared, convolution, scenarios
from benchmarks.networks import Array, draw, measure, ours
from benchmarks.peers import Contender, installed
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.profiling import profile

GIGAHERTZ = 1.4  # of the document's CPU
IM2ROW = ("im2row_ab_ik", "im2row_abt_ik", "im2row_abt_ki")
Way = tuple[str, dict[str, str]]
"""A backend, and the kernels to take."""
WAYS: tuple[Way, ...] = (
    *(("compute", {"conv2d": k}) for k in (*IM2ROW, "kn2row", *variants.IMPLICIT, "winograd_4")),
    ("compute", {}),
    *(("feedback", kernels) for kernels in FORMS.values()),
    *(
        ("feedback", {"conv2d": k})
        for k in ("feedback_im2row_ik", "feedback_im2row_ki", "feedback")
    ),
    ("feedback", {}),
    ("cpu", {}),
)
PROFILED = 3  # runs, at most, of each step by itself
LONGEST = 2.0  # seconds of one measure: Cronin's form takes its time


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
        kind = "cronin" if kernels in FORMS.values() else backend
        yield contender, {"kind": kind, "kernel_ms": found.kernel_ms, "steps": steps}
    if peers:
        for contender in installed(model, x):
            yield contender, {"kind": "peer", "kernel_ms": None}


def on_both(model: glnn.Model, x: Array) -> Iterator[tuple[Contender, dict[str, Any]]]:
    """Its three orders by GL, and by plain loops on the CPU. Raises GlnnError without a compiler.

    Only whole runs: those of its form take long.
    """
    for order, kernels in FORMS.items():
        session = glnn.InferenceSession(model, "feedback", kernels=kernels)
        plain = replace(ours(session, x, kernels), resident=None)
        yield plain, {"kind": "cronin", "order": order, "kernel_ms": None}
    for order, work in plain_gemm.ways(x, model.nodes[0].layer.parameters["weight"]):
        row = {"kind": "loops", "order": order, "kernel_ms": None}
        yield Contender(f"C loops, {order}", work), row


def _measure(
    bar: Progress, name: str, sizes: dict[str, int], repeat: int, peers: bool, document: bool
) -> Iterator[dict[str, Any]]:
    model = convolution(sizes)
    shape = model.inputs[0].with_batch(1)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    exact = model(x, backend="cpu")
    task = bar.add_task(name, total=None)
    found = on_both(model, x) if document else ways(model, x, peers, repeat)
    for contender, more in found:
        row = measure(contender, exact, repeat, LONGEST)
        row.pop("layers_ms", None)  # there is but one
        yield {"scenario": name, **row, **more}
        bar.advance(task)
    bar.update(task, visible=False)


@click.command(help=__doc__)
@click.option("--scenarios", "names", default="conv2,conv3,conv4,conv5", show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=50, show_default=True)
@click.option("--document", is_flag=True, help="Only what Cronin 2018 measured, as it did.")
@click.option("--peers/--no-peers", default=True, help="Also time other libraries.")
@click.option("--steps", help="Also show a scenario's time by step of each feedback plan.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the times to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    names: str,
    repeat: int,
    document: bool,
    peers: bool,
    steps: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    check_picture(plot)
    known = scenarios()
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise GlnnError(f"--scenarios: no {unknown[0]!r}, expected {', '.join(known)}")
    if document and steps:
        raise GlnnError("--steps: expected none beside --document, which times whole runs")
    if steps not in (None, *chosen):
        raise GlnnError(f"--steps: {steps!r} is not measured, expected {', '.join(chosen)}")
    rows: list[dict[str, Any]] = []
    if document:
        library(plain_gemm.SOURCE)  # said now where there is no compiler
    with progress(not as_json) as bar:
        for name in chosen:
            rows += _measure(bar, name, known[name], repeat, peers, document)
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
    if document:
        result["beside"], result["claims"] = compared(rows)
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
    hidden = ("rows", "theirs", "over_cronin", "beside", "claims")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
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
    if over := [f"{name} {ratio:.3g}" for name, ratio in result["over_cronin"].items()]:
        out.say(f"feedback, times as fast as the best of Cronin's forms: {', '.join(over)}")
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
    _print_compared(out, result)


def _print_compared(out: Screen, result: dict[str, Any]) -> None:
    """The percentages of table 4.3 and its claims, the document's in brackets."""
    shares = [entry for entry in result.get("beside", []) if entry["unit"] == "%"]
    shown = table("order", "", ">by GL, % of the CPU's time", ">the document's")
    for entry in shares:
        theirs = number(entry["theirs"])
        shown.add(entry["row"], entry["column"], number(entry["ours"]), theirs)
    if shares:
        out.show(shown)
    beside.say(out, result.get("claims", []))


if __name__ == "__main__":
    run(main)

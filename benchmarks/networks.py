"""What the benchmarks of whole networks share: who runs, how it is timed, how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

import glnn
from benchmarks.command import pyplot, save
from benchmarks.peers import Contender, installed
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.errors import DeviceError
from glnn.profiling import Profile, profile
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Row = dict[str, Any]
WARM_SECONDS = 0.5  # a GPU that idled has lowered its clocks
LONGEST = 20.0  # seconds of one measure: a network on a CPU may take seconds a run


def contenders(
    model: glnn.Model,
    x: Array,
    backends: Sequence[str],
    kernels: Mapping[str, str] | None = None,
    onnx: Path | None = None,
    peers: bool = True,
) -> Iterator[Contender]:
    """glnn by each of `backends` that opens, with `kernels` on compute, and the peers."""
    for name in backends:
        forced = kernels if name == "compute" else None
        try:
            session = glnn.InferenceSession(model, name, kernels=forced)
        except DeviceError:
            continue
        yield ours(session, x, forced or {})
    if peers:
        yield from installed(model, x, onnx)


def ours(session: glnn.InferenceSession, x: Array, kernels: Mapping[str, str]) -> Contender:
    """`session`, made with `kernels`, on `x`. Raises GlnnError where they cannot run the model."""
    feeds = {session.get_inputs()[0].name: x}
    plan = session.plan({name: array.shape for name, array in feeds.items()})

    def resident() -> None:
        plan.backend.activate()
        plan.launch()
        plan.backend.finish()

    forced = "".join(f", {op}={kernel}" for op, kernel in kernels.items())
    return Contender(
        f"glnn {session.backend.name}{forced}", lambda: session.run(None, feeds)[0], resident
    )


def measure(contender: Contender, exact: Array, repeat: int, longest: float = LONGEST) -> Row:
    """A contender's error, its times with transfers and without, and its layers' where it has.

    longest: seconds that each of these times may take to measure.
    """
    error = relative_error(contender.run(), exact.astype(np.float64))
    row: Row = {"name": contender.name, "error": error, **timed(contender.run, repeat, longest)}
    resident = (
        timed(contender.resident, repeat, longest)["median_ms"] if contender.resident else None
    )
    row["resident_ms"] = resident
    if contender.layers:
        found = contender.layers(min(repeat, row["runs"]))
        row["layers_ms"] = {name: 1e3 * seconds for name, seconds in found.items()}
    return row


def timed(work: Callable[[], object], repeat: int, longest: float = LONGEST) -> dict[str, Any]:
    """Median and least milliseconds of `work`, which waits; fewer runs where one takes seconds.

    Of more than one run: a single one is a trial, before which the device is not kept busy.
    """
    once = _milliseconds(work)
    runs = max(1, min(repeat, int(1e3 * longest / max(once, 1e-3))))
    warm = perf_counter() + WARM_SECONDS
    while runs == repeat > 1 and perf_counter() < warm:
        work()
    times = [_milliseconds(work) for _ in range(runs)]
    return {"median_ms": median(times), "least_ms": min(times), "runs": runs}


def _milliseconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return 1e3 * (perf_counter() - start)


def measured(bar: Progress, found: Iterator[Contender], exact: Array, repeat: int) -> Iterator[Row]:
    """A row for each contender, freed before the next one begins."""
    task = bar.add_task("timing", total=None)
    for contender in found:
        bar.update(task, description=contender.name)
        yield measure(contender, exact, repeat)
        bar.advance(task)
    bar.update(task, visible=False)


def layered(
    bar: Progress, model: glnn.Model, x: Array, repeat: int, kernels: Mapping[str, str] | None
) -> tuple[Profile, list[Row]]:
    """The layers of `model` on compute with `kernels`: what `layers_of` gives.

    Pools are layers of their own, as the documents have them.
    """
    session = glnn.InferenceSession(model, "compute", kernels=kernels, without=["pooled"])
    return layers_of(bar, session, x, repeat)


def layers_of(
    bar: Progress, session: glnn.InferenceSession, x: Array, repeat: int
) -> tuple[Profile, list[Row]]:
    """A session's model as table 2 of Rovder 2019 has it: a row a layer.

    A layer of several steps is their sum: each waits for the device, so its wall time is too long.
    """
    feeds = {session.get_inputs()[0].name: x}
    plan = session.plan({name: array.shape for name, array in feeds.items()})
    task = bar.add_task("layers", total=2 + len(plan.steps))
    found = profile(plan, feeds, repeat, lambda: bar.advance(task))
    ops = {node.name: node.operator.name for node in plan.outline.graph.nodes}
    rows: dict[str, Row] = {}
    for step, time in zip(plan.steps, found.layers, strict=True):
        row = rows.setdefault(step.layer, _empty(step.layer, ops.get(step.layer, step.op.name)))
        if step.via or step.op.name == row["op"]:
            row["kernel"] = step.via or step.kernel
        spent = time.wall_ms if time.kernel_ms is None else time.kernel_ms
        row["steps"][step.op.name] = row["steps"].get(step.op.name, 0.0) + spent
        row["gflop"] += time.gflop
        row["wall_ms"] += time.wall_ms
        row["kernel_ms"] = _plus(row["kernel_ms"], time.kernel_ms)
    for row in rows.values():
        row["overhead_ms"] = _plus(row["wall_ms"], row["kernel_ms"], -1)
    return found, list(rows.values())


def _empty(layer: str, op: str) -> Row:
    numbers = {"gflop": 0.0, "wall_ms": 0.0, "kernel_ms": 0.0}
    return {"layer": layer, "op": op, "kernel": "", "steps": {}, **numbers}


def _plus(a: float | None, b: float | None, sign: int = 1) -> float | None:
    return None if a is None or b is None else a + sign * b


def total(layers: Sequence[Row], key: str, op: str | None = None) -> float | None:
    """The sum of `key` over all layers, or over those of one op; None where one has none."""
    values: list[Any] = [row.get(key) for row in layers if op in (None, row["op"])]
    return None if None in values else float(sum(values))


def add_peer(layers: Sequence[Row], rows: Sequence[Row]) -> None:
    """Write CLBlast's time of each layer, where it was measured, into `layers`."""
    theirs: dict[str, float] | None
    theirs = next((row["layers_ms"] for row in rows if "layers_ms" in row), None)
    for layer in layers:  # only views are missing
        layer["clblast_ms"] = None if theirs is None else theirs.get(layer["layer"], 0.0)


def over_clblast(rows: Sequence[Row]) -> float | None:
    """CLBlast's whole run over that of the first row; None where it was not measured."""
    theirs = [row["median_ms"] for row in rows if row["name"].startswith("CLBlast")]
    return theirs[0] / rows[0]["median_ms"] if theirs else None


def show_rows(out: Screen, rows: Sequence[Row]) -> None:
    """Print the contenders, with transfers and without."""
    best = min(row["median_ms"] for row in rows)
    heads = (">median ms", ">least ms", ">times the best", ">without transfers", ">error")
    shown = table("", *heads)
    for row in rows:
        shown.add(
            row["name"], number(row["median_ms"]), number(row["least_ms"]),
            number(row["median_ms"] / best), number(row["resident_ms"]), f"{row['error']:.1e}",
        )  # fmt: skip
    out.show(shown, "from host array to host array")


def show_layers(
    out: Screen, title: str, layers: Sequence[Row], theirs: Mapping[str, Mapping[str, float]]
) -> None:
    """Print each layer's times. theirs: the document's, by the head of a column and the layer."""
    heads = (">wall ms", ">kernel ms", ">overhead ms", ">CLBlast ms", ">CLBlast / wall")
    shown = table("layer", "kernel", *heads, *(f">{head}" for head in theirs))
    keys = ("wall_ms", "kernel_ms", "overhead_ms", "clblast_ms")
    sums = {key: total(layers, key) for key in keys}
    for row in (*layers, {"layer": "total", "kernel": "", **sums}):
        blast = row["clblast_ms"]
        shown.add(
            row["layer"], row["kernel"], *(number(row[key]) for key in keys),
            number(blast / row["wall_ms"] if blast else None),
            *(number(column.get(row["layer"])) for column in theirs.values()),
        )  # fmt: skip
    out.show(shown, title)


def draw(rows: Sequence[Row], path: Path, key: str = "median_ms") -> None:
    """A bar chart of `key`."""
    canvas, axes = pyplot().subplots(figsize=(8, 1 + 0.5 * len(rows)))
    axes.barh([row["name"] for row in rows], [row[key] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds, transfers included")
    canvas.tight_layout()
    save(canvas, path)

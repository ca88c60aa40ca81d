"""VGG-16 as Rovder 2019 made it faster: by each of his convolutions in turn, layer by layer.

Section 5.1 goes from loops over planar images to channels last in workgroups of (1, 4, 4), then to
dot products of four channels; section 5.2 goes by im2col to the Morton product, and the end expects
more of a product that needs no im2col.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

import glnn
from benchmarks import beside, documents
from benchmarks.networks import Row, layers_of, measure, speeds
from benchmarks.peers import clblast_peer
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.graph.error import relative_error

Array = NDArray[np.float32]
Times = dict[str, float]
"""Milliseconds by layer, and their sums: `convolutions` and `total`."""
BASELINE = {"conv2d": "loop_nchw", "matmul": "cross_rm_rm"}
"""Section 4's: convolutions by loops, and products by Rovder 2017's first kernel."""
PAPER = "im2col_morton"
IMPLICIT = ("implicit", "implicit_tiled")
BY_NAME = ("loop_nhwc", "direct_nhwc", PAPER, *IMPLICIT)
KERNELS: Mapping[str, Mapping[str, str]] = {
    "loop_nchw": BASELINE,
    **{name: {"conv2d": name} for name in BY_NAME},
}
"""What is measured, and the kernels that it takes."""
LONGEST = 3.0  # seconds, about, of one of them


def measured(
    bar: Progress, model: glnn.Model, x: Array, exact: Array, repeat: int, peers: bool
) -> Iterator[Row]:
    """The layers' times by each of KERNELS, with the result's error, and CLBlast's."""
    for name, kernels in KERNELS.items():
        session = glnn.InferenceSession(model, "compute", kernels=kernels)
        feeds = {session.get_inputs()[0].name: x}
        error = relative_error(session.run(None, feeds)[0], exact.astype(np.float64))
        start = perf_counter()
        session.run(None, feeds)
        # A profile times the run, its parts and its steps: all of it, about six times.
        runs = max(1, min(repeat, int(LONGEST / 6 / (perf_counter() - start))))
        found, layers = layers_of(bar, session, x, runs)
        yield {"name": name, "error": error, "runs": runs, "timer": found.timer, "layers": layers}
    for peer in clblast_peer(model, x) if peers else ():
        row = measure(peer, exact, repeat, LONGEST)
        theirs = [{"layer": name, "wall_ms": ms} for name, ms in row.pop("layers_ms").items()]
        yield {**row, "name": "clblast", "layers": theirs}


def of_layers(row: Row) -> Times:
    """The times of one that was measured: the device's own where they are believed, else wall."""
    times: Times = {}
    for layer in row["layers"]:
        name = layer["layer"].split(" + ")[0]
        spent = layer.get("kernel_ms")
        times[name] = times.get(name, 0.0) + (layer["wall_ms"] if spent is None else spent)
    return _summed(times)


def _summed(times: Times) -> Times:
    convolutions = sum(ms for name, ms in times.items() if name.startswith("conv"))
    return {**times, "convolutions": convolutions, "total": sum(times.values())}


def gemm_share(row: Row) -> float:
    """The product's share of the time of the convolutions."""
    steps = [layer["steps"] for layer in row["layers"] if layer["op"] == "conv2d"]
    whole = sum(sum(times.values()) for times in steps)
    return float(sum(times.get("matmul", 0.0) for times in steps) / whole)


def compared(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Figures 4, 7 and 8 and section 5.1 beside what was measured, and what they claim."""
    by_name = {row["name"]: row for row in rows}
    times = {name: of_layers(row) for name, row in by_name.items()}
    ways = [times[name] for name in IMPLICIT]
    layers = [name for name in ways[0] if name not in ("convolutions", "total")]
    implicit = _summed({name: min(way[name] for way in ways) for name in layers})
    entries: list[Row] = []
    claims: list[Row] = []
    for key, given in (
        ("vgg16_figure_4", {**times, "baseline": times["loop_nchw"]}),
        ("vgg16_section_5_1", times),
        ("vgg16_figure_8", times),
    ):
        figure = documents.figure("rovder_2019", key)
        ours = {(name, at): ms for name, found in given.items() for at, ms in found.items()}
        entries += beside.rows(figure, ours, "ms")
        claims += beside.claims(figure, speeds(ours))
    figure = documents.figure("rovder_2019", "vgg16_figure_7")
    entries += beside.rows(figure, {(PAPER, "gemm"): gemm_share(by_name[PAPER])}, figure.unit)
    both = {"implicit": implicit, PAPER: times[PAPER]}
    sums = {(name, "convolutions"): found["convolutions"] for name, found in both.items()}
    return entries, claims + beside.claims(figure, speeds(sums))


def show(out: Screen, rows: Sequence[Row]) -> None:
    """Print each layer's time by each kernel, then the document's numbers and claims."""
    times = {row["name"]: of_layers(row) for row in rows}
    shown = table("", *(f">{name}" for name in times))
    for layer in next(iter(times.values())):
        shown.add(layer, *(number(found.get(layer)) for found in times.values()))
    out.show(shown, "ms by layer and by kernel of the convolutions; loop_nchw: cross_rm_rm, too")
    entries, claims = compared(rows)
    shown = table("", "", ">ms here", ">there", "of the document's")
    for entry in entries:
        if entry["theirs"] is not None:
            here, there = number(entry["ours"]), f"{entry['theirs']:g}"
            shown.add(entry["row"], entry["column"], here, there, entry["theirs_unit"])
    out.show(shown, "beside Rovder 2019")
    for claim in claims:
        least = claim["ours_least"]
        here = "not measured" if least is None else f"{least:.2f} to {claim['ours_greatest']:.2f}"
        out.say(f"  it says: {claim['claim']}; here: {here}")

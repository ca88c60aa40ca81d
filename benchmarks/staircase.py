"""VGG-16 as Rovder 2019 made it faster: by each of his convolutions in turn, layer by layer.

Section 5.1 goes from loops over planar images to channels last in workgroups of (1, 4, 4), then to
dot products of four channels; section 5.2 goes by im2col to the Morton product, and the end expects
more of a product that needs no im2col.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

import glnn
from benchmarks import beside, documents
from benchmarks.networks import Row, layers_of, measure
from benchmarks.peers import clblast_peer
from benchmarks.tables import table
from glnn.cli.screen import Screen, number
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Times = dict[str, float]
"""Milliseconds by layer, and their sums: `convolutions` and `total`."""
BASELINE = {"conv2d": "loop_nchw", "matmul": "cross_rm_rm"}
"""Section 4's: convolutions by loops, and products by Rovder 2017's first kernel."""
PAPER = "im2col_morton"
IMPLICIT = ("implicit_gemm", "implicit_gemm_tiled")
BY_NAME = ("loop_nhwc", "direct_nhwc", PAPER, *IMPLICIT)
KERNELS: Mapping[str, Mapping[str, str]] = {
    "loop_nchw": BASELINE,
    **{name: {"conv2d": name} for name in BY_NAME},
}
"""What is measured, and the kernels that it takes."""
LEAST_RATE = 13.5  # GFLOP/s, of the document's product
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
        name = _first(layer)
        spent = layer.get("kernel_ms")
        times[name] = times.get(name, 0.0) + (layer["wall_ms"] if spent is None else spent)
    return _summed(times)


def _summed(times: Times) -> Times:
    convolutions = sum(ms for name, ms in times.items() if name.startswith("conv"))
    return {**times, "convolutions": convolutions, "total": sum(times.values())}


def gemm_share(row: Row) -> float:
    """The product's share of the time of a convolution: the mean of all of them."""
    steps = [layer["steps"] for layer in row["layers"] if layer["op"] == "conv2d"]
    return fmean(times.get("matmul", 0.0) / sum(times.values()) for times in steps)


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
        claims += beside.claims(figure, ours, "ms")
    figure = documents.figure("rovder_2019", "vgg16_figure_7")
    entries += beside.rows(figure, {(PAPER, "gemm"): gemm_share(by_name[PAPER])}, figure.unit)
    both = {"implicit": implicit, PAPER: times[PAPER]}
    sums = {(name, "convolutions"): found["convolutions"] for name, found in both.items()}
    return entries, claims + beside.claims(figure, sums, "ms") + _answers(by_name, times)


def _answers(rows: Mapping[str, Row], times: Mapping[str, Times]) -> list[Row]:
    """What was seen of the sentences of figures 4, 7 and 8."""
    four, seven, eight = (documents.figure("rovder_2019", f"vgg16_figure_{n}") for n in (4, 7, 8))
    share = times["loop_nchw"]["convolutions"] / times["loop_nchw"]["total"]
    mostly = f"they are {share:.0%} of the baseline's time"
    found = [beside.answer(four, "unlike LeNet's", mostly, "yes" if share > 0.5 else "no")]
    layers = [row for row in rows[PAPER]["layers"] if row["op"] == "conv2d"]
    gemms = [row["steps"]["matmul"] for row in layers]
    rate = min(row["gflop"] / ms * 1e3 for row, ms in zip(layers, gemms, strict=True))
    even = max(gemms) / min(gemms) <= documents.ALIKE
    here = f"{min(gemms):.3g} to {max(gemms):.3g} ms, at {rate:.4g} GFLOP/s at the least"
    held = "yes" if even and rate >= LEAST_RATE else "in part" if rate >= LEAST_RATE else "no"
    found.append(beside.answer(seven, "the GEMM takes about", here, held))
    longer = sum(sum(row["steps"].values()) > 2 * row["steps"]["matmul"] for row in layers)
    here = f"in {longer} of {len(layers)}"
    found.append(beside.answer(seven, "in some layers", here, "yes" if longer else "no"))
    deep = [name.startswith(("conv4", "conv5")) for name in map(_first, layers)]
    won = [times[PAPER][name] < times["direct_nhwc"][name] for name in map(_first, layers)]
    both = any(won) and not all(won)
    held = "yes" if both and all(w for w, d in zip(won, deep, strict=True) if d) else "in part"
    here = f"{PAPER} is the faster in {sum(won)} of {len(won)} layers, direct_nhwc in the others"
    found.append(beside.answer(eight, "neither of the two", here, held if both else "no"))
    return found


def _first(layer: Row) -> str:
    """The first layer of those that a row is of."""
    return str(layer["layer"]).split(" + ")[0]


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
    beside.say(out, claims)

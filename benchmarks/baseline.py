"""The baseline network of Rovder 2017, chapter 6, by his kernels: figures 6.1 and 6.2.

784-100-100-10 with sigmoids, on the 1,000 digits that come with glnn; the weights are seeded, as no
time depends on them. Nothing is joined: each product, bias and sigmoid is a launch of its own, by
the kernels of his listings. Times of whole runs have all transfers in them; kernels' are the GPU's
own where its timer is believed.

    python -m benchmarks.baseline
    python -m benchmarks.baseline --images 100 --repeat 5 --json
    python -m benchmarks.baseline --plot figures/
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks import beside, documents
from benchmarks.command import check_folder, run
from benchmarks.compiled import library
from benchmarks.elementwise import json_option, plot_option
from benchmarks.record import machine, milliseconds
from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress
from glnn.data import digits
from glnn.errors import GlnnError
from glnn.layers import Linear, Sigmoid
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

Array = NDArray[np.float32]
Work = Callable[[], Array]
WIDTHS = (784, 100, 100, 10)
SOURCE = Path(__file__).with_name("baseline.c")
KERNELS = {"matmul": "cross_rm_rm", "pointwise": "bias_rm, activation_unbound"}
"""His cross1, colAddRM and sigmoid1."""
CLASSES = ("matmul", "bias", "activation")
LEAST_MS = 1000.0  # of all runs of a way: what takes longer is repeated less often
TOLERANCE = 1e-5


def model(layers: list[Linear]) -> glnn.Model:
    """A sigmoid after each of `layers` but the last."""
    stack: list[Any] = []
    for layer in layers:
        stack += [layer, Sigmoid()]
    return glnn.Model.sequential(stack[:-1], (WIDTHS[0],), name="baseline")


def ways(
    layers: list[Linear], sessions: dict[str, glnn.InferenceSession], x: Array
) -> Iterator[tuple[str, Work, str]]:
    """What runs the network from host to host: what it is called, and what it is."""
    for name, session in sessions.items():
        feeds = {session.get_inputs()[0].name: x}
        said = "nothing joined" if name != "glnn" else "as it is"
        said += ", his kernels" if name == "gpu" else ""
        yield name, lambda s=session, f=feeds: s.run(None, f)[0], said  # type: ignore[misc]
    yield "cpu", *sequential(layers, x)
    yield "numpy", lambda: by_numpy(layers, x, np.matmul), "a matrix at once"


def sequential(layers: list[Linear], x: Array) -> tuple[Work, str]:
    """His loops in C on one thread, or where nothing compiles them a NumPy product a number."""
    try:
        compiled = library(SOURCE)
    except GlnnError as error:
        return lambda: by_numpy(layers, x, _by_numbers), f"a dot product for each result: {error}"
    weights = [np.ascontiguousarray(layer.weight) for layer in layers]
    biases = [np.array(layer.bias) for layer in layers]
    columns = len(x)

    def work() -> Array:
        given = np.ascontiguousarray(x.T)
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            rows, depth = weight.shape
            result = np.empty((rows, columns), np.float32)
            compiled.matmul(_at(weight), _at(given), _at(result), rows, columns, depth)
            compiled.bias(_at(result), _at(bias), rows, columns)
            if i < len(weights) - 1:
                compiled.activation(_at(result), rows * columns)
            given = result
        found: Array = given.T
        return found

    return work, "C, one thread, the loops of his kernels"


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _by_numbers(a: Array, b: Array) -> Array:
    """a @ b, one number of it after the other."""
    return np.array([[row @ column for column in b.T] for row in a], np.float32)


def by_numpy(layers: list[Linear], x: Array, product: Callable[[Array, Array], Array]) -> Array:
    """The network by NumPy."""
    for i, layer in enumerate(layers):
        x = product(x, np.asarray(layer.weight).T) + np.asarray(layer.bias)
        if i < len(layers) - 1:
            x = np.float32(1) / (np.float32(1) + np.exp(-x))
    return x


def timed(work: Work, repeat: int) -> dict[str, float]:
    """Median and least milliseconds, of fewer runs where one takes long."""
    once = milliseconds(work, 1, 1)["median_ms"]
    count = max(1, min(repeat, int(LEAST_MS / once)))
    return {**milliseconds(work, count, min(count, 10)), "runs": count}


def kernels(session: glnn.InferenceSession, x: Array, repeat: int) -> list[dict[str, Any]]:
    """Each step of a session: its layer's number, its class, and milliseconds of its launch."""
    plan = session.plan({session.get_inputs()[0].name: x.shape})
    backend = plan.backend
    layers = {name: f"layer {i}" for i, name in enumerate(_products(plan.steps), 1)}
    found: list[dict[str, Any]] = []
    last = ""
    for step, launch in zip(plan.steps, plan.launches, strict=True):
        last = layers.get(step.layer, last)
        timing = time_work(backend, launch, min(repeat, 10))
        found.append(
            {
                "step": step.name,
                "layer": last,
                "class": _class(step.op.name, step.kernel),
                "kernel": step.kernel,
                "ms": 1e3 * timing.seconds,
                "by_timer": timing.by_timer,
            }
        )
    return found


def _products(steps: Any) -> list[str]:
    return [step.layer for step in steps if step.op.name == "matmul"]


def _class(op: str, kernel: str) -> str:
    """matmul, bias or activation; any other op is called by its name."""
    named = kernel.split("_")[0]
    return named if named in CLASSES else op


def breakdown(steps: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Milliseconds by class and layer, and of all layers."""
    found: dict[tuple[str, str], float] = {}
    for step in steps:
        if step["class"] in CLASSES:
            for column in (step["layer"], "all"):
                key = step["class"], column
                found[key] = found.get(key, 0.0) + step["ms"]
    return found


@click.command(help=__doc__)
@click.option("--images", type=click.IntRange(1, 1000), default=1000, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=100, show_default=True)
@plot_option
@json_option
def main(images: int, repeat: int, plot: Path | None, as_json: bool) -> None:
    check_folder(plot)
    whole, parts = (documents.figure("rovder_2017", f"figure_6_{i}") for i in (1, 2))
    layers = [Linear(a, b, seed=i) for i, (a, b) in enumerate(pairwise(WIDTHS))]
    x = digits()[0][:images].reshape(images, -1).astype(np.float32) / np.float32(255)
    net = model(layers)
    (exact,) = net.graph.reference(x.astype(np.float64))
    sessions = {
        "gpu": glnn.InferenceSession(net, "compute", kernels=KERNELS, fused=False),
        "glnn_unfused": glnn.InferenceSession(net, "compute", fused=False),
        "glnn": glnn.InferenceSession(net, "compute"),
    }
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for name, work, what in bar.track(list(ways(layers, sessions, x)), description="timing"):
            error = relative_error(work(), exact)
            if not error <= TOLERANCE:
                raise GlnnError(f"{name}: the result is off by {error:.1e}, no time is given")
            rows.append({"name": name, "what": what, "error": error, **timed(work, repeat)})
        steps = {
            name: kernels(session, x, repeat)
            for name, session in bar.track(sessions.items(), description="kernels")
        }
    ours = {(row["name"], f"{images} images"): row["median_ms"] for row in rows}
    own = breakdown(steps["gpu"])
    result = {
        **machine(sessions["gpu"].backend.device),
        "images": images,
        "rows": rows,
        "kernels": steps,
        "beside": [*beside.rows(whole, ours, "ms"), *beside.rows(parts, own, "ms")],
        "claims": [*beside.claims(whole, ours, "ms"), *beside.claims(parts, own, "ms")],
    }
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result)
        beside.show(Screen(), whole, ours, "ms")
        beside.show(Screen(), parts, own, "ms")
    if plot is not None:
        beside.draw(plot, [whole], ours, "ms")
        beside.draw(plot, [parts], own, "ms")


def _print(result: dict[str, Any]) -> None:
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in list(result.items())[:7]))
    shown = table("", ">ms", ">error", "what")
    for row in result["rows"]:
        shown.add(row["name"], number(row["median_ms"]), f"{row['error']:.1e}", row["what"])
    out.show(shown, "whole runs, transfers included")
    for name, steps in result["kernels"].items():
        each = table("step", "class", "kernel", ">ms", "by")
        for step in steps:
            by = "timer" if step["by_timer"] else "clock"
            each.add(step["step"], step["class"], step["kernel"], number(step["ms"]), by)
        out.show(each, f"kernels of {name}")


if __name__ == "__main__":
    run(main)

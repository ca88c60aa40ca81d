"""Image filters on pictures of 1080p and 4K, beside OpenCV on the CPU and PyTorch on the GPU.

ms is from host array to host array, "steps" what is between, waited for, with everything on the
device. Pictures have three channels, those that Sobel is given one. OpenCV takes all cores;
PyTorch's images lie N x C x H x W, as it has them, and its filters are convolutions of each channel
by itself, along rows and then along columns. "off" is the greatest difference from OpenCV.

    python -m benchmarks.filters
    python -m benchmarks.filters --sizes 1920x1080 --only gaussian,median --json
    python -m benchmarks.filters --backend feedback --sizes 640x480 --no-peers
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.command import run
from benchmarks.filters_peers import opencv, pytorch
from benchmarks.record import machine, milliseconds
from benchmarks.tables import table
from glnn import filters
from glnn.backends import NAMES, Backend, open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.core.types import TensorType
from glnn.errors import GlnnError
from glnn.filters.filter import Filter
from glnn.filters.linear_filters import Box, Correlation, Gaussian, Grey, Laplacian, Resize, Scharr
from glnn.filters.median import Median
from glnn.profiling import time_work

Array = NDArray[Any]
TAPS = (0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05)
MOST, FIRST = 50, 3  # runs that are timed, and those before
REFLECT = "reflect"


@dataclass(frozen=True)
class Case:
    """A filter with its parameters, on images of a type."""

    name: str
    work: Callable[[Array, Backend], Any]
    made: Callable[[Array], Filter] | None = None
    """The filter for an image, of which the steps are timed; None where there is no plan."""
    dtypes: tuple[str, ...] = ("uint8", "float32")


def _half(x: Array) -> tuple[int, int]:
    return x.shape[1] // 2, x.shape[0] // 2


def _of_bytes(x: Array) -> bool:
    return x.dtype == np.uint8


CASES = (
    Case(
        "gaussian_blur 5",
        lambda x, b: filters.gaussian_blur(x, 5, 1.1, backend=b),
        lambda x: Gaussian.from_arguments(_of_bytes(x), 5, 1.1, REFLECT),
    ),
    Case(
        "gaussian_blur 21",
        lambda x, b: filters.gaussian_blur(x, 21, 3.5, backend=b),
        lambda x: Gaussian.from_arguments(_of_bytes(x), 21, 3.5, REFLECT),
    ),
    Case(
        "box 5",
        lambda x, b: filters.box(x, 5, backend=b),
        lambda x: Box.from_arguments(_of_bytes(x), 5, REFLECT),
    ),
    Case(
        "separable 7",
        lambda x, b: filters.separable(x, TAPS, TAPS, backend=b),
        lambda x: Correlation(TAPS, TAPS, REFLECT),
    ),
    Case("scharr", lambda x, b: filters.scharr(x, backend=b), lambda x: Scharr(REFLECT)),
    Case(
        "laplacian", lambda x, b: filters.laplacian(x, backend=b), lambda x: Laplacian(1, REFLECT)
    ),
    Case("median", lambda x, b: filters.median(x, backend=b), lambda x: Median("replicate")),
    Case("grey", lambda x, b: filters.grey(x, b), lambda x: Grey()),
    Case(
        "resize linear",
        lambda x, b: filters.resize(x, _half(x), "linear", b),
        lambda x: Resize(*_half(x), "linear"),
    ),
    Case(
        "resize area",
        lambda x, b: filters.resize(x, _half(x), "area", b),
        lambda x: Resize(*_half(x), "area"),
    ),
    Case("sobel", lambda x, b: filters.sobel(x, b), None, ("uint8",)),
)


@click.command(help=__doc__)
@click.option("--backend", type=click.Choice(["auto", *NAMES]), default="auto", show_default=True)
@click.option("--sizes", default="1920x1080,3840x2160", show_default=True, help="Width x height.")
@click.option("--only", default="", help="Beginnings of filters' names, with commas between.")
@click.option("--seconds", default=0.2, show_default=True, help="For each measurement, about.")
@click.option("--peers/--no-peers", default=True, help="Also time OpenCV and PyTorch.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(backend: str, sizes: str, only: str, seconds: float, peers: bool, as_json: bool) -> None:
    shapes, cases = _shapes(sizes), _cases(only)
    opened = open_backend(backend)
    given = [(case, shape, dtype) for shape in shapes for case in cases for dtype in case.dtypes]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for case, shape, dtype in bar.track(given, description="filters"):
            rows += _rows(case, opened, _image(shape, dtype, case), seconds, peers)
        # Last of all, as a context of CUDA slows OpenGL.
        for case, shape, dtype in bar.track(given if peers else [], description="PyTorch"):
            rows += _of_pytorch(case, _image(shape, dtype, case), seconds)
    order = list(dict.fromkeys((row["filter"], row["image"]) for row in rows))
    rows.sort(key=lambda row: order.index((row["filter"], row["image"])))
    result = {**machine(opened.device), "backend": opened.name, "rows": rows}
    if as_json:
        print(json.dumps(result, indent=2))
        return
    shown = table("filter", "image", "by", ">ms", ">steps ms", ">off")
    for row in rows:
        off = "-" if row["off"] is None else f"{row['off']:.2g}"
        texts = row["filter"], row["image"], row["name"]
        shown.add(*texts, number(row["ms"]), number(row["steps_ms"]), off)
    Screen().show(shown, f"filters on {opened.name}: {result['device']}")


def _shapes(text: str) -> list[tuple[int, int]]:
    """Heights and widths. Raises GlnnError where `text` has none."""
    found = []
    for part in text.split(","):
        sizes = part.strip().split("x")
        if len(sizes) != 2 or not all(n.isascii() and n.isdigit() and int(n) > 1 for n in sizes):
            raise GlnnError(f"--sizes: expected sizes as 1920x1080,640x480, got {text!r}")
        found.append((int(sizes[1]), int(sizes[0])))
    return found


def _cases(only: str) -> list[Case]:
    """Those whose names begin so. Raises GlnnError where there are none."""
    wanted = [name.strip() for name in only.split(",")] if only else [""]
    for name in wanted:
        if not any(case.name.startswith(name) for case in CASES):
            known = ", ".join(case.name for case in CASES)
            raise GlnnError(f"--only: no {name!r}, expected beginnings of {known}")
    return [case for case in CASES if case.name.startswith(tuple(wanted))]


def _image(shape: tuple[int, int], dtype: str, case: Case) -> Array:
    """A picture of noise: what a median does with it takes no less than with any other."""
    channels = () if case.name == "sobel" else (3,)
    x = np.random.default_rng(0).integers(0, 256, (*shape, *channels), np.uint8)
    return x if dtype == "uint8" else x.astype(np.float32) / np.float32(255)


def _rows(
    case: Case, backend: Backend, x: Array, seconds: float, peers: bool
) -> Iterator[dict[str, Any]]:
    """What glnn takes, and OpenCV."""
    about = _about(case, x)
    ours = case.work(x, backend)
    reference = opencv(case.name, x) if peers else None
    off = None if reference is None else _off(ours, reference.run())
    steps = None if case.made is None else _steps(case.made(x), backend, x)
    taken = _timed(lambda: case.work(x, backend), seconds)
    yield {**about, "name": f"glnn {backend.name}", "ms": taken, "steps_ms": steps, "off": off}
    if reference is not None:
        taken = _timed(reference.run, seconds)
        yield {**about, "name": reference.name, "ms": taken, "steps_ms": None, "off": 0.0}


def _of_pytorch(case: Case, x: Array, seconds: float) -> Iterator[dict[str, Any]]:
    """What PyTorch takes, where it is installed with CUDA."""
    peer = pytorch(case.name, x)
    if peer is None:
        return
    reference = opencv(case.name, x)
    resident = None if peer.resident is None else _timed(peer.resident, seconds)
    off = None if reference is None else _off(peer.run(), reference.run())
    taken = _timed(peer.run, seconds)
    yield {**_about(case, x), "name": peer.name, "ms": taken, "steps_ms": resident, "off": off}


def _about(case: Case, x: Array) -> dict[str, Any]:
    """The filter and the image of a row."""
    height, width, *channels = x.shape
    image = "x".join(map(str, (width, height, *channels))) + f" {x.dtype}"
    return {"filter": case.name, "image": image}


def _steps(made: Filter, backend: Backend, x: Array) -> float | None:
    """Milliseconds of all launches, on a GPU."""
    if backend.device is None:
        return None
    plan = made.plan(TensorType.of(x), backend)
    plan.run({"image": x})
    return 1e3 * time_work(backend, plan.perform, 3).seconds


def _timed(work: Callable[[], Any], seconds: float) -> float:
    """The median milliseconds of as many runs as there is time for."""
    once = milliseconds(work, 1, 1)["median_ms"]
    repeat = max(1, min(MOST, int(1e3 * seconds / once)))
    return milliseconds(work, repeat, min(FIRST, repeat))["median_ms"]


def _off(found: Any, expected: Any) -> float:
    """The greatest difference of numbers, or of those of several arrays."""
    pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)))
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in pairs)


if __name__ == "__main__":
    run(main)

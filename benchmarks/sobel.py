"""Mpixel/s of the Sobel kernels, beside Gronqvist's table 1.1, a copy, and other libraries.

Each kernel is held against NumPy before it is timed, by the GPU's own timer where that can be
believed. Three bytes a pixel are counted, one read and two written; the mark is the faster of two
copies of as many (see benchmarks.bandwidth). Two sets of buffers take turns. Peers that are
installed are timed as well: OpenCV and NumPy on the CPU, PyTorch's conv2d on CUDA. Transfers are
glnn.filters.sobel from array to arrays.

    python -m benchmarks.sobel
    python -m benchmarks.sobel --sizes 512x512 --kernels lanes,char16_swizzle --json
    python -m benchmarks.sobel --backend feedback --sizes 64x67 --no-peers
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import beside, documents
from benchmarks.bandwidth import SETS, copies
from benchmarks.command import run
from benchmarks.record import machine, milliseconds
from benchmarks.tables import table
from glnn.backends import Launch, open_backend
from glnn.backends.gl import GlBackend
from glnn.cli.screen import Screen, number, progress
from glnn.compiler import prepare
from glnn.errors import GlnnError
from glnn.filters import sobel
from glnn.graph.operators import Sobel
from glnn.kernels import Kernel, kernels_for
from glnn.profiling import time_work

Array = NDArray[Any]
MASKS = [[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], [[1, 2, 1], [0, 0, 0], [-1, -2, -1]]]


def peers(image: Array, expected: Array, repeat: int) -> Iterator[dict[str, Any]]:
    """Median and least milliseconds, and Mpixel/s, of each that is installed.

    expected: dx and dy over 8, int8 (2, h, w), which theirs are held against inside the border.
    """
    for name, found in _every(image, expected, repeat):
        yield {"name": name, **found, "mpixel_s": image.size / found["median_ms"] / 1e3}


def _every(image: Array, expected: Array, repeat: int) -> Iterator[tuple[str, dict[str, float]]]:
    repeat = min(repeat, 5) if image.size > 1 << 24 else repeat
    yield (
        f"NumPy {np.__version__}",
        milliseconds(lambda: Sobel().reference(image), min(repeat, 3), 0),
    )
    yield from _opencv(image, expected, repeat)
    yield from _torch(image, expected, repeat)


def _right(name: str, gradients: Any, expected: Array) -> None:
    """See that (2, h, w) sums over 8 are the expected ones."""
    for ours, theirs in zip(expected, gradients, strict=True):
        inside = np.asarray(theirs)[1:-1, 1:-1]
        if not np.array_equal(inside // 8, ours[1:-1, 1:-1]):
            raise GlnnError(f"{name}: the result is wrong, no time is given")


def _opencv(image: Array, expected: Array, repeat: int) -> Iterator[tuple[str, dict[str, float]]]:
    try:
        import cv2
    except ImportError:
        return

    def twice() -> tuple[Array, Array]:
        return cv2.Sobel(image, cv2.CV_16S, 1, 0), cv2.Sobel(image, cv2.CV_16S, 0, 1)

    ways: dict[str, Callable[[], tuple[Array, Array]]] = {
        "Sobel twice": twice,
        "spatialGradient": lambda: cv2.spatialGradient(image),
    }
    for way, work in ways.items():
        dx, dy = work()
        _right(f"OpenCV's {way}", (dx, -dy), expected)
        threads = cv2.getNumThreads()
        name = f"OpenCV {cv2.__version__} {way}, {threads} threads, 16 bits"
        yield name, milliseconds(work, repeat, 2)


def _torch(image: Array, expected: Array, repeat: int) -> Iterator[tuple[str, dict[str, float]]]:
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    torch.backends.cudnn.benchmark = True
    for dtype in (torch.float32, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        x = torch.from_numpy(image).cuda().to(dtype)[None, None]
        masks = torch.tensor(MASKS, dtype=dtype, device="cuda")[:, None]

        def work(x: Any = x, masks: Any = masks) -> Any:
            return torch.nn.functional.conv2d(x, masks, padding=1)

        found = np.floor(work()[0].float().cpu().numpy() / 8) * 8
        _right(f"PyTorch's conv2d of {kind}", found, expected)
        name = f"PyTorch {torch.__version__} conv2d CUDA, {kind}, resident"
        yield name, _on_cuda(torch, work, repeat)


def _on_cuda(torch: Any, work: Callable[[], Any], repeat: int) -> dict[str, float]:
    """Milliseconds by CUDA's own events."""
    for _ in range(10):
        work()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return {"median_ms": median(times), "least_ms": min(times)}


BYTES = 3  # a pixel: one is read, two are written
UNIT = 1 << 14  # floats that a copy is a multiple of
WORD = 4  # pixels: what char's invocation owns


def measure(
    backend: GlBackend, kernel: Kernel, image: Array, expected: Array, mark: float, repeat: int
) -> dict[str, Any]:
    """Mpixel/s of a kernel and its share of the copies' GB/s, or the reason why there is none."""
    row: dict[str, Any] = {"name": kernel.name, "document": kernel.document}
    try:
        seconds, by_timer = backend.perform(
            lambda: _timed(backend, kernel.name, image, expected, repeat)
        )
    except GlnnError as error:
        return {**row, "us": None, "mpixel_s": None, "share": None, "reason": str(error)}
    speed = BYTES * image.size / seconds / 1e9
    return {
        **row,
        "us": 1e6 * seconds,
        "mpixel_s": image.size / seconds / 1e6,
        "gb_s": speed,
        "share": speed / mark,
        "by_timer": by_timer,
    }


def _timed(
    backend: GlBackend, kernel: str, image: Array, expected: Array, repeat: int
) -> tuple[float, bool]:
    """Seconds of a run, and whether the GPU's timer says so. Raises GlnnError where it is wrong."""
    launch, out = prepare(Sobel(), {"x": image}, backend, kernel)
    launch()
    if not np.array_equal(out.pull(), expected):
        raise GlnnError(f"{kernel}: the result is wrong, no time is given")
    # Prepared anew: drivers may keep a result that was read back on the host.
    works: list[Launch] = [prepare(Sobel(), {"x": image}, backend, kernel)[0] for _ in range(SETS)]
    timing = time_work(backend, backend.combine(works), repeat)
    return timing.seconds / SETS, timing.by_timer


def transfers(backend: GlBackend, image: Array, repeat: int) -> dict[str, Any]:
    """From the host's array to the host's arrays, by `glnn.filters.sobel`."""
    found = milliseconds(lambda: sobel(image, backend), repeat, 2)
    return {
        "name": f"filters.sobel, {backend.name}",
        **found,
        "mpixel_s": image.size / found["median_ms"] / 1e3,
    }


def _size(
    backend: GlBackend, image: Array, expected: Array, kernels: list[Kernel], repeat: int
) -> Iterator[dict[str, Any]]:
    """What is found of one image: nothing after each kernel, so that progress shows, then all."""
    floats = max(BYTES * image.size // 8 // UNIT, 1) * UNIT
    copied = copies(backend, floats, repeat)
    mark = max(copied, key=lambda way: copied[way])
    rows = []
    for kernel in kernels:
        rows.append(measure(backend, kernel, image, expected, copied[mark], repeat))
        yield {}
    sent = transfers(backend, image, repeat)
    yield {"copies": copied, "mark": mark, "rows": rows, "transfers": [sent]}


def _peers(parts: list[dict[str, Any]], sizes: list[tuple[int, int]], repeat: int) -> None:
    """Add the peers' rows to `parts`; last of all, as a context of CUDA slows OpenGL."""
    for part, shape in zip(parts, sizes, strict=True):
        part["peers"] = list(peers(*_images(shape), repeat))


def _images(shape: tuple[int, int]) -> tuple[Array, Array]:
    """A random image, and its gradients."""
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return image, Sobel().reference(image)[0]


def document(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Table 1.1 beside what was measured of its size, the first of `parts`, and of all others."""
    figure, full = (documents.figure("gronqvist", f"table_1_1{end}") for end in ("", "_full"))
    own = {_named(row["name"]): row for row in parts[0]["rows"]}
    known = {name: row for name, row in own.items() if name in figure.rows}
    rates = {(k, "pixel_rate"): row["mpixel_s"] for k, row in known.items() if row["mpixel_s"]}
    pixels = {(k, "pixels"): max(figure.rows[k]["pixels"], WORD) for k in known}
    filled = {
        (_named(row["name"]), part["size"]): row["mpixel_s"]
        for part in parts
        if part["size"] in full.columns_here
        for row in part["rows"]
        if row["mpixel_s"]
    }
    return {
        "beside": [
            *beside.rows(figure, rates, "Mpixel/s"),
            *beside.rows(figure, pixels, "pixels an invocation"),
            *beside.rows(full, filled, "Mpixel/s"),
        ],
        "claims": [*beside.claims(figure, rates), *beside.claims(full, filled)],
    }


def _named(kernel: str) -> str:
    """What the document calls a kernel."""
    return kernel.removeprefix("feedback_")


def _sizes(_: object, __: object, text: str) -> list[tuple[int, int]]:
    found = [re.fullmatch("([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", part) for part in text.split(",")]
    if not all(found):
        raise GlnnError(f"--sizes: expected height x width as 512x512,64x67, got {text!r}")
    return [(int(one[1]), int(one[2])) for one in found if one]


def _wanted(backend: str, only: str | None) -> list[Kernel]:
    """The backend's kernels, or those that `only` names, by commas; the document's come first."""
    table_order = list(documents.figure("gronqvist", "table_1_1").rows)
    every = sorted(
        kernels_for("sobel", backend),
        key=lambda k: table_order.index(_named(k.name)) if k.document else len(table_order),
    )
    if only is None:
        return every
    names = only.split(",")
    known = {k.name for k in every}
    if unknown := [name for name in names if name not in known]:
        raise GlnnError(f"--kernels: no {unknown[0]!r}, expected {', '.join(sorted(known))}")
    return [k for k in every if k.name in names]


@click.command(help=__doc__)
@click.option("--sizes", default="512x512,8192x8192", show_default=True, callback=_sizes)
@click.option("--backend", "name", type=click.Choice(["compute", "feedback"]), default="compute")
@click.option("--kernels", help="Names, by commas; all unless said.")
@click.option("--no-peers", is_flag=True, help="Leave other libraries out.")
@click.option("--repeat", type=click.IntRange(1), default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    sizes: list[tuple[int, int]],
    name: str,
    kernels: str | None,
    no_peers: bool,
    repeat: int,
    as_json: bool,
) -> None:
    wanted = _wanted(name, kernels)
    os.environ["GLNN_TRUST"] = "1"  # every result is held against NumPy here
    backend = open_backend(name)
    assert isinstance(backend, GlBackend)
    parts: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        task = bar.add_task("timing", total=len(sizes) * (1 + len(wanted)))
        for shape in sizes:
            size = f"{shape[0]}x{shape[1]}"
            bar.update(task, description=size)
            for part in _size(backend, *_images(shape), wanted, repeat):
                parts += [{"size": size, **part}] if part else []
                bar.advance(task)
        if not no_peers:
            bar.update(task, description="peers")
            _peers(parts, sizes, repeat)
    found: dict[str, Any] = {**machine(backend.device), "backend": name}
    found["copies"] = {part["size"]: {**part["copies"], "mark": part["mark"]} for part in parts}
    for key in ("rows", "transfers", "peers"):
        found[key] = [{"size": p["size"], **row} for p in parts for row in p.get(key, [])]
    found |= document(parts)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show(found, parts)


def _show(found: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    out = Screen()
    out.say(", ".join(f"{k} {found[k]}" for k in (*machine(), "backend")))
    theirs = documents.figure("gronqvist", "table_1_1").rows
    for part in parts:
        told = ", ".join(f"{way} {number(speed)} GB/s" for way, speed in part["copies"].items())
        out.say(f"{part['size']}: copies: {told}; the mark is {part['mark']}")
        speeds = {_named(r["name"]): r["mpixel_s"] for r in part["rows"]}
        base, base_theirs = speeds.get("char"), theirs["char"]["pixel_rate"]
        shown = table(
            "kernel", ">us", ">Mpixel/s", ">of the copy", ">over char", ">Mali-T604", "by"
        )
        for row in part["rows"]:
            name, speed = _named(row["name"]), row["mpixel_s"]
            if speed is None:
                shown.add(row["name"], row["reason"], "-", "-", "-", "-", "")
                continue
            there = theirs.get(name)
            shown.add(
                row["name"], number(row["us"]), number(speed), f"{100 * row['share']:.0f}%",
                f"{speed / base:.1f}" if base else "-",
                f"{there['pixel_rate'] / base_theirs:.1f}" if there else "-",
                "timer" if row["by_timer"] else "clock",
            )  # fmt: skip
        out.show(shown, part["size"])
        others = table("from host to host, and other libraries", ">ms", ">Mpixel/s")
        for row in (*part["transfers"], *part.get("peers", [])):
            others.add(row["name"], number(row["median_ms"]), number(row["mpixel_s"]))
        out.show(others, part["size"])


if __name__ == "__main__":
    run(main)

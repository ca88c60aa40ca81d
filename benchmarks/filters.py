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
SIGMA = {5: 1.1, 21: 3.5}
LUMA = (0.299, 0.587, 0.114)
SMOOTH, SECOND = (3.0, 10.0, 3.0), (1.0, -2.0, 1.0)


@dataclass(frozen=True)
class Peer:
    """Another library's filter.

    run: from host array to host array, or arrays. resident: the same on data that is there already.
    """

    name: str
    run: Callable[[], Any]
    resident: Callable[[], object] | None = None


def opencv(name: str, x: Array) -> Peer | None:
    """OpenCV's filter, on the CPU."""
    try:
        import cv2
    except ImportError:
        return None
    half = x.shape[1] // 2, x.shape[0] // 2
    known: dict[str, Callable[[], Any]] = {
        "gaussian_blur 5": lambda: cv2.GaussianBlur(x, (5, 5), SIGMA[5]),
        "gaussian_blur 21": lambda: cv2.GaussianBlur(x, (21, 21), SIGMA[21]),
        "box 5": lambda: cv2.blur(x, (5, 5)),
        "separable 7": lambda: cv2.sepFilter2D(x, -1, np.array(TAPS), np.array(TAPS)),
        "scharr": lambda: tuple(cv2.Scharr(x, cv2.CV_32F, *d) for d in ((1, 0), (0, 1))),
        "laplacian": lambda: cv2.Laplacian(x, cv2.CV_32F),
        "median": lambda: cv2.medianBlur(x, 3),
        "grey": lambda: cv2.cvtColor(x, cv2.COLOR_RGB2GRAY),
        "resize linear": lambda: cv2.resize(x, half, interpolation=cv2.INTER_LINEAR),
        "resize area": lambda: cv2.resize(x, half, interpolation=cv2.INTER_AREA),
        "sobel": lambda: _sobel(cv2, x),
    }
    return Peer(f"OpenCV {cv2.__version__}", known[name])


def _sobel(cv2: Any, x: Array) -> tuple[Array, Array]:
    """Over 8, as the document has it: the row above less the row below, and 0 at the border."""
    dx, dy = cv2.Sobel(x, cv2.CV_16S, 1, 0) >> 3, -cv2.Sobel(x, cv2.CV_16S, 0, 1) >> 3
    for each in (dx, dy):
        each[[0, -1]] = each[:, [0, -1]] = 0
    return dx.astype(np.int8), dy.astype(np.int8)


def pytorch(name: str, x: Array) -> Peer | None:
    """PyTorch's operators on the GPU; none without CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    filter = Torch(torch, x.dtype == np.uint8)
    planar = np.ascontiguousarray(x.reshape(*x.shape[:2], -1).transpose(2, 0, 1)[None])
    host = torch.from_numpy(planar)
    there = host.cuda()

    def run() -> Any:
        found = filter(name, host.cuda())
        if isinstance(found, tuple):
            return tuple(_channels_last(one.cpu().numpy(), x) for one in found)
        return _channels_last(found.cpu().numpy(), x)

    def resident() -> None:
        filter(name, there)
        torch.cuda.synchronize()

    return Peer(f"PyTorch {torch.__version__} CUDA", run, resident)


def _channels_last(planar: Array, x: Array) -> Array:
    """A view of (1, c, h, w) that is as `x` is."""
    found = planar[0].transpose(1, 2, 0)
    return np.asarray(found[..., 0] if x.ndim == 2 or found.shape[2] == 1 else found)


class Torch:
    """The filters, of tensors (1, c, h, w). of_bytes: whether these are uint8, and results too."""

    def __init__(self, torch: Any, of_bytes: bool) -> None:
        self._torch, self._of_bytes = torch, of_bytes

    def __call__(self, name: str, x: Any) -> Any:
        given = x.float()
        kind, _, size = name.partition(" ")
        if kind == "scharr":
            first = (-1.0, 0.0, 1.0)
            return self._passes(given, first, SMOOTH), self._passes(given, SMOOTH, first)
        if kind == "sobel":
            return self._sobel(given)
        if kind == "laplacian":
            return self._passes(given, SECOND, (1.0,)) + self._passes(given, (1.0,), SECOND)
        return self._like(self._blurred(kind, size, given))

    def _blurred(self, kind: str, size: str, x: Any) -> Any:
        torch = self._torch
        if kind == "grey":
            return (x * torch.tensor(LUMA, device=x.device)[:, None, None]).sum(1, keepdim=True)
        if kind == "resize":
            half = x.shape[2] // 2, x.shape[3] // 2
            mode: dict[str, Any] = {"mode": "area"}
            if size == "linear":
                mode = {"mode": "bilinear", "align_corners": False}
            return torch.nn.functional.interpolate(x, half, **mode)
        if kind == "median":
            wide = torch.nn.functional.pad(x, (1, 1, 1, 1), "replicate")
            h, w = x.shape[2:]
            around = [wide[..., i : i + h, j : j + w] for i in range(3) for j in range(3)]
            return torch.stack(around).median(0).values
        weights: Any = list(TAPS)
        if kind == "box":
            weights = [1 / int(size)] * int(size)
        if kind == "gaussian_blur":
            at, sigma = np.arange(int(size)) - int(size) // 2, SIGMA[int(size)]
            bell = np.exp(-0.5 * (at / sigma) ** 2)
            weights = (bell / bell.sum()).tolist()
        return self._passes(x, weights, weights)

    def _passes(self, x: Any, across: Any, down: Any) -> Any:
        """A convolution of each channel along rows, then along columns."""
        torch, channels = self._torch, x.shape[1]
        reach = (len(across) // 2,) * 2 + (len(down) // 2,) * 2
        x = torch.nn.functional.pad(x, reach, "reflect")
        for weights, shape in ((across, (1, 1, 1, -1)), (down, (1, 1, -1, 1))):
            kernel = torch.tensor(weights, device=x.device).reshape(shape)
            kernel = kernel.repeat(channels, 1, 1, 1)
            x = torch.nn.functional.conv2d(x, kernel, groups=channels)
        return x

    def _sobel(self, x: Any) -> tuple[Any, Any]:
        """As `_sobel` of OpenCV's."""
        torch, smooth, first = self._torch, (1.0, 2.0, 1.0), (-1.0, 0.0, 1.0)
        found = self._passes(x, first, smooth), -self._passes(x, smooth, first)
        dx, dy = (torch.floor(one[..., 1:-1, 1:-1] / 8).to(torch.int8) for one in found)
        pad = torch.nn.functional.pad
        return pad(dx, (1, 1, 1, 1)), pad(dy, (1, 1, 1, 1))

    def _like(self, y: Any) -> Any:
        """y as bytes, where images are."""
        return y.round().clamp(0, 255).to(self._torch.uint8) if self._of_bytes else y


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
    plan = made.plan(TensorType.from_array(x), backend)
    plan.run({"image": x})
    return 1e3 * time_work(backend, plan.launch, 3).seconds


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

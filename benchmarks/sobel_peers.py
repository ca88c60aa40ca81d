"""Other libraries' Sobel filters: NumPy, OpenCV on the CPU, PyTorch's conv2d on CUDA.

What is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import milliseconds
from glnn.errors import GlnnError
from glnn.graph.operators import Sobel

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

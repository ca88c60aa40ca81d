"""The filters of `benchmarks.filters` in OpenCV and in PyTorch; what is not installed is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TAPS = np.array((0.05, 0.1, 0.2, 0.3, 0.2, 0.1, 0.05), np.float32)
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
        "separable 7": lambda: cv2.sepFilter2D(x, -1, TAPS, TAPS),
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
        weights: Any = TAPS.tolist()
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

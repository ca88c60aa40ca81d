"""Linear filters: correlations, resizing and luminance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from glnn.backends import Backend
from glnn.core.types import Array, DType, Shape
from glnn.errors import ShapeError, shown
from glnn.filters.filter import (
    HALF_UP,
    ROUNDED,
    Filter,
    Sketch,
    as_image,
    axes,
    check_border,
    check_numbers,
    check_sizes,
    is_number,
)
from glnn.graph.builder import constant
from glnn.graph.compose.resample import gather_axes
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise, Resample, Squeeze

Taps = tuple[Array, Array]
"""Indices of pixels, int32, and their weights, float32, both (taps, pixels of the result)."""
CUBIC_A = -0.75
"""The coefficient of Keys 1981's cubic that OpenCV and PyTorch use."""


def apply_taps(sketch: Sketch, x: Value, axis: int, taps: Taps) -> Value:
    """Return the weighted sums of x, float32, along `axis`, by `taps`."""
    index, weight = taps
    size = x.type.shape[axis]
    if len(index) == 1 and np.array_equal(index[0], np.arange(size)) and (weight == 1).all():
        return x
    return sketch.add(Resample(axis), x, constant(index), constant(weight))


def window(size: int, weights: Sequence[float], border: str) -> Taps:
    """Return the taps of a correlation by `weights`, centred on each of `size` pixels.

    border: one of BORDERS.
    """
    index = np.arange(size) + (np.arange(len(weights)) - len(weights) // 2)[:, None]
    outside = (index < 0) | (index >= size)
    if border == "reflect":
        period = max(1, 2 * (size - 1))
        index = np.minimum(index % period, -index % period)
    weight = np.broadcast_to(np.array(weights, np.float32)[:, None], index.shape)
    if border == "constant":
        weight = np.where(outside, np.float32(0), weight)
    return _drop_zero_taps(np.clip(index, 0, size - 1), weight)


def _drop_zero_taps(index: Array, weight: Array) -> Taps:
    """Remove the taps whose weights are all 0, but leave at least one tap."""
    needed = np.asarray(weight.any(axis=1))
    needed[0] |= not needed.any()
    return index[needed].astype(np.int32), weight[needed].astype(np.float32)


def nearest(size: int, count: int) -> Array:
    """Return the index (int32) of the nearest of `size` pixels for each of `count`, as OpenCV."""
    coordinate = np.floor(np.arange(count) * (1 / (count / size)))
    return np.asarray(np.minimum(coordinate, size - 1), np.int32)


def linear(size: int, count: int) -> Taps:
    """Return the taps of linear interpolation of `size` pixels to `count`."""
    return _taps_around(size, count, 1, lambda x: np.clip(1 - x, 0, 1))


def cubic(size: int, count: int) -> Taps:
    """Return the taps of cubic interpolation of `size` pixels to `count` (Keys 1981)."""

    def weight(x: Array) -> Array:
        near = ((CUBIC_A + 2) * x - (CUBIC_A + 3)) * x * x + 1
        far = ((CUBIC_A * x - 5 * CUBIC_A) * x + 8 * CUBIC_A) * x - 4 * CUBIC_A
        return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0.0)))

    return _taps_around(size, count, 2, weight)


def area(size: int, count: int) -> Taps:
    """Return the taps that average `size` pixels over the area of each of `count` pixels."""
    edges = np.arange(count + 1) * (size / count)
    first, last = edges[:-1], edges[1:]
    most = ceil(size / count) + 1  # input pixels that an output pixel may cover
    index = np.floor(first).astype(np.int64) + np.arange(most)[:, None]
    covered = np.clip(np.minimum(index + 1, last) - np.maximum(index, first), 0, None)
    covered = np.where(index < size, covered, 0.0)
    return _drop_zero_taps(np.clip(index, 0, size - 1), covered / covered.sum(axis=0))


def _taps_around(size: int, count: int, reach: int, weight: Callable[[Array], Array]) -> Taps:
    """Return the taps of `reach` pixels to each side, weighted by `weight` of their distance."""
    centre = (np.arange(count) + 0.5) * (size / count) - 0.5
    index = np.floor(centre).astype(np.int64) + np.arange(1 - reach, 1 + reach)[:, None]
    return _drop_zero_taps(np.clip(index, 0, size - 1), weight(np.abs(index - centre)))


Weights = tuple[float, ...]
ONCE: Weights = (1.0,)
FIRST: Weights = (-1.0, 0.0, 1.0)
SECOND: Weights = (1.0, -2.0, 1.0)
SMOOTHING: dict[int, Weights] = {1: ONCE, 3: (1.0, 2.0, 1.0)}
"""The smoothing across the second derivatives of a Laplacian, by its kernel size."""
OPENCV_KERNELS: dict[int, tuple[float, ...]] = {
    1: (1.0,),
    3: (0.25, 0.5, 0.25),
    5: (0.0625, 0.25, 0.375, 0.25, 0.0625),
    7: (0.03125, 0.109375, 0.21875, 0.28125, 0.21875, 0.109375, 0.03125),
    9: tuple(n / 256 for n in (4, 13, 30, 51, 60, 51, 30, 13, 4)),
}
"""OpenCV's Gaussian kernels by size, where sigma is None."""
WEIGHT_UNITS = 256
"""Weights for uint8 are rounded to multiples of 1 / WEIGHT_UNITS, which makes all sums exact."""


@dataclass(frozen=True)
class Correlation(Filter):
    """A correlation along rows, then along columns, whose result has the image's type."""

    name: ClassVar[str] = "separable"
    across: Weights
    """Along rows."""
    down: Weights
    """Along columns."""
    border: str
    """A name of BORDERS."""
    rounding: Expr = ROUNDED
    """The rounding of sums to bytes."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        y = passes(sketch, sketch.floats(x), self.across, self.down, self.border)
        return (sketch.convert_like(x, y, self.rounding),)


@dataclass(frozen=True)
class Gaussian(Correlation):
    """A Gaussian blur."""

    name: ClassVar[str] = "gaussian_blur"

    @classmethod
    def from_arguments(
        cls, of_bytes: bool, kernel_size: object, sigma: object, border: object
    ) -> Gaussian:
        """Return the filter for arguments of `gaussian_blur`. of_bytes: uint8 or float32."""
        kernels = []
        for size, spread in gaussian_parameters(kernel_size, sigma, of_bytes):
            weights = gaussian_kernel(size, spread)
            kernels.append(tuple((round_weights(weights) if of_bytes else weights).tolist()))
        return cls(kernels[0], kernels[1], check_border(cls.name, border), HALF_UP)


@dataclass(frozen=True)
class Box(Correlation):
    """Box means. Sums of bytes are exact for up to 2^16 pixels."""

    name: ClassVar[str] = "box"

    @classmethod
    def from_arguments(cls, of_bytes: bool, kernel_size: object, border: object) -> Box:
        """Return the filter for arguments of `box`. of_bytes: uint8 or float32."""
        across, down = check_sizes(cls.name, "kernel_size", kernel_size)
        mean = HALF_UP(call("quotient", Arg(0), float(across * down)))
        row, column = ((1.0 if of_bytes else 1 / n,) * n for n in (across, down))
        return cls(row, column, check_border(cls.name, border), mean)


@dataclass(frozen=True)
class Scharr(Filter):
    """The first derivatives along rows and along columns."""

    name: ClassVar[str] = "scharr"
    border: str
    """A name of BORDERS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        smooth, pixels = (3.0, 10.0, 3.0), sketch.floats(x)
        dx = passes(sketch, pixels, FIRST, smooth, self.border)
        return dx, passes(sketch, pixels, smooth, FIRST, self.border)


@dataclass(frozen=True)
class Laplacian(Filter):
    """The sum of the second derivatives along rows and along columns."""

    name: ClassVar[str] = "laplacian"
    kernel_size: int
    """1, or 3 to smooth across each derivative."""
    border: str
    """A name of BORDERS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        smooth, pixels = SMOOTHING[self.kernel_size], sketch.floats(x)
        across = passes(sketch, pixels, SECOND, smooth, self.border)
        down = passes(sketch, pixels, smooth, SECOND, self.border)
        return (sketch.add(Pointwise(call("add", Arg(0), Arg(1))), across, down),)


def passes(sketch: Sketch, x: Value, across: Weights, down: Weights, border: str) -> Value:
    """Correlate x, float32, by `across` along rows, then by `down` along columns."""
    for axis, weights in zip(axes(x.type.shape), (across, down), strict=True):
        x = apply_taps(sketch, x, axis, window(x.type.shape[axis], weights, border))
    return x


def separable(
    image: Array,
    kernel_x: object,
    kernel_y: object,
    border: str = "reflect",
    backend: str | Backend = "auto",
) -> Array:
    """Correlate `image` with the row `kernel_x`, then with the column `kernel_y`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result has its shape and dtype,
    for uint8 rounded to the nearest, halves to even, and saturated. kernel_x, kernel_y: weights;
    that at index length // 2 is centred on the pixel. Equal to OpenCV's `sepFilter2D`. Raises
    ShapeError for other arguments.
    """
    across = check_numbers("separable", "kernel_x", kernel_x)
    down = check_numbers("separable", "kernel_y", kernel_y)
    return Correlation(across, down, check_border("separable", border))(image, backend)[0]


def gaussian_blur(
    image: Array,
    kernel_size: int | tuple[int, int] | None = None,
    sigma: float | tuple[float, float] | None = None,
    border: str = "reflect",
    backend: str | Backend = "auto",
) -> Array:
    """Blur `image` by a Gaussian, as OpenCV's `GaussianBlur`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result has its shape and dtype.
    kernel_size: an odd number of pixels, or (width, height); None derives it from sigma. sigma: the
    standard deviation in pixels, or (width, height); None derives it from the size, both as OpenCV.
    One of the two must not be None. For uint8, weights are rounded to multiples of 1/256, as OpenCV
    rounds them, and sums are exact: results are OpenCV's on every backend. Raises ShapeError for
    other arguments.
    """
    of_bytes = as_image("gaussian_blur", image).dtype == np.uint8
    return Gaussian.from_arguments(of_bytes, kernel_size, sigma, border)(image, backend)[0]


def box(
    image: Array,
    kernel_size: int | tuple[int, int] = 3,
    border: str = "reflect",
    backend: str | Backend = "auto",
) -> Array:
    """Return the box means of `image`, as OpenCV's `blur` and scipy's `uniform_filter`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result has its shape and dtype,
    for uint8 rounded to the nearest, halves up. kernel_size: in pixels, or (width, height); the
    result of a box of even size is at the first pixel after its middle. Raises ShapeError for other
    arguments.
    """
    of_bytes = as_image("box", image).dtype == np.uint8
    return Box.from_arguments(of_bytes, kernel_size, border)(image, backend)[0]


def scharr(
    image: Array, border: str = "reflect", backend: str | Backend = "auto"
) -> tuple[Array, Array]:
    """Return the derivatives (dx, dy) of `image` by Scharr's kernel, as OpenCV's `Scharr`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; both results are float32 of its
    shape. dx is the right neighbours minus the left ones, with the weights 3, 10, 3 down a column;
    dy is the lower minus the upper ones: for uint8, integers from -4080 to 4080. Raises ShapeError
    for other arguments.
    """
    dx, dy = Scharr(check_border("scharr", border))(image, backend)
    return dx, dy


def laplacian(
    image: Array,
    kernel_size: int = 1,
    border: str = "reflect",
    backend: str | Backend = "auto",
) -> Array:
    """Return the Laplacian of `image`, as OpenCV's `Laplacian` and scipy's `laplace` (size 1).

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result is float32 of its shape.
    kernel_size: 1, the four neighbours minus four times the pixel; or 3, twice the four diagonal
    neighbours minus eight times the pixel. Raises ShapeError for other arguments.
    """
    is_integer = isinstance(kernel_size, (int, np.integer)) and not isinstance(kernel_size, bool)
    if not is_integer or kernel_size not in SMOOTHING:
        raise ShapeError(f"laplacian: kernel_size must be 1 or 3, got {shown(kernel_size)}")
    return Laplacian(int(kernel_size), check_border("laplacian", border))(image, backend)[0]


def gaussian_kernel(size: int, sigma: float | None) -> Array:
    """Return the weights of a Gaussian over `size` pixels, float64, whose sum is 1.

    sigma: the standard deviation in pixels; None for OpenCV's for the size.
    """
    if sigma is None:
        if size in OPENCV_KERNELS:
            return np.array(OPENCV_KERNELS[size])
        sigma = 0.15 * size + 0.35
    distance = np.arange(size) - (size - 1) / 2
    with np.errstate(over="ignore"):  # a weight is 0 where the square overflows
        weights: Array = np.exp(-0.5 * (distance / sigma) ** 2)
    return np.asarray(weights / weights.sum())


def round_weights(weights: Array) -> Array:
    """Round an odd number of `weights` to multiples of 1 / WEIGHT_UNITS that still add up to 1.

    As OpenCV's for images of bytes: from the ends to the middle, each weight's rounding error is
    added to the next weight, and the middle one makes up the sum.
    """
    middle = len(weights) // 2
    rounded, error = np.zeros(len(weights)), 0.0
    for i in range(middle):
        exact = weights[i] * WEIGHT_UNITS + error
        rounded[i] = rounded[-1 - i] = np.rint(exact)
        error = exact - rounded[i]
    rounded[middle] = WEIGHT_UNITS - rounded.sum()
    return np.asarray(rounded / WEIGHT_UNITS)


def gaussian_parameters(
    kernel_size: object, sigma: object, of_bytes: bool
) -> tuple[tuple[int, float | None], tuple[int, float | None]]:
    """Return the size and sigma of the kernels along rows and along columns.

    Without a size it is 3 sigma to each side for bytes, else 4 sigma, as OpenCV's. Raises
    ShapeError where both are None, or one does not fit.
    """
    sigmas = _sigmas(sigma)
    if kernel_size is not None:
        sizes = check_sizes("gaussian_blur", "kernel_size", kernel_size, odd=True)
        return (sizes[0], sigmas[0]), (sizes[1], sigmas[1])
    if sigmas[0] is None or sigmas[1] is None:
        raise ShapeError("gaussian_blur: kernel_size or sigma must be given, got neither")
    reach = 3 if of_bytes else 4
    derived = tuple(int(np.rint(2 * reach * s + 1)) | 1 for s in sigmas if s is not None)
    across, down = check_sizes("gaussian_blur", "kernel_size, by sigma,", derived, odd=True)
    return (across, sigmas[0]), (down, sigmas[1])


def _sigmas(sigma: object) -> tuple[float | None, float | None]:
    if sigma is None:
        return None, None
    result = tuple(sigma) if isinstance(sigma, (tuple, list)) else (sigma, sigma)
    if len(result) != 2 or not all(is_number(s) and s > 0 for s in result):
        raise ShapeError(
            "gaussian_blur: sigma must be one or two numbers above 0, that of the width first, "
            f"got {shown(sigma)}"
        )
    return float(result[0]), float(result[1])


WEIGHTED: dict[str, Callable[[int, int], Taps]] = {"linear": linear, "cubic": cubic, "area": area}
INTERPOLATIONS = ("nearest", *WEIGHTED)
MAX_SIDE = 1 << 20
"""The greatest width and height, in pixels."""


@dataclass(frozen=True)
class Resize(Filter):
    """Resizing to `width` x `height` pixels."""

    name: ClassVar[str] = "resize"
    width: int
    height: int
    interpolation: str
    """A name of INTERPOLATIONS."""

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape = x.type.shape
        sizes = dict(zip(axes(shape), (self.width, self.height), strict=True))
        if self.interpolation == "nearest":
            return (
                gather_axes(sketch.add, x, {a: nearest(shape[a], n) for a, n in sizes.items()}),
            )
        y = sketch.floats(x)
        for axis, count in sizes.items():
            y = apply_taps(sketch, y, axis, WEIGHTED[self.interpolation](shape[axis], count))
        return (sketch.convert_like(x, y),)


def resize(
    image: Array,
    size: int | tuple[int, int],
    interpolation: str = "linear",
    backend: str | Backend = "auto",
) -> Array:
    """Resize `image`, as OpenCV's `resize`.

    image: uint8 or float32, H x W, H x W x C or N x H x W x C; the result has its dtype, for uint8
    rounded to the nearest and saturated. size: (width, height) in pixels, or one for both.
    interpolation: "nearest"; "linear" or "cubic" between the centres of pixels, without
    anti-aliasing, as in OpenCV and PyTorch; or "area", the mean of the area that a pixel covers, to
    shrink images. Raises ShapeError for other arguments.
    """
    width, height = check_sizes("resize", "size", size, most=MAX_SIDE)
    if not isinstance(interpolation, str) or interpolation not in INTERPOLATIONS:
        expected = f"one of {INTERPOLATIONS}"
        raise ShapeError(f"resize: interpolation must be {expected}, got {shown(interpolation)}")
    return Resize(width, height, interpolation)(image, backend)[0]


LUMA = (0.299, 0.587, 0.114)
"""The weights of red, green and blue: ITU-R BT.601."""
LUMA_OF_BYTES = (9798 / 32768, 19235 / 32768, 3735 / 32768)
"""LUMA as OpenCV rounds it, so that sums of bytes are exact."""


@dataclass(frozen=True)
class Grey(Filter):
    """A weighted sum of three channels."""

    name: ClassVar[str] = "grey"

    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        shape = x.type.shape
        if len(shape) < 3 or shape[-1] not in (3, 4):
            raise ShapeError(
                f"grey: image must be H x W x 3 or 4, or a batch of such, got shape {shape}"
            )
        luma = LUMA_OF_BYTES if x.type.dtype is DType.uint8 else LUMA
        taps = np.arange(3, dtype=np.int32)[:, None], np.array(luma, np.float32)[:, None]
        axis = len(shape) - 1
        sums = sketch.add(Squeeze((axis,)), apply_taps(sketch, sketch.floats(x), axis, taps))
        return (sketch.convert_like(x, sums, HALF_UP),)

    def split_axis(self, shape: Shape) -> int | None:
        """Return the axis of images or rows: a result reads all channels of a pixel."""
        axis = 0 if len(shape) == 3 or shape[0] > 1 else 1
        return axis if shape[axis] > 1 else None


def grey(image: Array, backend: str | Backend = "auto") -> Array:
    """Return the grey values of an RGB or RGBA image: 0.299 R + 0.587 G + 0.114 B.

    image: uint8 or float32, H x W x C or N x H x W x C with C 3 or 4; the result has its dtype, and
    its shape without the last dimension. Alpha is ignored. Equal to OpenCV's `cvtColor` with
    `COLOR_RGB2GRAY`, exactly for uint8. Raises ShapeError for another image.
    """
    return Grey()(image, backend)[0]

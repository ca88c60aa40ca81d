"""Images looked up at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.expression import Arg, formula
from glnn.graph.graph import Value
from glnn.graph.operators import GatherND, Reduce, Transpose
from glnn.onnx.operators.call import Call, Converter
from glnn.symint import holds_symbols
from glnn.types import MOST, Array, DType, Shape

MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
}
OUTSIDE = ("zeros", "border", "reflection")
# Of x mirrored at b and again at b + c, until it lies between them.
MIRRORED = formula("b + c - abs(c - remainder(abs(a - b), 2.0 * c))")
INSIDE = formula("where(a < 0.0, 0.0, where(a > b, 0.0, c))")
# Of distances; the cubic is that of Keys 1981 with the coefficient -0.75.
LINEAR = formula("maximum(1.0 - a, 0.0)")
NEAR = "(1.25 * a - 2.25) * a * a + 1.0"
FAR = "((-0.75 * a + 3.75) * a - 6.0) * a + 3.0"
CUBIC = formula(f"where(a <= 1.0, {NEAR}, where(a < 2.0, {FAR}, 0.0))")
WEIGHTED = "where(equal(b, 0.0), 0.0, a * b)"  # what is outside may not be finite


def _grid_sample(call: Call, x: Value, grid: Value) -> Value:
    """Sample x (n, c, ...) at the coordinates of grid (n, ..., d), the last of which is for
    axis 2.
    """
    mode = call.get("mode", "bilinear" if call.version < 20 else "linear")
    outside = call.get("padding_mode", "zeros")
    if mode not in MODES or outside not in OUTSIDE:
        raise ShapeError(f"GridSample: mode {mode!r}, padding_mode {outside!r}")
    n, c, *sizes = x.type.shape
    _, *wanted, depth = grid.type.shape
    if len(wanted) != len(sizes) or depth != len(sizes) or grid.type.shape[0] != n:
        raise ShapeError(f"GridSample: the grid {grid.type} does not fit {x.type}")
    if x.type.dtype.kind != "float" and MODES[mode] != "nearest":
        raise UnsupportedOpError(f"GridSample: {mode} of {x.type.dtype.value}")
    if not prod(x.type.shape) or not prod(wanted):
        raise UnsupportedOpError(f"GridSample: of nothing, {x.type} and {grid.type}")
    at = _Places(call, tuple(sizes), outside, bool(call.get("align_corners", 0)))
    index, weights = at.taps(call.reshape(grid, (n, 1, prod(wanted), depth)), MODES[mode])
    rows = call(Transpose((0, 2, 1)), call.reshape(x, (n, c, prod(sizes))))
    taps = index.type.shape[1]
    each = call.reshape(index, (n, taps * prod(wanted), 1))
    found = call.reshape(call(GatherND(1), rows, each), (n, taps, prod(wanted), c))
    y = _weighted_sum(call, found, weights)
    return call.reshape(call(Transpose((0, 2, 1)), y), (n, c, *wanted))


def _weighted_sum(call: Call, samples: Value, weights: Value | None) -> Value:
    """Return the sum of samples (n, taps, places, c) times weights (n, taps, places).

    Bool weights are a mask of one tap.
    """
    n, taps, places, c = samples.type.shape
    if weights is None:
        return call.reshape(samples, (n, places, c))
    spread = call.reshape(weights, (n, taps, places, 1))
    if weights.type.dtype is not DType.bool:
        return call(Reduce("sum", (1,), prologue=formula(WEIGHTED)), samples, spread)
    zero = call.cast(call.constant(0, np.int32), samples.type.dtype)
    kept = call.pointwise("where(a, b, c)", spread, samples, zero)
    return call.reshape(kept, (n, places, c))


class _Places:
    """Places of a grid among those of an image. The grid's last axis is backwards, as ONNX's."""

    def __init__(self, call: Call, sizes: Shape, outside: str, corners: bool) -> None:
        self._call, self._sizes, self._outside, self._corners = call, sizes, outside, corners
        self._most = [size - 1 for size in sizes[::-1]]
        self._low = np.full(len(sizes), 0.0 if corners else -0.5, np.float32)
        whole = self._most if corners else sizes[::-1]  # in which places are mirrored
        self._span = [size if size > 0 else 1 for size in whole]

    def taps(self, grid: Value, mode: str) -> tuple[Value, Value | None]:
        """Return the image rows, int32, that each place is interpolated from, and their weights.

        grid: (n, 1, places, d). Results: (n, taps, places); no weights where all are 1,
        of the nearest places whether they are inside.
        """
        call = self._call
        at = self._to_pixels(grid)
        if mode == "nearest":
            whole = at = self._reflect_outside(call.pointwise("round(a)", at))
        else:
            at = self._reflect_outside(at)
            reach = range(2) if mode == "linear" else range(-1, 3)
            offsets = np.array(list(product(reach, repeat=len(self._sizes))), np.float32)
            whole = call.pointwise("floor(a) + b", at, call.constant(offsets[:, None, :]))
        weights = self._weights(whole, at, mode)
        strides = [prod(self._sizes[::-1][:i]) for i in range(len(self._sizes))]
        inside = self._mirror(whole) if self._outside == "reflection" else whole
        row = formula("cast_int32(clip(a, 0.0, b)) * c")
        operands = inside, self._float(self._most), call.constant(strides, np.int32)
        return call(Reduce("sum", (3,), prologue=row), *operands), weights

    def _to_pixels(self, grid: Value) -> Value:
        """Return coordinates from -1 to 1 as coordinates of pixels."""
        whole = self._most if self._corners else self._sizes[::-1]
        low = self._call.constant(self._low)
        if holds_symbols(whole):
            return self._call.pointwise("(a + 1.0) * (0.5 * b) + c", grid, self._float(whole), low)
        step = self._call.constant(np.array(whole, np.float32) / 2)
        return self._call.pointwise("(a + 1.0) * b + c", grid, step, low)

    def _float(self, sizes: Sequence[int]) -> Value:
        """A constant of sizes, open ones among them, as float32."""
        return self._call.constant(sizes, np.float32)

    def _reflect_outside(self, at: Value) -> Value:
        """Return coordinates reflected into the image where the padding mode is reflection."""
        return self._mirror(at) if self._outside == "reflection" else at

    def _mirror(self, at: Value) -> Value:
        low, span = self._call.constant(self._low), self._float(self._span)
        return self._call.pointwise(MIRRORED, at, low, span)

    def _weights(self, whole: Value, at: Value, mode: str) -> Value | None:
        """Return the weights (n, taps, places) of pixels `whole` for the coordinates `at`."""
        if mode == "nearest" and self._outside != "zeros":
            return None
        most = self._float(self._most)
        if mode == "nearest":
            inside = formula("logical_and(a >= 0.0, a <= b)")
            return self._call(Reduce("min", (3,), prologue=inside), whole, most)
        distance = formula("abs(a - b)")
        weight = (LINEAR if mode == "linear" else CUBIC)(distance)
        if self._outside != "zeros":
            return self._call(Reduce("prod", (3,), prologue=weight), whole, at)
        weight = INSIDE(Arg(0), Arg(2), weight)
        return self._call(Reduce("prod", (3,), prologue=weight), whole, at, most)


def _affine_grid(call: Call, theta: Value, size: Value) -> Value:
    """The places of a grid of `size` (n, c, ...) under the maps theta (n, d, d + 1)."""
    n, _, *sizes = call.integers(size, "size")
    depth = len(sizes)
    if theta.type.dims != (n, depth, depth + 1):
        raise ShapeError(f"AffineGrid: theta {theta.type} does not fit the size {(n, _, *sizes)}")
    if min(sizes, default=0) < 0 or n * prod(sizes) * depth > MOST:
        raise ShapeError(
            f"{call.name}: a grid of size {(n, _, *sizes)} has more than {MOST} numbers"
        )
    call.check_tables(prod(sizes) * (depth + 1), DType.float32.numpy.itemsize)
    corners = bool(call.get("align_corners", 0))
    lines = [_grid_line(count, corners).astype(np.float32) for count in sizes]
    at = np.meshgrid(*lines, indexing="ij", copy=False)
    ones = np.broadcast_to(np.float32(1), sizes)
    whole = np.stack([*at[::-1], ones], -1).reshape(1, -1, depth + 1)
    grid = matmul(call, call.constant(whole), theta, transposed=True)
    return call.reshape(grid, (n, *sizes, depth))


def _grid_line(count: int, corners: bool) -> Array:
    """Return `count` coordinates from -1 to 1, which are those of the first and last pixel, or the
    edges.
    """
    if corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
    return np.asarray((np.arange(count) * 2 + 1) / max(count, 1) - 1)


ENTRIES = (
    Converter("GridSample", 16, _grid_sample),
    Converter("AffineGrid", 20, _affine_grid, shape_inputs=(1,)),
)

"""Interpolation between a tensor's elements: Resize, Upsample, and sampling on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import floor, prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.array_functions import inside_table, nearest_table, taps_table
from glnn.core.cached_property import cached_property
from glnn.core.resampling import (
    CENTRES,
    MODES,
    ROUNDING,
    AxisResampling,
    InterpolationFilter,
    nearest_positions,
)
from glnn.core.symint import SymInt, greatest, hint, holds_symbols, same
from glnn.core.types import MOST, Array, DType, Shape, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.resample import gather_axes, repeat, weighted_sum
from glnn.graph.expression import Arg, formula
from glnn.graph.graph import Value
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators import Gather, GatherND, Identity, Reduce, Resample, Slice, Transpose
from glnn.graph.operators.host import ConstantTable, HostOperator
from glnn.onnx.operators.call import Converter, OperatorCall

F64 = np.float64


@dataclass(frozen=True)
class WideResample(HostOperator):
    """Resampling of float64 x along an axis, as weighted sums."""

    resized: AxisResampling
    mode: str
    """The coordinate transformation mode."""
    filter: InterpolationFilter
    outside: float | None
    """The value of positions outside x; None to extrapolate by the filter."""

    name: ClassVar[str] = "wide_resample"

    @property
    def display_name(self) -> str:
        return "Resize"

    @property
    def reason(self) -> str:
        return f"{DType.float64.value} is the host's"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        (x,) = self.named(types).values()
        axis = self.resized.axis
        return (TensorType((*x.dims[:axis], self.resized.count, *x.dims[axis + 1 :]), x.dtype),)

    @cached_property
    def _taps(self) -> tuple[Array, Array]:
        axis = self.resized
        return self.filter.taps(axis.source_coordinates(self.mode, F64), axis.size, axis.scale, F64)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        axis = self.resized.axis
        rows = np.moveaxis(x, axis, -1)
        result = np.zeros((*rows.shape[:-1], self.resized.count), x.dtype)
        for index, weight in zip(*self._taps, strict=True):
            # Numbers of weight 0 contribute nothing, even infinities and NaN.
            result += np.where(weight == 0, 0, rows[..., index] * weight)
        if self.outside is not None:
            result = np.where(self.resized.inside(self.mode, F64), result, self.outside)
        return (np.moveaxis(result, -1, axis),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class ResizeTable(ConstantTable):
    """A table that follows from the sizes of a resampled axis."""

    resized: AxisResampling
    mode: str
    """The coordinate transformation mode."""

    @property
    def display_name(self) -> str:
        return "Resize"


@dataclass(frozen=True)
class NearestTable(ResizeTable):
    """The index of the nearest source element for each of the result, int32."""

    name: ClassVar[str] = "nearest_table"
    array_function: ClassVar[str] = "nearest_table"
    nearest: str
    """The rounding mode, `nearest_mode`."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType((self.resized.count,), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (nearest_table(*self.array_attributes),)


@dataclass(frozen=True)
class TapsTable(ResizeTable):
    """Indices, int32, and weights, float32, of the taps of each result: (taps, results)."""

    name: ClassVar[str] = "taps_table"
    array_function: ClassVar[str] = "taps_table"
    filter: InterpolationFilter

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        shape = self.resized.reach(self.filter), self.resized.count
        return TensorType(shape, DType.int32), TensorType(shape, DType.float32)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        result: tuple[Array, ...] = taps_table(*self.array_attributes)
        return result


@dataclass(frozen=True)
class InsideTable(ResizeTable):
    """Mask, of `shape`, of the positions inside the cropped tensor."""

    name: ClassVar[str] = "inside_table"
    array_function: ClassVar[str] = "inside_table"
    shape: Shape

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.shape, DType.bool),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (inside_table(*self.array_attributes),)


# Bytes for each element of an axis (nearest), or each of its taps: of tables and temporary arrays.
NEAREST, TAP = 32, 64
MOST_TRIED = 1 << 16  # the greatest open size whose cases are all verified


def _resize(
    call: OperatorCall,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> Value:
    """Convert Resize. Version 10 has no roi, no coordinate modes, and rounds down."""
    if call.version < 11:
        if roi is None:
            raise ShapeError("Resize: scales are missing")
        resized = _axes_by_scale(x, tuple(range(len(x.type.dims))), _floats(call, roi))
        return _resample_axes(call, x, resized, "asymmetric", "floor")
    axes = [call.axis(axis, x) for axis in call.get("axes", tuple(range(len(x.type.dims))))]
    if scales is not None and scales.type.dims != (0,):
        resized = _axes_by_scale(x, axes, _floats(call, scales))
    elif sizes is not None:
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        resized = _axes_by_size(x, axes, call.integers(sizes, "sizes"), policy)
    else:
        raise ShapeError("Resize: it has either scales or sizes")
    mode = call.get("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES:
        raise ShapeError(f"Resize: coordinate_transformation_mode {mode!r} is not known")
    if mode == "tf_crop_and_resize" and roi is not None:
        if len(ends := _floats(call, roi)) != 2 * len(axes):
            raise ShapeError(f"Resize: roi must have two numbers for each of {len(axes)} axes")
        pairs = zip(resized, ends[: len(axes)], ends[len(axes) :], strict=True)
        resized = [replace(one, roi=(a, b)) for one, a, b in pairs]
    return _resample_axes(call, x, resized, mode, call.get("nearest_mode", "round_prefer_floor"))


def _upsample(call: OperatorCall, x: Value, scales: Value | None = None) -> Value:
    if scales is not None:
        factors = _floats(call, scales)
    elif call.version < 7:
        factors = (1.0, 1.0, call.need("height_scale"), call.need("width_scale"))
    else:
        factors = tuple(call.need("scales"))
    resized = _axes_by_scale(x, tuple(range(len(x.type.dims))), factors)
    return _resample_axes(call, x, resized, "asymmetric", "floor")


def _floats(call: OperatorCall, value: Value) -> tuple[float, ...]:
    return tuple(float(n) for n in call.array(value).ravel())


def _axes_by_scale(x: Value, axes: Sequence[int], scales: Sequence[float]) -> list[AxisResampling]:
    if len(axes) != len(scales) or not all(0 < scale < float("inf") for scale in scales):
        raise ShapeError(f"Resize: a positive scale for each of {len(axes)} axes, got {scales}")
    result = []
    for axis, scale in zip(axes, scales, strict=True):
        size = x.type.shape[axis]
        result.append(AxisResampling(axis, size, _scale_size(size, scale), scale))
    return result


def _scale_size(size: int, scale: float) -> int:
    """Return `size` times `scale` in float32, rounded down.

    For an open size as an integer expression, where it is equal for all sizes of the range.
    """

    def times(sizes: Any) -> Any:
        return np.floor(np.asarray(sizes, np.float32) * np.float32(scale))

    if isinstance(size, SymInt) and (most := greatest(size)) <= MOST_TRIED:
        up, down = Fraction(float(np.float32(scale))).limit_denominator(100).as_integer_ratio()
        sizes = np.arange(most + 1)
        if (times(sizes) == sizes * up // down).all():
            return size * up // down
    return int(times(int(size)))


def _axes_by_size(
    x: Value, axes: Sequence[int], sizes: Sequence[int], policy: str
) -> list[AxisResampling]:
    if len(axes) != len(sizes) or any(size < 0 for size in sizes):
        raise ShapeError(f"Resize: a size for each of {len(axes)} axes, got {tuple(sizes)}")
    x_sizes = [x.type.shape[axis] for axis in axes]
    pairs = tuple(zip(sizes, x_sizes, strict=True))
    if any(size == 0 and (count != 0 or policy != "stretch") for count, size in pairs):
        raise ShapeError(f"Resize: {x.type} has no places")
    if policy == "stretch":
        return [AxisResampling(*one) for one in zip(axes, x_sizes, sizes, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ShapeError(f"Resize: keep_aspect_ratio_policy {policy!r} is not known")
    scales = [count / size for count, size in pairs]
    scale = min(scales) if policy == "not_larger" else max(scales)
    sizes = [floor(scale * size + 0.5) for size in x_sizes]
    return [AxisResampling(*one, scale) for one in zip(axes, x_sizes, sizes, strict=True)]


def _resample_axes(
    call: OperatorCall, x: Value, resized: Sequence[AxisResampling], mode: str, nearest: str
) -> Value:
    """Return x resampled along each axis in turn."""
    resized = [one for one in resized if one.moves]
    if not resized:
        return call(Identity(), x)
    counts = {one.axis: one.count for one in resized}
    numbers = prod(counts.get(axis, size) for axis, size in enumerate(x.type.shape))
    if numbers > MOST or any(count > MOST for count in counts.values()):
        raise ShapeError(f"{call.name}: {x.type} to more than {MOST} numbers")
    kind = call.get("mode", "nearest")
    if kind == "nearest":
        if nearest not in ROUNDING:
            raise ShapeError(
                f"Resize: nearest_mode must be one of {', '.join(ROUNDING)}, got {nearest!r}"
            )
        call.check_tables(sum(map(hint, counts.values())), NEAREST)
        return _fill_outside(call, _nearest(call, x, resized, mode, nearest), resized, mode)
    if kind not in ("linear", "bilinear", "cubic"):
        raise ShapeError(f"{call.name}: mode {kind!r} is not known")
    filter = InterpolationFilter(
        kind != "cubic",
        call.get("cubic_coeff_a", -0.75),
        bool(call.get("antialias", 0)),
        bool(call.get("exclude_outside", 0)),
    )
    call.check_tables(sum(hint(one.count) * hint(one.reach(filter)) for one in resized), TAP)
    dtype = x.type.dtype
    if dtype is DType.float64:
        return _resample_float64(call, x, resized, mode, filter)
    if dtype not in (DType.float32, DType.float16, DType.uint8, DType.int8):
        raise UnsupportedOpError(f"{call.name}: {kind} of {dtype.value}")
    y = call.cast(x, DType.float32)
    for one in resized:
        if one.is_open:
            y = call(Resample(one.axis), y, *call.all(TapsTable(one, mode, filter)))
            continue
        taps = filter.taps(one.source_coordinates(mode), one.size, one.scale)
        y = weighted_sum(call, y, one.axis, *taps)
    y = _fill_outside(call, y, resized, mode)
    return y if dtype.kind == "float" else call.cast(call.pointwise("round(a)", y), dtype)


def _nearest(
    call: OperatorCall, x: Value, resized: Sequence[AxisResampling], mode: str, nearest: str
) -> Value:
    """Return x resampled by nearest neighbour along each axis."""
    fixed = [axis for axis in resized if not axis.is_open]
    x = gather_axes(
        call,
        x,
        {a.axis: nearest_positions(a.source_coordinates(mode), a.size, nearest) for a in fixed},
    )
    repeats = {}
    for axis in resized:
        if not axis.is_open:
            continue
        if (count := _repeat_count(axis, mode, nearest)) > 1:
            repeats[axis.axis] = count
        elif (step := _strided_slice(axis, mode, nearest)) is not None:
            x = call(step, x)
        else:
            x = call(Gather(axis.axis), x, call(NearestTable(axis, mode, nearest)))
    return repeat(call, x, repeats) if repeats else x


def _indices_of_largest(axis: AxisResampling, scale: float, mode: str, nearest: str) -> Array:
    """Return the indices for the greatest size of an open axis; empty where that exceeds
    MOST_TRIED.
    """
    size = greatest(axis.size)
    if size > MOST_TRIED:
        return np.empty(0, np.int32)
    largest = AxisResampling(axis.axis, size, floor(size * scale), scale)
    return nearest_positions(largest.source_coordinates(mode), size, nearest)


def _repeat_count(axis: AxisResampling, mode: str, nearest: str) -> int:
    """Return how often each index is repeated for all open sizes; 0 where that varies."""
    times: Any = axis.count // axis.size
    if isinstance(times, SymInt) or times < 2 or not same(times * axis.size, axis.count):
        return 0
    if axis.explicit_scale not in (None, times) or mode not in (*CENTRES, "asymmetric"):
        return 0
    index = _indices_of_largest(axis, times, mode, nearest)
    most = index.size // times
    return times if most and np.array_equal(index, np.repeat(np.arange(most), times)) else 0


def _strided_slice(axis: AxisResampling, mode: str, nearest: str) -> Slice | None:
    """Return the slice that selects the nearest elements for all open sizes; None without one."""
    if axis.explicit_scale is None or mode not in ("half_pixel", "asymmetric"):
        return None
    step = round(1 / axis.explicit_scale)
    index = _indices_of_largest(axis, axis.explicit_scale, mode, nearest)
    if axis.explicit_scale * step != 1.0 or index.size < 2 or not 0 <= index[0] < step:
        return None
    if (np.diff(index) != step).any():
        return None
    start = int(index[0])
    end = start + (axis.count - 1) * step + 1
    return Slice((start,), (end,), (axis.axis,), (step,))


def _resample_float64(
    call: OperatorCall,
    x: Value,
    resized: Sequence[AxisResampling],
    mode: str,
    filter: InterpolationFilter,
) -> Value:
    """Return x resampled along each axis in turn, in 64 bits by the host."""
    value = float(call.get("extrapolation_value", 0.0)) if mode == "tf_crop_and_resize" else None
    for one in resized:
        x = call(WideResample(one, mode, filter, value), x)
    return x


def _fill_outside(
    call: OperatorCall, y: Value, resized: Sequence[AxisResampling], mode: str
) -> Value:
    """Fill y outside the cropped x with `extrapolation_value`, in the mode that crops."""
    if mode != "tf_crop_and_resize":
        return y
    number = call.get("extrapolation_value", 0.0)
    value = float(number) if y.type.dtype.kind == "float" else int(number)
    for axis in resized:
        shape = axis.count, *(1,) * (len(y.type.dims) - 1 - axis.axis)
        if axis.is_open:
            y = call.pointwise("where(a, b, c)", call(InsideTable(axis, mode, shape)), y, value)
        elif not (inside := axis.inside(mode)).all():
            spread = call.constant(inside.reshape(shape))
            y = call.pointwise("where(a, b, c)", spread, y, value)
    return y


GRID_MODES = {
    "nearest": "nearest",
    "linear": "linear",
    "bilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
}
OUTSIDE = ("zeros", "border", "reflection")
# Coordinate a reflected at b and b + c until it lies between them.
MIRRORED = formula("b + c - abs(c - remainder(abs(a - b), 2.0 * c))")
INSIDE = formula("where(a < 0.0, 0.0, where(a > b, 0.0, c))")
# Weights by distance a; the cubic is that of Keys 1981 with the coefficient -0.75.
LINEAR = formula("maximum(1.0 - a, 0.0)")
NEAR = "(1.25 * a - 2.25) * a * a + 1.0"
FAR = "((-0.75 * a + 3.75) * a - 6.0) * a + 3.0"
CUBIC = formula(f"where(a <= 1.0, {NEAR}, where(a < 2.0, {FAR}, 0.0))")
WEIGHTED = "where(equal(b, 0.0), 0.0, a * b)"  # samples of weight 0 may not be finite


def grid_sample(call: OperatorCall, x: Value, grid: Value) -> Value:
    """Sample x (n, c, ...) at the coordinates of grid (n, ..., d), the last for axis 2."""
    mode = call.get("mode", "bilinear" if call.version < 20 else "linear")
    outside = call.get("padding_mode", "zeros")
    if mode not in GRID_MODES or outside not in OUTSIDE:
        raise ShapeError(f"GridSample: mode {mode!r}, padding_mode {outside!r}")
    n, c, *sizes = x.type.shape
    _, *grid_sizes, depth = grid.type.shape
    if len(grid_sizes) != len(sizes) or depth != len(sizes) or grid.type.shape[0] != n:
        raise ShapeError(f"GridSample: the grid {grid.type} does not fit {x.type}")
    if x.type.dtype.kind != "float" and GRID_MODES[mode] != "nearest":
        raise UnsupportedOpError(f"GridSample: {mode} of {x.type.dtype.value}")
    if not prod(x.type.shape) or not prod(grid_sizes):
        raise UnsupportedOpError(f"GridSample: of nothing, {x.type} and {grid.type}")
    sampler = _SampleGrid(call, tuple(sizes), outside, bool(call.get("align_corners", 0)))
    index, weights = sampler.taps(
        call.reshape(grid, (n, 1, prod(grid_sizes), depth)), GRID_MODES[mode]
    )
    rows = call(Transpose((0, 2, 1)), call.reshape(x, (n, c, prod(sizes))))
    taps = index.type.shape[1]
    flat_index = call.reshape(index, (n, taps * prod(grid_sizes), 1))
    samples = call.reshape(call(GatherND(1), rows, flat_index), (n, taps, prod(grid_sizes), c))
    y = _weighted_sum(call, samples, weights)
    return call.reshape(call(Transpose((0, 2, 1)), y), (n, c, *grid_sizes))


def _weighted_sum(call: OperatorCall, samples: Value, weights: Value | None) -> Value:
    """Return the sum of samples (n, taps, points, c) times weights (n, taps, points).

    Bool weights are a mask of one tap.
    """
    n, taps, points, c = samples.type.shape
    if weights is None:
        return call.reshape(samples, (n, points, c))
    factors = call.reshape(weights, (n, taps, points, 1))
    if weights.type.dtype is not DType.bool:
        return call(Reduce("sum", (1,), prologue=formula(WEIGHTED)), samples, factors)
    zero = call.cast(call.constant(0, np.int32), samples.type.dtype)
    masked = call.pointwise("where(a, b, c)", factors, samples, zero)
    return call.reshape(masked, (n, points, c))


class _SampleGrid:
    """Converts points of a grid to pixels and weights. Coordinates are in ONNX's order, x first."""

    def __init__(self, call: OperatorCall, sizes: Shape, outside: str, corners: bool) -> None:
        self._call, self._sizes, self._outside, self._corners = call, sizes, outside, corners
        self._last_pixels = [size - 1 for size in sizes[::-1]]
        self._low = np.full(len(sizes), 0.0 if corners else -0.5, np.float32)
        extents = self._last_pixels if corners else sizes[::-1]  # between the points of reflection
        self._span = [size if size > 0 else 1 for size in extents]

    def taps(self, grid: Value, mode: str) -> tuple[Value, Value | None]:
        """Return flat pixel indices, int32, and weights of the taps of each point.

        grid: (n, 1, points, d). Results: (n, taps, points). For "nearest", weights are a mask of
        points inside the image, None where padding needs no mask.
        """
        call = self._call
        coordinates = self._to_pixels(grid)
        if mode == "nearest":
            pixels = coordinates = self._reflect_outside(call.pointwise("round(a)", coordinates))
        else:
            coordinates = self._reflect_outside(coordinates)
            reach = range(2) if mode == "linear" else range(-1, 3)
            offsets = np.array(list(product(reach, repeat=len(self._sizes))), np.float32)
            pixels = call.pointwise("floor(a) + b", coordinates, call.constant(offsets[:, None, :]))
        weights = self._weights(pixels, coordinates, mode)
        strides = [prod(self._sizes[::-1][:i]) for i in range(len(self._sizes))]
        reflected = self._mirror(pixels) if self._outside == "reflection" else pixels
        row = formula("cast_int32(clip(a, 0.0, b)) * c")
        operands = reflected, self._float(self._last_pixels), call.constant(strides, np.int32)
        return call(Reduce("sum", (3,), prologue=row), *operands), weights

    def _to_pixels(self, grid: Value) -> Value:
        """Return coordinates from -1 to 1 as coordinates of pixels."""
        extent = self._last_pixels if self._corners else self._sizes[::-1]
        low = self._call.constant(self._low)
        if holds_symbols(extent):
            return self._call.pointwise("(a + 1.0) * (0.5 * b) + c", grid, self._float(extent), low)
        step = self._call.constant(np.array(extent, np.float32) / 2)
        return self._call.pointwise("(a + 1.0) * b + c", grid, step, low)

    def _float(self, sizes: Sequence[int]) -> Value:
        """Return a float32 constant of sizes, which may be open."""
        return self._call.constant(sizes, np.float32)

    def _reflect_outside(self, coordinates: Value) -> Value:
        """Return coordinates reflected into the image where the padding mode is reflection."""
        return self._mirror(coordinates) if self._outside == "reflection" else coordinates

    def _mirror(self, coordinates: Value) -> Value:
        low, span = self._call.constant(self._low), self._float(self._span)
        return self._call.pointwise(MIRRORED, coordinates, low, span)

    def _weights(self, pixels: Value, coordinates: Value, mode: str) -> Value | None:
        """Return the weights (n, taps, points) of `pixels` for `coordinates`."""
        if mode == "nearest" and self._outside != "zeros":
            return None
        last_pixels = self._float(self._last_pixels)
        if mode == "nearest":
            inside = formula("logical_and(a >= 0.0, a <= b)")
            return self._call(Reduce("min", (3,), prologue=inside), pixels, last_pixels)
        distance = formula("abs(a - b)")
        weight = (LINEAR if mode == "linear" else CUBIC)(distance)
        if self._outside != "zeros":
            return self._call(Reduce("prod", (3,), prologue=weight), pixels, coordinates)
        weight = INSIDE(Arg(0), Arg(2), weight)
        return self._call(Reduce("prod", (3,), prologue=weight), pixels, coordinates, last_pixels)


def _affine_grid(call: OperatorCall, theta: Value, size: Value) -> Value:
    """Return the grid for `size` (n, c, ...) transformed by theta (n, d, d + 1)."""
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
    axes = np.meshgrid(*lines, indexing="ij", copy=False)
    ones = np.broadcast_to(np.float32(1), sizes)
    points = np.stack([*axes[::-1], ones], -1).reshape(1, -1, depth + 1)
    grid = matmul(call, call.constant(points), theta, transposed=True)
    return call.reshape(grid, (n, *sizes, depth))


def _grid_line(count: int, corners: bool) -> Array:
    """Return `count` coordinates of pixels. -1 and 1 are the first and last pixel if `corners`,
    else the edges.
    """
    if corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(count)
    return np.asarray((np.arange(count) * 2 + 1) / max(count, 1) - 1)


ENTRIES = (
    Converter("Upsample", 1, _upsample, shape_inputs=(1,)),
    Converter("Resize", 10, _resize, shape_inputs=(1, 2, 3)),
    Converter("GridSample", 16, grid_sample),
    Converter("AffineGrid", 20, _affine_grid, shape_inputs=(1,)),
)

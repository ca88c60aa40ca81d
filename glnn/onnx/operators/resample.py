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
    """Weighted sums of x's numbers along an axis, float64."""

    resized: AxisResampling
    mode: str
    """The coordinate transformation mode."""
    filter: InterpolationFilter
    outside: float | None
    """The number of places that lie outside of x; None where the filter makes them, too."""

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
        one = self.resized
        return self.filter.taps(one.source_coordinates(self.mode, F64), one.size, one.scale, F64)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        axis = self.resized.axis
        rows = np.moveaxis(x, axis, -1)
        result = np.zeros((*rows.shape[:-1], self.resized.count), x.dtype)
        for index, weight in zip(*self._taps, strict=True):
            # A number without a weight says nothing, not even where it is infinite.
            result += np.where(weight == 0, 0, rows[..., index] * weight)
        if self.outside is not None:
            result = np.where(self.resized.inside(self.mode, F64), result, self.outside)
        return (np.moveaxis(result, -1, axis),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class ResizeTable(ConstantTable):
    """Numbers of which an axis of another size is made."""

    resized: AxisResampling
    mode: str
    """The coordinate transformation mode."""

    @property
    def display_name(self) -> str:
        return "Resize"


@dataclass(frozen=True)
class NearestTable(ResizeTable):
    """The index of the place that is nearest to each wanted, int32."""

    name: ClassVar[str] = "nearest_table"
    array_function: ClassVar[str] = "nearest_table"
    nearest: str
    """The mode by which halves are rounded."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType((self.resized.count,), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (nearest_table(*self.array_attributes),)


@dataclass(frozen=True)
class TapsTable(ResizeTable):
    """Indices, int32, and weights, float32, of what each place is made of: (taps, places)."""

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
    """Mask, in a shape, of the positions that lie within the cropped tensor."""

    name: ClassVar[str] = "inside_table"
    array_function: ClassVar[str] = "inside_table"
    shape: Shape

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (TensorType(self.shape, DType.bool),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (inside_table(*self.array_attributes),)


# Bytes for each place of an axis, and for each number that it is made of: of the tables and of
# the temporary arrays by which they are computed.
NEAREST, TAP = 32, 64
MOST_TRIED = 1 << 16  # places for which is tried what holds for all of them


def _resize(
    call: OperatorCall,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> Value:
    """Version 10 has no roi, no modes of coordinates, and rounds down. Without a roi all of x is
    resized.
    """
    if call.version < 11:
        if roi is None:
            raise ShapeError("Resize: scales are missing")
        lengthened = _axes_by_scale(x, tuple(range(len(x.type.dims))), _floats(call, roi))
        return _resample_axes(call, x, lengthened, "asymmetric", "floor")
    axes = [call.axis(axis, x) for axis in call.get("axes", tuple(range(len(x.type.dims))))]
    if scales is not None and scales.type.dims != (0,):
        along = _axes_by_scale(x, axes, _floats(call, scales))
    elif sizes is not None:
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        along = _axes_by_size(x, axes, call.integers(sizes, "sizes"), policy)
    else:
        raise ShapeError("Resize: it has either scales or sizes")
    mode = call.get("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES:
        raise ShapeError(f"Resize: coordinate_transformation_mode {mode!r} is not known")
    if mode == "tf_crop_and_resize" and roi is not None:
        if len(ends := _floats(call, roi)) != 2 * len(axes):
            raise ShapeError(f"Resize: roi must have two numbers for each of {len(axes)} axes")
        pairs = zip(along, ends[: len(axes)], ends[len(axes) :], strict=True)
        along = [replace(one, roi=(a, b)) for one, a, b in pairs]
    return _resample_axes(call, x, along, mode, call.get("nearest_mode", "round_prefer_floor"))


def _upsample(call: OperatorCall, x: Value, scales: Value | None = None) -> Value:
    if scales is not None:
        factors = _floats(call, scales)
    elif call.version < 7:
        factors = (1.0, 1.0, call.need("height_scale"), call.need("width_scale"))
    else:
        factors = tuple(call.need("scales"))
    along = _axes_by_scale(x, tuple(range(len(x.type.dims))), factors)
    return _resample_axes(call, x, along, "asymmetric", "floor")


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

    For an open size by whole numbers, where these give the same for all that it may be.
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
    there = [x.type.shape[axis] for axis in axes]
    pairs = tuple(zip(sizes, there, strict=True))
    if any(size == 0 and (count != 0 or policy != "stretch") for count, size in pairs):
        raise ShapeError(f"Resize: {x.type} has no places")
    if policy == "stretch":
        return [AxisResampling(*one) for one in zip(axes, there, sizes, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ShapeError(f"Resize: keep_aspect_ratio_policy {policy!r} is not known")
    scales = [count / size for count, size in pairs]
    scale = min(scales) if policy == "not_larger" else max(scales)
    sizes = [floor(scale * size + 0.5) for size in there]
    return [AxisResampling(*one, scale) for one in zip(axes, there, sizes, strict=True)]


def _resample_axes(
    call: OperatorCall, x: Value, along: Sequence[AxisResampling], mode: str, nearest: str
) -> Value:
    """Return x resampled along one axis after the other."""
    along = [one for one in along if one.moves]
    if not along:
        return call(Identity(), x)
    counts = {one.axis: one.count for one in along}
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
        return _outside(call, _nearest(call, x, along, mode, nearest), along, mode)
    if kind not in ("linear", "bilinear", "cubic"):
        raise ShapeError(f"{call.name}: mode {kind!r} is not known")
    filter = InterpolationFilter(
        kind != "cubic",
        call.get("cubic_coeff_a", -0.75),
        bool(call.get("antialias", 0)),
        bool(call.get("exclude_outside", 0)),
    )
    call.check_tables(sum(hint(one.count) * hint(one.reach(filter)) for one in along), TAP)
    dtype = x.type.dtype
    if dtype is DType.float64:
        return _wide(call, x, along, mode, filter)
    if dtype not in (DType.float32, DType.float16, DType.uint8, DType.int8):
        raise UnsupportedOpError(f"{call.name}: {kind} of {dtype.value}")
    y = call.cast(x, DType.float32)
    for one in along:
        if one.is_open:
            y = call(Resample(one.axis), y, *call.all(TapsTable(one, mode, filter)))
            continue
        taps = filter.taps(one.source_coordinates(mode), one.size, one.scale)
        y = weighted_sum(call, y, one.axis, *taps)
    y = _outside(call, y, along, mode)
    return y if dtype.kind == "float" else call.cast(call.pointwise("round(a)", y), dtype)


def _nearest(
    call: OperatorCall, x: Value, along: Sequence[AxisResampling], mode: str, nearest: str
) -> Value:
    """The numbers that are nearest to the places wanted along each axis."""
    fixed = [one for one in along if not one.is_open]
    x = gather_axes(
        call,
        x,
        {a.axis: nearest_positions(a.source_coordinates(mode), a.size, nearest) for a in fixed},
    )
    repeats = {}
    for one in along:
        if not one.is_open:
            continue
        if (times := _times(one, mode, nearest)) > 1:
            repeats[one.axis] = times
        elif (step := _step(one, mode, nearest)) is not None:
            x = call(step, x)
        else:
            x = call(Gather(one.axis), x, call(NearestTable(one, mode, nearest)))
    return repeat(call, x, repeats) if repeats else x


def _indices_at_most(one: AxisResampling, scale: float, mode: str, nearest: str) -> Array:
    """Return the indices for the greatest size of an open axis; empty where that is too great."""
    most = greatest(one.size)
    if most > MOST_TRIED:
        return np.empty(0, np.int32)
    largest = AxisResampling(one.axis, most, floor(most * scale), scale)
    return nearest_positions(largest.source_coordinates(mode), most, nearest)


def _times(one: AxisResampling, mode: str, nearest: str) -> int:
    """Return how often each index is repeated whatever the open size is; 0 where that differs."""
    times: Any = one.count // one.size
    if isinstance(times, SymInt) or times < 2 or not same(times * one.size, one.count):
        return 0
    if one.given not in (None, times) or mode not in (*CENTRES, "asymmetric"):
        return 0
    index = _indices_at_most(one, times, mode, nearest)
    most = index.size // times
    return times if most and np.array_equal(index, np.repeat(np.arange(most), times)) else 0


def _step(one: AxisResampling, mode: str, nearest: str) -> Slice | None:
    """The slice of places that lie equally far apart whatever the open size is."""
    if one.given is None or mode not in ("half_pixel", "asymmetric"):
        return None
    step = round(1 / one.given)
    index = _indices_at_most(one, one.given, mode, nearest)
    if one.given * step != 1.0 or index.size < 2 or not 0 <= index[0] < step:
        return None
    if (np.diff(index) != step).any():
        return None
    start = int(index[0])
    end = start + (one.count - 1) * step + 1
    return Slice((start,), (end,), (one.axis,), (step,))


def _wide(
    call: OperatorCall,
    x: Value,
    along: Sequence[AxisResampling],
    mode: str,
    filter: InterpolationFilter,
) -> Value:
    """Return x resampled along one axis after the other, in 64 bits by the host."""
    value = float(call.get("extrapolation_value", 0.0)) if mode == "tf_crop_and_resize" else None
    for one in along:
        x = call(WideResample(one, mode, filter, value), x)
    return x


def _outside(call: OperatorCall, y: Value, along: Sequence[AxisResampling], mode: str) -> Value:
    """Fill y outside the cropped x with `extrapolation_value`, in the mode that crops."""
    if mode != "tf_crop_and_resize":
        return y
    number = call.get("extrapolation_value", 0.0)
    value = float(number) if y.type.dtype.kind == "float" else int(number)
    for one in along:
        shape = one.count, *(1,) * (len(y.type.dims) - 1 - one.axis)
        if one.is_open:
            y = call.pointwise("where(a, b, c)", call(InsideTable(one, mode, shape)), y, value)
        elif not (inside := one.inside(mode)).all():
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
# Of x mirrored at b and again at b + c, until it lies between them.
MIRRORED = formula("b + c - abs(c - remainder(abs(a - b), 2.0 * c))")
INSIDE = formula("where(a < 0.0, 0.0, where(a > b, 0.0, c))")
# Of distances; the cubic is that of Keys 1981 with the coefficient -0.75.
LINEAR = formula("maximum(1.0 - a, 0.0)")
NEAR = "(1.25 * a - 2.25) * a * a + 1.0"
FAR = "((-0.75 * a + 3.75) * a - 6.0) * a + 3.0"
CUBIC = formula(f"where(a <= 1.0, {NEAR}, where(a < 2.0, {FAR}, 0.0))")
WEIGHTED = "where(equal(b, 0.0), 0.0, a * b)"  # what is outside may not be finite


def grid_sample(call: OperatorCall, x: Value, grid: Value) -> Value:
    """Sample x (n, c, ...) at the coordinates of grid (n, ..., d), the last of which is for
    axis 2.
    """
    mode = call.get("mode", "bilinear" if call.version < 20 else "linear")
    outside = call.get("padding_mode", "zeros")
    if mode not in GRID_MODES or outside not in OUTSIDE:
        raise ShapeError(f"GridSample: mode {mode!r}, padding_mode {outside!r}")
    n, c, *sizes = x.type.shape
    _, *wanted, depth = grid.type.shape
    if len(wanted) != len(sizes) or depth != len(sizes) or grid.type.shape[0] != n:
        raise ShapeError(f"GridSample: the grid {grid.type} does not fit {x.type}")
    if x.type.dtype.kind != "float" and GRID_MODES[mode] != "nearest":
        raise UnsupportedOpError(f"GridSample: {mode} of {x.type.dtype.value}")
    if not prod(x.type.shape) or not prod(wanted):
        raise UnsupportedOpError(f"GridSample: of nothing, {x.type} and {grid.type}")
    at = _SampleGrid(call, tuple(sizes), outside, bool(call.get("align_corners", 0)))
    index, weights = at.taps(call.reshape(grid, (n, 1, prod(wanted), depth)), GRID_MODES[mode])
    rows = call(Transpose((0, 2, 1)), call.reshape(x, (n, c, prod(sizes))))
    taps = index.type.shape[1]
    each = call.reshape(index, (n, taps * prod(wanted), 1))
    result = call.reshape(call(GatherND(1), rows, each), (n, taps, prod(wanted), c))
    y = _weighted_sum(call, result, weights)
    return call.reshape(call(Transpose((0, 2, 1)), y), (n, c, *wanted))


def _weighted_sum(call: OperatorCall, samples: Value, weights: Value | None) -> Value:
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


class _SampleGrid:
    """Places of a grid among those of an image. The grid's last axis is backwards, as ONNX's."""

    def __init__(self, call: OperatorCall, sizes: Shape, outside: str, corners: bool) -> None:
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


def _affine_grid(call: OperatorCall, theta: Value, size: Value) -> Value:
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
    Converter("Upsample", 1, _upsample, shape_inputs=(1,)),
    Converter("Resize", 10, _resize, shape_inputs=(1, 2, 3)),
    Converter("GridSample", 16, grid_sample),
    Converter("AffineGrid", 20, _affine_grid, shape_inputs=(1,)),
)

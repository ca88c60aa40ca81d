"""Tensors of another size: numbers between the places of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, prod
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.resample import Filter, picked, repeated, weighted
from glnn.graph.graph import Value
from glnn.graph.operators import Identity
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.entry import Entry
from glnn.onnx.operators.wide_resample import WideResample
from glnn.symint import hint, same
from glnn.types import MOST, Array, DType

CENTRES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
# Bytes for each place of an axis, and for each number that it is made of: of the tables and of
# the temporary arrays by which they are computed.
NEAREST, TAP = 32, 64
MODES = (*CENTRES, "align_corners", "asymmetric", "tf_crop_and_resize")


@dataclass(frozen=True)
class Along:
    """How one axis is resized. Places are computed in float32, as exporters' runtimes do, but for
    numbers of float64.
    """

    axis: int
    size: int
    """Places that there are."""
    count: int
    """Places wanted."""
    scale: float
    """Places wanted for each."""
    roi: tuple[float, float] = (0.0, 1.0)
    """Which part is wanted of what lies between the first and the last place."""

    def places(self, mode: str, dtype: type[np.floating[Any]] = np.float32) -> Array:
        """Where each place wanted lies among those that there are, as `mode` says."""
        at = np.arange(self.count, dtype=dtype)
        scale, half, most = dtype(self.scale), dtype(0.5), dtype(self.size - 1)
        if mode == "asymmetric":
            return np.asarray(at / scale)
        if mode == "align_corners":
            return np.asarray(at * most / self._last)
        if mode == "tf_crop_and_resize":
            first, last = (dtype(end) * most for end in self.roi)
            if self.count == 1:
                return np.full(self.count, (first + last) * half, dtype)
            return np.asarray(first + at * (last - first) / self._last)
        if mode == "pytorch_half_pixel" and self.count == 1:
            return np.zeros(1, dtype)
        found = (at + half) / scale
        if mode == "half_pixel_symmetric":
            share = dtype(self.count) / dtype(self._length)
            found = dtype(self.size) / 2 * (1 - share) + found
        return np.asarray(found - half, dtype)

    @property
    def _length(self) -> float:
        """How many places are wanted before that is rounded down."""
        return float(np.float32(self.scale) * np.float32(self.size))

    @property
    def _last(self) -> float:
        """The last place wanted; 1 where there is but one.

        ONNX's text, ONNX Runtime and PyTorch mean the length of the result, a whole number;
        onnx.reference, and two cases of the suite, that of `_length`.
        """
        return float(max(self.count - 1, 1))


def _nearest(at: Array, size: int, mode: str) -> Array:
    """The index of the place that is nearest to each, int32."""
    half = np.float32(0.5)
    rounded: dict[str, Callable[[], Array]] = {
        "round_prefer_floor": lambda: np.ceil(at - half),
        "round_prefer_ceil": lambda: np.floor(at + half),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if mode not in rounded:
        raise ShapeError(f"Resize: nearest_mode must be one of {', '.join(rounded)}, got {mode!r}")
    return np.asarray(np.clip(rounded[mode](), 0, size - 1), np.int32)


def _resize(
    call: Call,
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
        lengthened = _scaled(x, tuple(range(len(x.type.dims))), _floats(call, roi))
        return _resampled(call, x, lengthened, "asymmetric", "floor")
    axes = [call.axis(axis, x) for axis in call.get("axes", tuple(range(len(x.type.dims))))]
    if scales is not None and scales.type.dims != (0,):
        along = _scaled(x, axes, _floats(call, scales))
    elif sizes is not None:
        policy = call.get("keep_aspect_ratio_policy", "stretch")
        along = _sized(x, axes, call.integers(sizes, "sizes"), policy)
    else:
        raise ShapeError("Resize: it has either scales or sizes")
    mode = call.get("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES:
        raise ShapeError(f"Resize: coordinate_transformation_mode {mode!r} is not known")
    if mode == "tf_crop_and_resize" and roi is not None:
        if len(ends := _floats(call, roi)) != 2 * len(axes):
            raise ShapeError(f"Resize: roi must have two numbers for each of {len(axes)} axes")
        pairs = zip(along, ends[: len(axes)], ends[len(axes) :], strict=True)
        along = [Along(one.axis, one.size, one.count, one.scale, (a, b)) for one, a, b in pairs]
    return _resampled(call, x, along, mode, call.get("nearest_mode", "round_prefer_floor"))


def _upsample(call: Call, x: Value, scales: Value | None = None) -> Value:
    if scales is not None:
        factors = _floats(call, scales)
    elif call.version < 7:
        factors = (1.0, 1.0, call.need("height_scale"), call.need("width_scale"))
    else:
        factors = tuple(call.need("scales"))
    along = _scaled(x, tuple(range(len(x.type.dims))), factors)
    return _resampled(call, x, along, "asymmetric", "floor")


def _floats(call: Call, value: Value) -> tuple[float, ...]:
    return tuple(float(n) for n in call.array(value).ravel())


def _scaled(x: Value, axes: Sequence[int], scales: Sequence[float]) -> list[Along]:
    if len(axes) != len(scales) or not all(0 < scale < float("inf") for scale in scales):
        raise ShapeError(f"Resize: a positive scale for each of {len(axes)} axes, got {scales}")
    found = []
    for axis, scale in zip(axes, scales, strict=True):
        size = x.type.shape[axis]
        whole = hint(size) is not size and scale == int(scale)
        count = size * int(scale) if whole else floor(np.float32(size) * np.float32(scale))
        found.append(Along(axis, size, count, scale))
    return found


def _sized(x: Value, axes: Sequence[int], sizes: Sequence[int], policy: str) -> list[Along]:
    if len(axes) != len(sizes) or min(sizes, default=0) < 0:
        raise ShapeError(f"Resize: a size for each of {len(axes)} axes, got {tuple(sizes)}")
    there = [x.type.shape[axis] for axis in axes]
    pairs = tuple(zip(sizes, there, strict=True))
    if any(size == 0 and (count != 0 or policy != "stretch") for count, size in pairs):
        raise ShapeError(f"Resize: {x.type} has no places")
    scales = [_scale(count, size) for count, size in pairs]
    if policy != "stretch":
        if policy not in ("not_larger", "not_smaller"):
            raise ShapeError(f"Resize: keep_aspect_ratio_policy {policy!r} is not known")
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(scales)
        sizes = [floor(scale * size + 0.5) for size in there]
    return [Along(*one) for one in zip(axes, there, sizes, scales, strict=True)]


def _scale(count: int, size: int) -> float:
    """Places wanted for each; of an open size a whole number, where it is one for all."""
    if size and hint(size) is not size:
        times = count // size
        if hint(times) is times and same(count, times * size):
            return float(times)
    return count / size if size else 1.0  # 0 stay 0


def _repeats(one: Along, mode: str, nearest: str) -> int | None:
    """How often each place of an open size is there, where it is as often whatever the size is.

    None for numbers, whose places are computed, and where that cannot be told.
    """
    if hint(one.size) is one.size or one.scale != int(one.scale):
        return None
    middle = mode == "half_pixel" and nearest in ("round_prefer_floor", "round_prefer_ceil")
    whole = middle or (mode == "asymmetric" and nearest == "floor")
    return int(one.scale) if whole and same(one.count, one.size * int(one.scale)) else None


def _resampled(call: Call, x: Value, along: Sequence[Along], mode: str, nearest: str) -> Value:
    """x along one axis after the other."""
    along = [
        one
        for one in along
        if one.scale != 1.0 or one.roi != (0.0, 1.0) or not same(one.count, one.size)
    ]
    if not along:
        return call(Identity(), x)
    counts = {one.axis: one.count for one in along}
    numbers = prod(counts.get(axis, size) for axis, size in enumerate(x.type.shape))
    if numbers > MOST or any(count > MOST for count in counts.values()):
        raise ShapeError(f"{call.name}: {x.type} to more than {MOST} numbers")
    kind = call.get("mode", "nearest")
    if kind == "nearest":
        times = {one.axis: _repeats(one, mode, nearest) for one in along}
        open_ones = {axis: count for axis, count in times.items() if count is not None}
        x = repeated(call, x, open_ones) if open_ones else x
        along = [one for one in along if one.axis not in open_ones]
        call.check_tables(sum(one.count for one in along), NEAREST)
        indices = {a.axis: _nearest(a.places(mode), a.size, nearest) for a in along}
        return _outside(call, picked(call, x, indices), along, mode)
    if kind not in ("linear", "bilinear", "cubic"):
        raise ShapeError(f"{call.name}: mode {kind!r} is not known")
    made = Filter(
        kind != "cubic",
        call.get("cubic_coeff_a", -0.75),
        bool(call.get("antialias", 0)),
        bool(call.get("exclude_outside", 0)),
    )
    call.check_tables(sum(one.count * made.reach(one.scale) for one in along), TAP)
    dtype = x.type.dtype
    if dtype is DType.float64:
        return _wide(call, x, along, mode, made)
    if dtype not in (DType.float32, DType.float16, DType.uint8, DType.int8):
        raise UnsupportedOpError(f"{call.name}: {kind} of {dtype.value}")
    y = call.cast(x, DType.float32)
    for one in along:
        taps = made.taps(one.places(mode), one.size, one.scale)
        y = weighted(call, y, one.axis, *taps)
    y = _outside(call, y, along, mode)
    return y if dtype.kind == "float" else call.cast(call.pointwise("round(a)", y), dtype)


def _wide(call: Call, x: Value, along: Sequence[Along], mode: str, made: Filter) -> Value:
    """x along one axis after the other, in 64 bits on the host."""
    for one in along:
        at = one.places(mode, np.float64)
        index, weight = made.taps(at, one.size, one.scale, np.float64)
        inside = (at >= 0) & (at <= one.size - 1)
        if mode != "tf_crop_and_resize":
            inside[:] = True
        value = float(call.get("extrapolation_value", 0.0))
        x = call(WideResample(one.axis, index, weight, inside, value), x)
    return x


def _outside(call: Call, y: Value, along: Sequence[Along], mode: str) -> Value:
    """What lies outside of x when cropped has one value."""
    if mode != "tf_crop_and_resize":
        return y
    number = call.get("extrapolation_value", 0.0)
    value = float(number) if y.type.dtype.kind == "float" else int(number)
    for one in along:
        at = one.places(mode)
        inside = (at >= 0) & (at <= one.size - 1)
        if not inside.all():
            spread = inside.reshape(-1, *(1,) * (len(y.type.dims) - 1 - one.axis))
            y = call.pointwise("where(a, b, c)", call.constant(spread), y, value)
    return y


ENTRIES = (
    Entry("Upsample", 1, _upsample, told=(1,)),
    Entry("Resize", 10, _resize, told=(1, 2, 3)),
)

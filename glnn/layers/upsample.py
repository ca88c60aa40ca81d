"""Upsampling, and subsampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import floor, prod
from typing import Any

import numpy as np

from glnn.core.resampling import InterpolationFilter
from glnn.core.types import MOST, Array, DType
from glnn.errors import ShapeError, shown
from glnn.graph.compose.resample import SamplePositions, gather_constant, interpolate, weighted_sum
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Subsample
from glnn.layers.arguments import Ints, flag, integer, is_list, number, sizes, with_unusual
from glnn.layers.layer import ANY, Layer, Parameter, Scope

LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}
"""The rank of x for modes that interpolate two elements along each dimension."""
BETWEEN = {**LINEAR, "bicubic": 4}
"""The rank of x for modes that interpolate two or four elements along each dimension."""
MODES = ("nearest", "nearest-exact", *BETWEEN)
CUBIC = InterpolationFilter(linear=False)
MOST_PLACES = 1 << 24
"""The most elements of a dimension: coordinates are float32, which has all integers up to here."""


class Upsample(Layer):
    """x of shape (n, c, ...), resized along the dimensions after c.

    size: the output sizes, an integer for all dimensions or one for each. scale_factor: what the
    sizes are multiplied by (the products are rounded down), instead of `size`. mode: "nearest", the
    element at or before a coordinate; "nearest-exact", the one with the nearest centre; "linear",
    "bilinear" and "trilinear" for one, two and three dimensions interpolate two elements along
    each; "bicubic" for two dimensions interpolates four. align_corners: whether interpolation
    aligns the centres of the first and last elements, instead of the outer edges.
    recompute_scale_factor: whether coordinates follow from the sizes instead of `scale_factor`.
    """

    takes = ANY

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        kind = type(self).__name__
        if (size is None) == (scale_factor is None):
            raise ShapeError(f"{kind}: it has either size or scale_factor")
        if not isinstance(mode, str) or mode not in MODES:
            raise ShapeError(f"{kind} mode must be one of {', '.join(MODES)}, got {shown(mode)}")
        self.mode = mode
        self.size = None if size is None else _each(size, partial(integer, f"{kind} size"))
        factor = partial(_factor, f"{kind} scale_factor")
        self.scale_factor = None if scale_factor is None else _each(scale_factor, factor)
        self.align_corners = _optional(f"{kind} align_corners", align_corners)
        if self.align_corners is not None and mode not in BETWEEN:
            raise ShapeError(f"{kind} align_corners must be None in mode {mode!r}")
        what = f"{kind} recompute_scale_factor"
        self.recompute_scale_factor = _optional(what, recompute_scale_factor)
        if self.recompute_scale_factor and size is not None:
            raise ShapeError(f"{what} needs scale_factor")
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        dims, kind = x.type.dims, type(self).__name__
        if len(dims) != BETWEEN.get(self.mode, max(len(dims), 3)):
            wanted = f"{BETWEEN[self.mode]}" if self.mode in BETWEEN else "3 or more"
            raise ShapeError(f"{kind}: x must have {wanted} dimensions, got {dims}")
        if self.mode in BETWEEN and x.type.dtype is not DType.float32:
            raise ShapeError(f"{kind}: x must be float32 in mode {self.mode!r}, got {x.type}")
        coordinates = {}
        for axis in range(2, len(dims)):
            size = dims[axis]
            if not isinstance(size, int) or size < 1:
                raise ShapeError(f"{kind}: x must have places along {axis}, got {dims}")
            coordinates[axis] = self.source_coordinates(size, axis - 2, len(dims) - 2)
        sizes = tuple(positions.count for positions in coordinates.values())
        if max(sizes) > MOST_PLACES:
            raise ShapeError(f"{kind}: {sizes} places are more than {MOST_PLACES} along one side")
        if prod(sizes) > MOST:  # no device has memory for it
            raise ShapeError(f"{kind}: {sizes} places are more than {MOST}")
        for axis, positions in coordinates.items():
            x = self._resize_axis(scope, x, axis, positions)
        return scope.named(x)

    def _resize_axis(self, scope: Scope, x: Value, axis: int, positions: SamplePositions) -> Value:
        if self.mode in LINEAR:
            return interpolate(scope.add, x, axis, positions)
        if self.mode == "bicubic":
            taps = CUBIC.taps(positions.middles, positions.size, 1.0)
            return weighted_sum(scope.add, x, axis, *taps)
        index = positions.nearest if self.mode == "nearest" else positions.nearest_exact
        return gather_constant(scope.add, x, axis, index)

    def source_coordinates(self, size: int, number: int, count: int) -> SamplePositions:
        """Return the source coordinates along the spatial dimension `number` of `count`, which has
        `size` elements.
        """
        align = bool(self.align_corners)
        if self.size is not None:
            return SamplePositions(size, int(_one(self.size, number, count)), align_corners=align)
        assert self.scale_factor is not None
        scale = _one(self.scale_factor, number, count)
        output_size = floor(size * scale)
        if output_size < 1:
            what = f"{type(self).__name__} scale_factor {scale:g}"
            raise ShapeError(f"{what} leaves nothing of {size} places")
        explicit_scale = None if self.recompute_scale_factor else scale
        return SamplePositions(size, output_size, explicit_scale, align)

    def config(self) -> dict[str, Any]:
        arguments = {
            "size": self.size,
            "scale_factor": self.scale_factor,
            "align_corners": self.align_corners,
            "recompute_scale_factor": self.recompute_scale_factor,
        }
        present = {name: value for name, value in arguments.items() if value is not None}
        return {**present, "mode": self.mode}


class UpsamplingNearest2d(Upsample):
    """`Upsample` of images in the mode "nearest"."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "nearest")

    def config(self) -> dict[str, Any]:
        return with_unusual({}, size=(self.size, None), scale_factor=(self.scale_factor, None))


class UpsamplingBilinear2d(Upsample):
    """`Upsample` of images in the mode "bilinear" with align_corners."""

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)

    def config(self) -> dict[str, Any]:
        return with_unusual({}, size=(self.size, None), scale_factor=(self.scale_factor, None))


def _factor(what: str, value: object) -> float:
    if (factor := number(what, value, 0)) == 0:
        raise ShapeError(f"{what} must be a number above 0, got 0")
    return float(factor)


def _optional(what: str, value: bool | None) -> bool | None:
    return None if value is None else flag(what, value)


def _each(value: Any, check: Any) -> Any:
    """Return `value`, or each of its elements where it is a list, as `check` returns it."""
    return tuple(map(check, value)) if is_list(value) else check(value)


def _one(value: Any, number: int, count: int) -> float:
    """Return the element of `value` for dimension `number` of `count`."""
    if not isinstance(value, tuple):
        return value  # type: ignore[no-any-return]
    if len(value) != count:
        raise ShapeError(f"Upsample: {value} must be one number or one for {count} dimensions")
    return value[number]  # type: ignore[no-any-return]


class Subsample2d(Layer):
    """The mean of each window of x of shape (n, channels, h, w), times `weight`, plus `bias`.

    Windows do not overlap. weight: (channels,), initially 1. bias: (channels,), initially 0.
    """

    weight = Parameter[Array]()
    bias = Parameter[Array]()

    def __init__(self, channels: int, kernel_size: Ints) -> None:
        self.channels = integer("Subsample2d channels", channels)
        self.kernel_size = sizes("Subsample2d kernel_size", kernel_size, 2)
        shapes = dict.fromkeys(("weight", "bias"), (self.channels,))
        super().__init__(Subsample(self.kernel_size), shapes)  # type: ignore[arg-type]

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name == "weight", np.float32)

    def config(self) -> dict[str, Any]:
        return {"channels": self.channels, "kernel_size": self.kernel_size}

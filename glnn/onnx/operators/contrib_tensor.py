"""Operators of ONNX Runtime's set that move, sample or sort numbers; inverses of matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.graph import Value
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators import Gather, Transpose
from glnn.graph.operators.host import HostOperator
from glnn.onnx.operators.call import MICROSOFT, Converter, OperatorCall, Signature
from glnn.onnx.operators.resample import grid_sample
from glnn.onnx.operators.tensor import pad


@dataclass(frozen=True)
class Inverse(HostOperator):
    """The inverses of x0, square matrices (..., n, n). NumPy: linalg.inv."""

    name: ClassVar[str] = "inverse"

    @property
    def display_name(self) -> str:
        return self.name

    @property
    def reason(self) -> str:
        return "no kernel computes inverses of matrices"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        (x,) = self.named(types).values()
        if len(x.dims) < 2 or x.dims[-1] != x.dims[-2]:
            raise ShapeError(f"inverse: square matrices, got {x}")
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        (x,) = self.named(arrays).values()
        try:
            return (np.linalg.inv(x),)
        except np.linalg.LinAlgError:
            raise ShapeError(f"inverse: a matrix of {TensorType.from_array(x)} has none") from None

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def _inverse(call: OperatorCall, x: Value) -> Value:
    return call(Inverse(), x)


def _unique(call: OperatorCall, x: Value) -> Value:
    raise UnsupportedOpError(f"{call.name}: no kernel computes it")


def _crop_and_resize(
    call: OperatorCall, x: Value, regions: Value, images: Value, crop: Value
) -> Value:
    """Return regions of images x (n, c, h, w) resized to one size, with aligned corners.

    regions: (count, 4), each y1, x1, y2, x2 from 0 to 1. images: (count,), the image of each.
    Positions outside the image give `extrapolation_value`.
    """
    mode = call.need("mode")
    if mode not in ("bilinear", "nearest"):
        raise ShapeError(f"{call.name}: mode must be bilinear or nearest, got {mode!r}")
    sizes = call.integers(crop, "crop_size")
    if len(x.type.dims) != 4 or len(sizes) != 2 or min(sizes) < 1:
        raise ShapeError(f"{call.name}: a crop of size {sizes} of images {x.type}")
    n, channels, *image_sizes = x.type.shape
    count = regions.type.shape[0]
    if regions.type.shape != (count, 4) or images.type.shape != (count,):
        raise ShapeError(f"{call.name}: {regions.type} regions, and images {images.type} of them")
    y_positions, x_positions = (
        _crop_positions(call, regions, axis, sizes[axis], image_sizes[axis]) for axis in (0, 1)
    )
    down = call.reshape(y_positions, (count, sizes[0], 1))
    across = call.reshape(x_positions, (count, 1, sizes[1]))
    image = call.reshape(call.cast(images, DType.int32), (count, 1, 1))
    pixels = call.reshape(
        call(Transpose((0, 2, 3, 1)), x), (n * image_sizes[0] * image_sizes[1], channels)
    )
    # nearest: halves are rounded up.
    taps = ("floor(a + 0.5)",) if mode == "nearest" else ("floor(a)", "ceil(a)")
    rows, columns = (
        [call.pointwise(f"cast_int32(clip({tap}, 0.0, b))", position, size - 1.0) for tap in taps]
        for position, size in ((down, image_sizes[0]), (across, image_sizes[1]))
    )
    samples = [
        call(
            Gather(0),
            pixels,
            call.pointwise("(a * d + b) * da + c", image, row, column, *image_sizes),
        )
        for row in rows
        for column in columns
    ]
    y = samples[0]
    positions = [call.reshape(one, (*one.type.shape, 1)) for one in (down, across)]
    if mode == "bilinear":
        fractions = [call.pointwise("a - floor(a)", one) for one in positions]
        upper, lower = (
            call.pointwise("a + (b - a) * c", samples[i], samples[i + 1], fractions[1])
            for i in (0, 2)
        )
        y = call.pointwise("a + (b - a) * c", upper, lower, fractions[0])
    inside = [
        call.pointwise("logical_and(a >= 0.0, a <= b)", one, size - 1.0)
        for one, size in zip(positions, image_sizes, strict=True)
    ]
    outside = float(call.need("extrapolation_value"))
    y = call.pointwise("where(logical_and(a, b), c, d)", *inside, y, outside)
    return call(Transpose((0, 3, 1, 2)), y)


def _crop_positions(call: OperatorCall, regions: Value, axis: int, count: int, size: int) -> Value:
    """Return `count` positions in an image of `size` along an axis, 0 for y: (regions, count)."""
    first, last = (
        call.reshape(call(Gather(1), regions, call.constant(i, np.int32)), (-1, 1))
        for i in (axis, axis + 2)
    )
    if count == 1:
        return call.pointwise("0.5 * (a + b) * c", first, last, size - 1.0)
    step = call.pointwise("(b - a) * c / d", first, last, size - 1.0, count - 1.0)
    number = call.cast(call.count_up(count, DType.int32, (1, count)), DType.float32)
    return call.pointwise("a * d + b * c", first, number, step, size - 1.0)


_row = partial(Converter, since=1, domain=MICROSOFT)
ENTRIES = (
    _row(
        "Pad",
        convert=pad,
        shape_inputs=(1,),
        signature=Signature((2, 3), attributes={"mode": "constant"}),
    ),
    _row(
        "GridSample",
        convert=grid_sample,
        signature=Signature(
            (2, 2), attributes={"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}
        ),
    ),
    _row(
        "CropAndResize",
        convert=_crop_and_resize,
        shape_inputs=(3,),
        signature=Signature((4, 4), attributes={"extrapolation_value": 0.0, "mode": "bilinear"}),
    ),
    _row("Inverse", convert=_inverse, hosted=True, signature=Signature((1, 1))),
    _row(
        "Unique",
        convert=_unique,
        hosted=True,
        signature=Signature((1, 1), (3, 3), dtypes=(0, DType.int64)),
    ),
)

"""Deformable convolution: Dai et al. 2017; with a mask, Zhu et al. 2019."""

from __future__ import annotations

import numpy as np

from glnn.errors import UnsupportedOpError
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.window import Window
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, GatherElements, Slice
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.conv import biased
from glnn.onnx.operators.entry import Entry
from glnn.onnx.operators.window import windows_of
from glnn.types import Array

CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def _deform_conv(
    call: Call,
    x: Value,
    weight: Value,
    offset: Value,
    bias: Value | None = None,
    mask: Value | None = None,
) -> Value:
    """A product of the weights and what each tap of each window meets."""
    if len(x.type.dims) != 4:
        raise UnsupportedOpError(f"DeformConv: of {len(x.type.dims) - 2} dimensions")
    n, c, h, w = x.type.shape
    windows = windows_of(call, (h, w), weight.type.shape[2:])
    outs, groups, parts = windows.outputs((h, w)), call.get("group", 1), call.get("offset_group", 1)
    taps, places = windows.kernel[0] * windows.kernel[1], outs[0] * outs[1]
    offsets = call.reshape(offset, (n, parts, taps, 2, places))
    down, across = (
        call.pointwise(
            "a + b",
            call(Slice((i,), (i + 1,), (3,), (1,)), offsets),
            call.constant(_places(windows, outs, i), np.float32),
        )
        for i in (0, 1)
    )
    of_mask = None if mask is None else call.reshape(mask, (n, parts, taps, 1, places))
    terms: list[Value] = []
    images = call.reshape(x, (n, parts, c // parts, h * w))
    for i, j in CORNERS:
        row = f"cast_int32(clip(floor(a) + {i}.0, 0.0, c))"
        column = f"cast_int32(clip(floor(b) + {j}.0, 0.0, d))"
        index = call.pointwise(f"{row} * da + {column}", down, across, h - 1.0, w - 1.0, w)
        index = call.reshape(index, (n, parts, 1, taps * places))
        index = call(Expand((n, parts, c // parts, taps * places)), index)
        share = call.pointwise(
            f"{_share('a', i, 'c')} * {_share('b', j, 'd')}", down, across, float(h), float(w)
        )
        if of_mask is not None:
            share = call.pointwise("a * b", share, of_mask)
        share = call.reshape(share, (n, parts, 1, taps * places))
        terms += [call(GatherElements(3), images, index), share]
    met = call.pointwise("a * b + c * d + da * db + dc * dd", *terms)
    columns = call.reshape(met, (n, groups, c // groups * taps, places))
    out = weight.type.shape[0]
    factor = call.reshape(weight, (groups, out // groups, c // groups * taps))
    y = matmul(call, factor, columns)
    return biased(call, call.reshape(y, (n, out, *outs)), bias)


def _share(name: str, corner: int, size: str) -> str:
    """Return the formula of the bilinear weight of a corner, 0 where it lies outside the image."""
    at = f"(floor({name}) + {corner}.0)"
    inside = f"cast_float32({at} >= 0.0) * cast_float32({at} < {size})"
    return f"{inside} * (1.0 - abs({name} - {at}))"


def _places(windows: Window, outs: tuple[int, ...], axis: int) -> Array:
    """(taps, 1, windows): where each tap of each window lies along an axis, without an offset."""
    kernel, step, apart = windows.kernel, windows.stride[axis], windows.dilation[axis]
    tap = np.indices(kernel)[axis].reshape(-1, 1, 1) * apart
    return np.asarray(tap + np.indices(outs)[axis].reshape(-1) * step - windows.before[axis])


ENTRIES = (Entry("DeformConv", 19, _deform_conv),)

"""Gradients of convolutions by their input and by their weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.conv2d import COLUMN_BYTES, FEW_CHANNELS
from glnn.graph.operators.windows import Pair, Sides


@dataclass(frozen=True)
class Conv2dInputGradient(HandwrittenOperator):
    """The gradient of a convolution by its x: for each place, the sum of dy times the weights that
    x is multiplied by.

    dy: (n, o, oh, ow), the gradient by the result. weight: (o, c / groups, kh, kw). Result:
    (n, c, h, w). The attributes but `size` are those of `Conv2d`. An epilogue does the rest.
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "conv2d_input_gradient"
    inputs: ClassVar[tuple[str, ...]] = ("dy",)
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    size: Pair
    """The height and the width of x."""
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            size=(self.size, 2, 1),
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
            groups=((self.groups,), 1, 1),
        )

    def shape_of(self, shapes: Shapes) -> Shape:
        dy, weight = shapes["dy"], shapes["weight"]
        rank(self.name, "dy", dy, 4, "(n, o, oh, ow)")
        rank(self.name, "weight", weight, 4, "(o, c / groups, kh, kw)")
        n, o = dy[:2]
        if weight[0] != o or o % self.groups or min(weight[2:]) < 1:
            fit = f"{self.name}: dy {dy} and weight {weight} do not fit {self.groups} groups"
            raise ShapeError(fit)
        geometry = (weight[2], weight[3]), self.stride, self.padding, self.dilation
        out = windows.outputs(self.size, *geometry)
        if out != dy[2:] or min(out) < 1:
            raise ShapeError(f"{self.name}: for x of {self.size} dy must be of {out}, got {dy}")
        return n, weight[1] * self.groups, *self.size

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy, weight = operands["dy"], operands["weight"].astype(operands["dy"].dtype, copy=False)
        shape = self.shape_of({"dy": dy.shape, "weight": weight.shape})
        (o, share, *kernel), out = weight.shape, (dy.shape[2], dy.shape[3])
        flat = weight.reshape(self.groups, o // self.groups, share * prod(kernel)).swapaxes(1, 2)
        bytes_of_one = share * self.groups * prod((*kernel, *out)) * dy.dtype.itemsize
        images = max(1, COLUMN_BYTES // max(bytes_of_one, 1))
        result = np.zeros(shape, dy.dtype)
        geometry = (kernel[0], kernel[1]), self.stride, self.padding, self.dilation
        for start in range(0, shape[0], images):
            some = dy[start : start + images]
            columns = some.reshape(len(some), self.groups, o // self.groups, prod(out))
            products = (flat @ columns).reshape(len(some), shape[1], *kernel, *out)
            part = result[start : start + images]
            for (ky, kx), (ys, xs), met in windows.every_tap(part, out, *geometry):
                met += products[:, :, ky, kx, ys, xs]
        return result

    def multiply_adds(self, shapes: Shapes) -> int:
        return prod(shapes["dy"]) * prod(shapes["weight"][1:])

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes)

    def depth(self, shapes: Shapes) -> int:
        o, _, *kernel = shapes["weight"]
        return o // self.groups * prod(kernel)

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (n, _, *out), (o, share, *kernel) = shapes["dy"], shapes["weight"]
        o_group = o // self.groups
        least = -(-depth // prod(kernel))
        made = (least + (o_group - least) % 4) * self.groups  # a whole quad or not, as before
        share_made = min(share, FEW_CHANNELS + share % 4) if few and self.groups == 1 else share
        return {**shapes, "dy": (n, made, *out), "weight": (made, share_made, *kernel)}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, _, h, w = self.shape_of(shapes)
        return n * h * w, shapes["weight"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = self.shape_of(shapes)
        _, o, oh, ow = shapes["dy"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "groups", "share", "o_group")
        share, o_group = c // self.groups, o // self.groups
        values = (n, c, h, w, o, oh, ow, self.groups, share, o_group)
        more = {"depth": self.depth(shapes), "pixels": n * h * w}
        return {**dict(zip(names, values, strict=True)), **more}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return {"convolution": 1} where the gradient is a convolution of dy with non-negative
        padding: stride 1 and padding of at most dilation (kernel - 1).
        """
        kernel = shapes["weight"][2:]
        fits = (
            p <= d * (k - 1)
            for p, d, k in zip(self.padding, 2 * self.dilation, 2 * kernel, strict=True)
        )
        return {"convolution": int(self.stride == (1, 1) and all(fits))}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        kernel = shapes["weight"][2], shapes["weight"][3]
        geometry = windows.defines(kernel, self.stride, self.padding, self.dilation)
        depthwise = int(self.groups == shapes["dy"][1] == shapes["weight"][1] * self.groups)
        padded = int(any(self.padding))
        return {**geometry, "GROUPS": self.groups, "DEPTHWISE": depthwise, "PADDED": padded}


@dataclass(frozen=True)
class Conv2dWeightGradient(HandwrittenOperator):
    """The gradient of a convolution by its weight: for each number, the sum of dy times the x that
    it is multiplied by.

    x: (n, c, h, w), what is convolved. dy: (n, o, oh, ow), the gradient by the result. Result:
    (o, c / groups, kh, kw), or (parts, o, c / groups, kh, kw) with `parts`. The other attributes
    are those of `Conv2d`.
    """

    name: ClassVar[str] = "conv2d_weight_gradient"
    inputs: ClassVar[tuple[str, ...]] = ("x", "dy")
    has_depth: ClassVar[bool] = True
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    parts: int = 0
    """0, or into how many parts the n oh rows of dy are divided: each of as many rows, the last
    ones perhaps of fewer or none, is added up by itself."""

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            kernel=(self.kernel, 2, 1),
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
            groups=((self.groups,), 1, 1),
            parts=((self.parts,), 1, 0),
        )

    @property
    def _geometry(self) -> tuple[Pair, Pair, Sides, Pair]:
        return self.kernel, self.stride, self.padding, self.dilation

    def shape_of(self, shapes: Shapes) -> Shape:
        x, dy = shapes["x"], shapes["dy"]
        rank(self.name, "x", x, 4, "(n, c, h, w)")
        rank(self.name, "dy", dy, 4, "(n, o, oh, ow)")
        (n, c, h, w), o = x, dy[1]
        if c % self.groups or o % self.groups:
            raise ShapeError(f"{self.name}: x {x} and dy {dy} do not fit {self.groups} groups")
        if (out := (n, o, *windows.outputs((h, w), *self._geometry))) != dy or min(dy[2:]) < 1:
            raise ShapeError(f"{self.name}: for x {x} dy must have shape {out}, got {dy}")
        shape = o, c // self.groups, *self.kernel
        return (self.parts, *shape) if self.parts else shape

    def chunk(self, shapes: Shapes) -> int:
        """The rows of dy that a part has."""
        n, _, oh, _ = shapes["dy"]
        return -(-n * oh // max(self.parts, 1))

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, dy = operands["x"], operands["dy"].astype(operands["x"].dtype, copy=False)
        shapes = {"x": x.shape, "dy": dy.shape}
        shape = self.shape_of(shapes)
        if not self.parts:
            taps = prod(self.kernel) * x.shape[1] * prod(dy.shape[2:]) * x.dtype.itemsize
            images = max(1, COLUMN_BYTES // max(taps, 1))
            result = np.zeros((self.groups, shape[0] // self.groups, prod(shape[1:])), x.dtype)
            for start in range(0, len(x), images):
                result += self._product(x[start : start + images], dy[start : start + images])
            return result.reshape(shape)
        result = np.zeros(shape, x.dtype)
        chunk, oh = self.chunk(shapes), dy.shape[2]
        rows = np.arange(len(x) * oh).reshape(-1, 1, oh, 1) // chunk
        for part in range(self.parts):
            part_dy = np.where(rows == part, dy, 0)
            result[part] = self._product(x, part_dy).reshape(shape[1:])
        return result

    def _product(self, x: Array, dy: Array) -> Array:
        """Return dy times the patches of x, all images at once: (groups, o / groups, c / groups kh
        kw).
        """
        (n, c), (o, *out) = x.shape[:2], dy.shape[1:]
        patches = np.zeros((c, *self.kernel, n, *out), x.dtype)
        for (ky, kx), (ys, xs), met in windows.every_tap(x, (out[0], out[1]), *self._geometry):
            patches[:, ky, kx, :, ys, xs] = met.swapaxes(0, 1)
        depth = n * prod(out)
        right = patches.reshape(self.groups, c // self.groups * prod(self.kernel), depth)
        left = dy.swapaxes(0, 1).reshape(self.groups, o // self.groups, depth)
        return np.asarray(left @ right.swapaxes(1, 2))

    def multiply_adds(self, shapes: Shapes) -> int:
        _, c, *_ = shapes["x"]
        return prod(shapes["dy"]) * (c // self.groups) * prod(self.kernel)

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes)

    def depth(self, shapes: Shapes) -> int:
        return self.chunk(shapes) * shapes["dy"][3]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (_, *x), (_, o, *out) = shapes["x"], shapes["dy"]
        n = max(-(-max(self.parts, 1) * depth // prod(out)), 1)
        o_made = min(o, FEW_CHANNELS + o % 4) if few and self.groups == 1 else o
        return {**shapes, "x": (n, *x), "dy": (n, o_made, *out)}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (n, c, h, w), (_, o, oh, ow) = shapes["x"], shapes["dy"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "groups", "share", "o_group")
        share, o_group = c // self.groups, o // self.groups
        values = (n, c, h, w, o, oh, ow, self.groups, share, o_group)
        parts, chunk = max(self.parts, 1), self.chunk(shapes)
        columns = prod(self.kernel) * -(-share // 4) * 4  # of a product of whole fours of channels
        more = {"depth": self.depth(shapes), "parts": parts, "chunk": chunk, "columns": columns}
        return {**dict(zip(names, values, strict=True)), **more}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """The kernel's size, how many places it has, and whether the sums are whole."""
        kernel_h, kernel_w = self.kernel
        taps, whole = kernel_h * kernel_w, int(not self.parts)
        return {"kernel_h": kernel_h, "kernel_w": kernel_w, "taps": taps, "whole": whole}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        depthwise = int(self.groups == shapes["x"][1] == shapes["dy"][1])
        geometry = windows.defines(*self._geometry)
        return {**geometry, "GROUPS": self.groups, "DEPTHWISE": depthwise}

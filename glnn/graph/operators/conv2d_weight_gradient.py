"""The gradient of a two-dimensional convolution by its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.conv2d import FEW
from glnn.graph.operators.correlation import COLUMN_BYTES
from glnn.graph.operators.windows import Pair, Sides
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Conv2dWeightGradient(Contraction):
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
            own = np.where(rows == part, dy, 0)
            result[part] = self._product(x, own).reshape(shape[1:])
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

    def flops(self, shapes: Shapes) -> int:
        _, c, *_ = shapes["x"]
        return 2 * prod(shapes["dy"]) * (c // self.groups) * prod(self.kernel)

    def depth(self, shapes: Shapes) -> int:
        return self.chunk(shapes) * shapes["dy"][3]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (_, *x), (_, o, *out) = shapes["x"], shapes["dy"]
        n = max(-(-max(self.parts, 1) * depth // prod(out)), 1)
        o_made = min(o, FEW + o % 4) if few and self.groups == 1 else o
        return {**shapes, "x": (n, *x), "dy": (n, o_made, *out)}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (n, c, h, w), (_, o, oh, ow) = shapes["x"], shapes["dy"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "groups", "share", "o_group")
        share, o_group = c // self.groups, o // self.groups
        values = (n, c, h, w, o, oh, ow, self.groups, share, o_group)
        parts, chunk = max(self.parts, 1), self.chunk(shapes)
        more = {"depth": self.depth(shapes), "parts": parts, "chunk": chunk}
        return {**dict(zip(names, values, strict=True)), **more}

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """The kernel's size, how many places it has, and whether the sums are whole."""
        kernel_h, kernel_w = self.kernel
        taps, whole = kernel_h * kernel_w, int(not self.parts)
        return {"kernel_h": kernel_h, "kernel_w": kernel_w, "taps": taps, "whole": whole}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {**windows.defines(*self._geometry), "GROUPS": self.groups}

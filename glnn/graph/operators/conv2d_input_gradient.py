"""The gradient of a two-dimensional convolution by what it convolves."""

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
class Conv2dInputGradient(Contraction):
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
            own = dy[start : start + images]
            given = own.reshape(len(own), self.groups, o // self.groups, prod(out))
            products = (flat @ given).reshape(len(own), shape[1], *kernel, *out)
            part = result[start : start + images]
            for (ky, kx), (ys, xs), met in windows.every_tap(part, out, *geometry):
                met += products[:, :, ky, kx, ys, xs]
        return result

    def flops(self, shapes: Shapes) -> int:
        return 2 * prod(shapes["dy"]) * prod(shapes["weight"][1:])

    def depth(self, shapes: Shapes) -> int:
        o, _, *kernel = shapes["weight"]
        return o // self.groups * prod(kernel)

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (n, _, *out), (o, share, *kernel) = shapes["dy"], shapes["weight"]
        o_group = o // self.groups
        least = -(-depth // prod(kernel))
        made = (least + (o_group - least) % 4) * self.groups  # a whole quad or not, as before
        share_made = min(share, FEW + share % 4) if few and self.groups == 1 else share
        return {**shapes, "dy": (n, made, *out), "weight": (made, share_made, *kernel)}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, _, h, w = self.shape_of(shapes)
        return n * h * w, shapes["weight"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = self.shape_of(shapes)
        _, o, oh, ow = shapes["dy"]
        names = ("n", "c", "h", "w", "o", "oh", "ow", "groups", "share", "o_group", "depth")
        share, o_group = c // self.groups, o // self.groups
        values = (n, c, h, w, o, oh, ow, self.groups, share, o_group, self.depth(shapes))
        return dict(zip(names, values, strict=True))

    def derived(self, shapes: Shapes) -> dict[str, int]:
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
        return {**geometry, "GROUPS": self.groups}

"""The first stage of Winograd's convolution: tiles of the images, transformed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from glnn.graph.contraction import Contraction
from glnn.graph.operator import Cost, Operands, Operator, SampleSubset, Shapes, rank, typed
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides
from glnn.graph.operators.winograd import FEW, check_part, part_of, winograd
from glnn.types import Array, Shape


@dataclass(frozen=True)
class WinogradInput(Contraction):
    """B^T d B of every patch d of x, for a 3 x 3 convolution of stride 1.

    x: (n, c, h, w). Result: a stack of (tile + 2)^2 matrices of a row for each tile and a column
    for each channel, (stack * tiles, c). padding: zeros at the top, left, bottom and right. part:
    the first tile, of those of all images, and how many; None for all.
    """

    name: ClassVar[str] = "winograd_input"
    tile: int = 4
    padding: Sides = (0, 0, 0, 0)
    part: Pair | None = None

    def __post_init__(self) -> None:
        winograd(self.tile)
        windows.check(self.name, padding=(self.padding, 4, 0))
        check_part(self.name, self.part)

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Return the number of tiles down and across an image of x's `shape`."""
        top, left, bottom, right = self.padding
        return self._along(shape[2] + top + bottom), self._along(shape[3] + left + right)

    def _along(self, size: int) -> int:
        """Return the number of tiles along a padded dimension, whose result is smaller by 2."""
        return -(-max(0, size - 2) // self.tile)

    def _part(self, shapes: Shapes) -> Pair:
        """The first tile and how many."""
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        return part_of(self.name, self.part, shapes["x"][0] * prod(self.tiles(shapes["x"])))

    def shape_of(self, shapes: Shapes) -> Shape:
        _, count = self._part(shapes)
        return winograd(self.tile).window ** 2 * count, shapes["x"][1]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c, h, w = x.shape
        down, across = self.tiles(x.shape)
        form = winograd(self.tile)
        padded = np.zeros((n, c, down * self.tile + 2, across * self.tile + 2), x.dtype)
        top, left = self.padding[:2]
        high, wide = min(h, padded.shape[2] - top), min(w, padded.shape[3] - left)
        padded[:, :, top : top + high, left : left + wide] = x[:, :, :high, :wide]
        shape = (form.window, form.window)
        patches = np.lib.stride_tricks.sliding_window_view(padded, shape, axis=(2, 3))
        patches = patches[:, :, :: self.tile, :: self.tile].transpose(4, 5, 0, 2, 3, 1)
        both = np.kron(form.data, form.data).astype(x.dtype)
        stack = both @ patches.reshape(form.window**2, -1)
        first, count = self._part({"x": x.shape})
        stack = stack.reshape(form.window**2, n * down * across, c)[:, first : first + count]
        return np.ascontiguousarray(stack).reshape(self.shape_of({"x": x.shape}))

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        images = -(-self._part(shapes)[1] // max(prod(self.tiles(shapes["x"])), 1))
        return replace(self, part=None), {**shapes, "x": (images, *shapes["x"][1:])}

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if self.part is not None:
            return None
        some = {**shapes, "x": (count, *shapes["x"][1:])}
        return SampleSubset(self, some, {"x": 1, "out": winograd(self.tile).window ** 2})

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, c, *size = shapes["x"]
        return {"x": (n, min(c, FEW + c % 4) if few else c, *size)}

    def shrink(self, shapes: Shapes) -> Shapes:
        if self.part is not None:
            return shapes
        n, c, *size = shapes["x"]
        return {"x": (n, c, *windows.shrink_sizes(size, size, (1, 1)))}

    def flops(self, shapes: Shapes) -> int:
        rows, c = self.shape_of(shapes)
        return rows * c * 2 * winograd(self.tile).window

    def cost_of(self, operands: Operands) -> Cost:
        """Return the cost, which counts only the part of the images that the tiles read."""
        shapes = {name: one.shape for name, one in typed(operands).items()}
        tiles = shapes["x"][0] * prod(self.tiles(shapes["x"]))
        read = prod(shapes["x"]) * self._part(shapes)[1] // max(tiles, 1)
        return Cost(self.flops(shapes), 4 * (read + prod(self.shape_of(shapes))))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = shapes["x"]
        down, across = self.tiles(shapes["x"])
        sizes = {"n": n, "c": c, "h": h, "w": w, "tiles_down": down, "tiles_across": across}
        first, count = self._part(shapes)
        return {**sizes, "tiles": count, "first_tile": first}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"TILE": self.tile, "PADDING_TOP": self.padding[0], "PADDING_LEFT": self.padding[1]}

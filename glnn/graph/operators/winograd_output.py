"""The last stage of Winograd's convolution: tiles of the result, transformed back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators.winograd import winograd
from glnn.types import Array, Shape


@dataclass(frozen=True)
class WinogradOutput(Contraction):
    """A^T m A for every tile m of the products.

    images: the result's n, oh and ow. x: (stack * tiles, o), as WinogradInput stacks it.
    Result: (n, o, oh, ow).
    """

    name: ClassVar[str] = "winograd_output"
    images: tuple[int, int, int] = (1, 1, 1)
    tile: int = 4

    def __post_init__(self) -> None:
        winograd(self.tile)
        if len(self.images) != 3 or any(size < 0 for size in self.images):
            raise ShapeError(f"{self.name}: images must be (n, oh, ow), got {self.images}")

    @property
    def _tiles(self) -> tuple[int, int]:
        return -(-self.images[1] // self.tile), -(-self.images[2] // self.tile)

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(stack * tiles, o)")
        n, oh, ow = self.images
        rows, o = shapes["x"]
        expected = winograd(self.tile).window ** 2 * n * prod(self._tiles)
        if rows != expected:
            raise ShapeError(f"{self.name}: x must have {expected} rows, got shape {shapes['x']}")
        return n, o, oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, o, oh, ow = self.shape_of({k: v.shape for k, v in operands.items()})
        form, (down, across) = winograd(self.tile), self._tiles
        stack = x.reshape(form.window, form.window, n, down, across, o)
        back = form.result.astype(x.dtype)
        whole = np.einsum("it,tunyxo,ju->noyixj", back, stack, back, optimize=True)
        return np.array(whole.reshape(n, o, down * self.tile, across * self.tile)[:, :, :oh, :ow])

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"]) * 2 * self.tile

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        down, across = self._tiles
        sizes = {"n": n, "o": o, "oh": oh, "ow": ow, "tiles_down": down, "tiles_across": across}
        return {**sizes, "tiles": n * down * across}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"TILE": self.tile}

"""The last stage of Winograd's convolution: tiles of the result, transformed back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Cost, Operands, Operator, SampleSubset, Shapes, rank, typed
from glnn.graph.operators.pool2d import MODES, Pool2d
from glnn.graph.operators.windows import Pair
from glnn.graph.operators.winograd import FEW, check_part, part_of, winograd
from glnn.types import Array, Shape


@dataclass(frozen=True)
class WinogradOutput(Contraction):
    """A^T m A for every tile m of the products, and the pool of that, if there is one.

    images: the result's n, oh and ow. x: (stack * tiles, o), as WinogradInput stacks it. part: the
    first tile, of those of all images, and how many; None for all. into: optional, (n, o, oh, ow),
    what the result is where there are other tiles; zeros unless given. mode: of a pool over windows
    of 2 x 2, behind an epilogue, "max" or "average". Result: (n, o, oh, ow), halves of these where
    it is pooled.
    """

    name: ClassVar[str] = "winograd_output"
    inputs: ClassVar[tuple[str, ...]] = ("x", "into")
    optional: ClassVar[tuple[str, ...]] = ("into",)
    updates: ClassVar[str | None] = "into"
    images: tuple[int, int, int] = (1, 1, 1)
    tile: int = 4
    part: Pair | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        winograd(self.tile)
        if self.mode is not None and self.mode not in MODES:
            raise ShapeError(f"{self.name}: mode must be max or average, got {self.mode!r}")
        if len(self.images) != 3 or any(size < 0 for size in self.images):
            raise ShapeError(f"{self.name}: images must be (n, oh, ow), got {self.images}")
        check_part(self.name, self.part)

    @property
    def _tiles(self) -> Pair:
        return -(-self.images[1] // self.tile), -(-self.images[2] // self.tile)

    @property
    def _part(self) -> Pair:
        """The first tile and how many."""
        return part_of(self.name, self.part, self.images[0] * prod(self._tiles))

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(stack * tiles, o)")
        n, oh, ow = self.images
        rows, o = shapes["x"]
        expected = winograd(self.tile).window ** 2 * self._part[1]
        if rows != expected:
            raise ShapeError(f"{self.name}: x must have {expected} rows, got shape {shapes['x']}")
        result = self._pooled((n, o, oh, ow))
        if shapes.get("into", result) != result:
            raise ShapeError(f"{self.name}: into must have shape {result}, got {shapes['into']}")
        return result

    def _pooled(self, shape: Shape) -> Shape:
        return shape if self.mode is None else (*shape[:2], shape[2] // 2, shape[3] // 2)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self._concluded(operands, lambda whole: whole)

    def reference_with_epilogue(
        self, finish: Callable[[Array], Array], *arrays: Array | None
    ) -> tuple[Array, ...]:
        return (self._concluded(self.float_operands(arrays), finish),)

    def _concluded(self, operands: Mapping[str, Array], finish: Callable[[Array], Array]) -> Array:
        """The result; `finish` is done on each image before it is pooled, if it is."""
        x = operands["x"]
        shape = self.shape_of({k: v.shape for k, v in operands.items()})
        (n, oh, ow), o = self.images, x.shape[1]
        form, (down, across), (first, count) = winograd(self.tile), self._tiles, self._part
        both = np.kron(form.result, form.result).astype(x.dtype)
        whole = np.zeros((n, o, down * self.tile, across * self.tile), x.dtype)
        if self.mode is None:
            whole[:, :, :oh, :ow] = operands.get("into", 0)
        tiled = (n, o, down, self.tile, across, self.tile)
        tiles = whole.reshape(tiled).transpose(0, 2, 4, 1, 3, 5).reshape(-1, o, *(self.tile,) * 2)
        made = both @ x.reshape(form.window**2, -1)
        made = made.reshape(self.tile, self.tile, count, o)
        tiles[first : first + count] = made.transpose(2, 3, 0, 1)
        apart = tiles.reshape(n, down, across, o, *(self.tile,) * 2).transpose(0, 3, 1, 4, 2, 5)
        result = finish(np.array(apart.reshape(whole.shape)[:, :, :oh, :ow]))
        if self.mode is None:
            return result
        pooled = Pool2d(self.mode).compute({"x": result})
        own = np.arange(n * down * across).reshape(n, 1, down, 1, across, 1) - first
        there = np.broadcast_to((own >= 0) & (own < count), (n, 1, *tiled[2:]))
        there = there.reshape(n, 1, *whole.shape[2:])[:, :, ::2, ::2][..., : shape[2], : shape[3]]
        return np.where(there, pooled, operands.get("into", np.zeros(shape, x.dtype)))

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        return self._of(shapes, -(-self._part[1] // max(prod(self._tiles), 1)))

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if self.part is not None:
            return None
        op, some = self._of(shapes, count)
        stack = {"x": winograd(self.tile).window ** 2}
        return SampleSubset(op, some, {**dict.fromkeys((*some, "out"), 1), **stack})

    def _of(self, shapes: Shapes, count: int) -> tuple[Operator, dict[str, Shape]]:
        """The same of so many whole images."""
        _, oh, ow = self.images
        rows = winograd(self.tile).window ** 2 * count * prod(self._tiles)
        some: dict[str, Shape] = {"x": (rows, shapes["x"][1])}
        if "into" in shapes:
            some["into"] = (count, *shapes["into"][1:])
        return replace(self, images=(count, oh, ow), part=None), some

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        o = shapes["x"][1]
        made = min(o, FEW + o % 4) if few else o
        own = {name: shapes[name] for name in self.inputs if name in shapes}
        return {**shapes, **{name: (n, made, *size) for name, (n, _, *size) in own.items()}}

    def flops(self, shapes: Shapes) -> int:
        return prod(shapes["x"]) * 2 * self.tile

    def cost_of(self, operands: Operands) -> Cost:
        """Return the cost, which counts only the part of the result that is written."""
        shapes = {name: one.shape for name, one in typed(operands).items()}
        tiles = self.images[0] * prod(self._tiles)
        written = prod(self.shape_of(shapes)) * self._part[1] // max(tiles, 1)
        return Cost(self.flops(shapes), 4 * (prod(shapes["x"]) + written))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        down, across = self._tiles
        sizes = {"n": n, "o": o, "oh": oh, "ow": ow, "tiles_down": down, "tiles_across": across}
        first, count = self._part
        return {**sizes, "tiles": count, "first_tile": first}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"TILE": self.tile, "POOL": 0 if self.mode is None else 1 + MODES.index(self.mode)}

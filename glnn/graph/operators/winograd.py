"""Winograd's convolution F(m x m, 3 x 3): y = A^T [(G g G^T) * (B^T d B)] A.

After Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural Networks". F(4, 3) is taken at
the points 0, +-sqrt(1/2), +-sqrt(2) and infinity: with sums over 256 channels that halves the error
of the usual 0, +-1, +-2 (1.1e-6 against 2.5e-6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod, sqrt
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Cost, Operands, Operator, SampleSubset, Shapes, rank, typed
from glnn.graph.operators import windows
from glnn.graph.operators.pool2d import MODES, Pool2d
from glnn.graph.operators.windows import Pair, Sides

TILES = (2, 4)
FEW_CHANNELS = 8  # channels that suffice to examine a kernel


@dataclass(frozen=True, eq=False)
class Winograd:
    """F(m, 3) along one dimension: `data` is B^T, `kernel` G, `result` A^T; all float64."""

    tile: int
    data: Array
    kernel: Array
    result: Array

    @property
    def window(self) -> int:
        """Width of a tile's patch of the input."""
        return self.tile + 2

    def weights(self, weight: Array) -> Array:
        """Return G g G^T of weights (o, c, 3, 3): (window^2, o, c), in the dtype of `weight`."""
        both = np.kron(self.kernel, self.kernel)
        flat = weight.astype(np.float64, copy=False).reshape(-1, 9).T
        product: Array = (both @ flat).reshape(self.window**2, *weight.shape[:2])
        return product.astype(weight.dtype, copy=False)


@cache
def winograd(tile: int) -> Winograd:
    """Return F(tile, 3). Raises ShapeError for a tile that is not 2 or 4."""
    if tile == 2:
        return _matrices(tile, (0.0, 1.0, -1.0))
    if tile == 4:
        return _matrices(tile, (0.0, sqrt(0.5), -sqrt(0.5), sqrt(2), -sqrt(2)))
    raise ShapeError(f"winograd: the tile must be one of {TILES}, got {tile!r}")


def check_part(op: str, part: tuple[int, int] | None) -> None:
    """Raise ShapeError unless `part` is a first tile and a number of tiles, or None for all."""
    if part is not None and (len(part) != 2 or part[0] < 0 or part[1] < 1):
        raise ShapeError(f"{op}: part must be (first tile, tiles) or None, got {part}")


def part_range(op: str, part: tuple[int, int] | None, tiles: int) -> tuple[int, int]:
    """Return the first tile and the number of tiles of `part`, all `tiles` for None.

    Raises ShapeError for tiles beyond the last.
    """
    first, count = part or (0, tiles)
    if first + count > tiles:
        raise ShapeError(f"{op}: part {part} is beyond the {tiles} tiles")
    return first, count


def _matrices(tile: int, points: tuple[float, ...]) -> Winograd:
    """Return the matrices of Toom and Cook's construction at `points` and infinity."""
    count = len(points)
    data = np.zeros((count + 1, count + 1))
    kernel = np.zeros((count + 1, 3))
    result = np.zeros((tile, count + 1))
    for i, point in enumerate(points):
        others = [p for p in points if p != point]
        scale = float(np.prod([point - p for p in others]))
        data[i, :count] = np.poly(others)[::-1]
        kernel[i] = np.array([1.0, point, point**2]) / scale
        result[:, i] = [point**power for power in range(tile)]
    data[count] = np.poly(points)[::-1]
    kernel[count, 2] = result[tile - 1, count] = 1.0
    return Winograd(tile, data, kernel, result)


@dataclass(frozen=True)
class WinogradInput(HandwrittenOperator):
    """B^T d B of every patch d of x, for a 3 x 3 convolution of stride 1.

    x: (n, c, h, w). Result: (stack * tiles, c), a stack of (tile + 2)^2 matrices with a row for
    each tile and a column for each channel. padding: zeros at the top, left, bottom and right.
    part: the first of the tiles of all images and the number of tiles; None for all.
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
        """Return the first tile and the number of tiles."""
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        return part_range(self.name, self.part, shapes["x"][0] * prod(self.tiles(shapes["x"])))

    def shape_of(self, shapes: Shapes) -> Shape:
        _, count = self._part(shapes)
        return winograd(self.tile).window ** 2 * count, shapes["x"][1]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c, h, w = x.shape
        down, across = self.tiles(x.shape)
        matrices = winograd(self.tile)
        padded = np.zeros((n, c, down * self.tile + 2, across * self.tile + 2), x.dtype)
        top, left = self.padding[:2]
        high, wide = min(h, padded.shape[2] - top), min(w, padded.shape[3] - left)
        padded[:, :, top : top + high, left : left + wide] = x[:, :, :high, :wide]
        shape = (matrices.window, matrices.window)
        patches = np.lib.stride_tricks.sliding_window_view(padded, shape, axis=(2, 3))
        patches = patches[:, :, :: self.tile, :: self.tile].transpose(4, 5, 0, 2, 3, 1)
        both = np.kron(matrices.data, matrices.data).astype(x.dtype)
        stack = both @ patches.reshape(matrices.window**2, -1)
        first, count = self._part({"x": x.shape})
        stack = stack.reshape(matrices.window**2, n * down * across, c)[:, first : first + count]
        return np.ascontiguousarray(stack).reshape(self.shape_of({"x": x.shape}))

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        images = -(-self._part(shapes)[1] // max(prod(self.tiles(shapes["x"])), 1))
        return replace(self, part=None), {**shapes, "x": (images, *shapes["x"][1:])}

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if self.part is not None:
            return None
        subset = {**shapes, "x": (count, *shapes["x"][1:])}
        return SampleSubset(self, subset, {"x": 1, "out": winograd(self.tile).window ** 2})

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, c, *size = shapes["x"]
        return {"x": (n, min(c, FEW_CHANNELS + c % 4) if few else c, *size)}

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


@dataclass(frozen=True)
class WinogradOutput(HandwrittenOperator):
    """A^T m A of every tile m of the products, with an optional 2 x 2 pool behind the epilogue.

    images: the result's n, oh and ow. x: (stack * tiles, o), stacked as by WinogradInput. part: the
    first of the tiles of all images and the number of tiles; None for all. into: optional, of the
    result's shape, the elements of the other tiles; zeros without it. mode: of the pool, "max" or
    "average". Result: (n, o, oh, ow), or (n, o, oh // 2, ow // 2) with a pool.
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
        """The first tile and the number of tiles."""
        return part_range(self.name, self.part, self.images[0] * prod(self._tiles))

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(stack * tiles, o)")
        n, oh, ow = self.images
        rows, o = shapes["x"]
        expected = winograd(self.tile).window ** 2 * self._part[1]
        if rows != expected:
            raise ShapeError(f"{self.name}: x must have {expected} rows, got shape {shapes['x']}")
        result = self._pooled_shape((n, o, oh, ow))
        if shapes.get("into", result) != result:
            raise ShapeError(f"{self.name}: into must have shape {result}, got {shapes['into']}")
        return result

    def _pooled_shape(self, shape: Shape) -> Shape:
        return shape if self.mode is None else (*shape[:2], shape[2] // 2, shape[3] // 2)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self._compute_with(operands, lambda images: images)

    def reference_with_epilogue(
        self, finish: Callable[[Array], Array], *arrays: Array | None
    ) -> tuple[Array, ...]:
        return (self._compute_with(self.float_operands(arrays), finish),)

    def _compute_with(
        self, operands: Mapping[str, Array], finish: Callable[[Array], Array]
    ) -> Array:
        """Compute the result; `finish` is applied to the images before the pool."""
        x = operands["x"]
        shape = self.shape_of({k: v.shape for k, v in operands.items()})
        (n, oh, ow), o = self.images, x.shape[1]
        matrices, (down, across), (first, count) = winograd(self.tile), self._tiles, self._part
        both = np.kron(matrices.result, matrices.result).astype(x.dtype)
        padded = np.zeros((n, o, down * self.tile, across * self.tile), x.dtype)
        if self.mode is None:
            padded[:, :, :oh, :ow] = operands.get("into", 0)
        tiled = (n, o, down, self.tile, across, self.tile)
        tiles = padded.reshape(tiled).transpose(0, 2, 4, 1, 3, 5).reshape(-1, o, *(self.tile,) * 2)
        transformed = both @ x.reshape(matrices.window**2, -1)
        transformed = transformed.reshape(self.tile, self.tile, count, o)
        tiles[first : first + count] = transformed.transpose(2, 3, 0, 1)
        images = tiles.reshape(n, down, across, o, *(self.tile,) * 2).transpose(0, 3, 1, 4, 2, 5)
        result = finish(np.array(images.reshape(padded.shape)[:, :, :oh, :ow]))
        if self.mode is None:
            return result
        pooled = Pool2d(self.mode).compute({"x": result})
        tile_numbers = np.arange(n * down * across).reshape(n, 1, down, 1, across, 1) - first
        in_part = np.broadcast_to((tile_numbers >= 0) & (tile_numbers < count), (n, 1, *tiled[2:]))
        in_part = in_part.reshape(n, 1, *padded.shape[2:])[:, :, ::2, ::2]
        in_part = in_part[..., : shape[2], : shape[3]]
        return np.where(in_part, pooled, operands.get("into", np.zeros(shape, x.dtype)))

    def whole_problem(self, shapes: Shapes) -> tuple[Operator, Shapes]:
        return self._with_images(shapes, -(-self._part[1] // max(prod(self._tiles), 1)))

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if self.part is not None:
            return None
        op, subset = self._with_images(shapes, count)
        stack = {"x": winograd(self.tile).window ** 2}
        return SampleSubset(op, subset, {**dict.fromkeys((*subset, "out"), 1), **stack})

    def _with_images(self, shapes: Shapes, count: int) -> tuple[Operator, dict[str, Shape]]:
        """Return the operator, and its operands' shapes, for all tiles of `count` images."""
        _, oh, ow = self.images
        rows = winograd(self.tile).window ** 2 * count * prod(self._tiles)
        subset: dict[str, Shape] = {"x": (rows, shapes["x"][1])}
        if "into" in shapes:
            subset["into"] = (count, *shapes["into"][1:])
        return replace(self, images=(count, oh, ow), part=None), subset

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        o = shapes["x"][1]
        channels = min(o, FEW_CHANNELS + o % 4) if few else o
        inputs = {name: shapes[name] for name in self.inputs if name in shapes}
        return {**shapes, **{name: (n, channels, *size) for name, (n, _, *size) in inputs.items()}}

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

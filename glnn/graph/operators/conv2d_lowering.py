"""Operators that make a convolution a matrix product: matrices of patches and of weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Constants, Cost, Operator, SampleSubset, Shapes, Types, rank
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides
from glnn.graph.operators.winograd import winograd


@dataclass(frozen=True)
class Im2row(HandwrittenOperator):
    """The elements of x that each window of a convolution meets, 0 outside of the image.

    x: (n, c, h, w). Result: (n * oh * ow, kh * kw * c), channels innermost. into: optional, where
    the result is written to, of its shape; what it held is overwritten.
    """

    name: ClassVar[str] = "im2row"
    inputs: ClassVar[tuple[str, ...]] = ("x", "into")
    optional: ClassVar[tuple[str, ...]] = ("into",)
    updates: ClassVar[str | None] = "into"
    kernel: Pair
    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            kernel=(self.kernel, 2, 1),
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    @property
    def _geometry(self) -> tuple[Pair, Pair, Sides, Pair]:
        return self.kernel, self.stride, self.padding, self.dilation

    def _windows(self, shapes: Shapes) -> Pair:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        _, _, h, w = shapes["x"]
        oh, ow = windows.outputs((h, w), *self._geometry)
        if oh < 1 or ow < 1:
            raise ShapeError(f"im2row: the kernel {self.kernel} is larger than x {shapes['x']}")
        return oh, ow

    def shape_of(self, shapes: Shapes) -> Shape:
        shape = shapes["x"][0] * prod(self._windows(shapes)), prod(self.kernel) * shapes["x"][1]
        if shapes.get("into", shape) != shape:
            raise ShapeError(f"im2row: into must have shape {shape}, got {shapes['into']}")
        return shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c = x.shape[:2]
        out = self._windows({"x": x.shape})
        rows = np.zeros((n, *out, *self.kernel, c), x.dtype)
        for (ky, kx), (ys, xs), met in windows.every_tap(x, out, *self._geometry):
            rows[:, ys, xs, ky, kx] = met.transpose(0, 2, 3, 1)
        return rows.reshape(n * prod(out), prod(self.kernel) * c)

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        some = {"x": (count, *shapes["x"][1:])}
        if "into" in shapes:
            some["into"] = self.shape_of(some)
        return SampleSubset(self, some, dict.fromkeys((*some, "out"), 1))

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, h, w = shapes["x"]
        oh, ow = self._windows(shapes)
        m, k = self.shape_of(shapes)
        return {"n": n, "c": c, "h": h, "w": w, "oh": oh, "ow": ow, "m": m, "k": k}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return windows.defines(*self._geometry)


@dataclass(frozen=True)
class ShiftAdd(HandwrittenOperator):
    """A convolution of stride 1 from what every tap makes of every pixel: Cronin 2018, 2.4.5.

    images: n, h and w of what is convolved. x: (n * h * w, kh * kw * o), output channels innermost.
    Result: (n, o, oh, ow), the sums over the taps that lie inside of the image.
    """

    name: ClassVar[str] = "shift_add"
    images: tuple[int, int, int]
    kernel: Pair
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    def __post_init__(self) -> None:
        windows.check(
            self.name,
            images=(self.images, 3, 0),
            kernel=(self.kernel, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
        )

    @property
    def _geometry(self) -> tuple[Pair, Pair, Sides, Pair]:
        return self.kernel, (1, 1), self.padding, self.dilation

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(n * h * w, kh * kw * o)")
        (n, h, w), (rows, columns) = self.images, shapes["x"]
        if rows != n * h * w or columns % prod(self.kernel):
            raise ShapeError(
                f"shift_add: x must be ({n * h * w}, a multiple of {prod(self.kernel)}), "
                f"got {shapes['x']}"
            )
        oh, ow = windows.outputs((h, w), *self._geometry)
        if oh < 1 or ow < 1:
            raise ShapeError(f"shift_add: the kernel {self.kernel} is larger than {h} x {w}")
        return n, columns // prod(self.kernel), oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, o, oh, ow = self.shape_of({"x": x.shape})
        shares = x.reshape(*self.images, *self.kernel, o).transpose(3, 4, 0, 5, 1, 2)
        out = np.zeros((n, o, oh, ow), x.dtype)
        (top, left, _, _), (down, across) = self.padding, self.dilation
        for ky, kx in np.ndindex(*self.kernel):
            at = ky * down - top, kx * across - left
            (ys, xs), met = windows.taps(shares[ky, kx], at, (oh, ow), (1, 1))
            out[:, :, ys, xs] += met
        return out

    def depth(self, shapes: Shapes) -> int:
        return prod(self.kernel)

    def flops(self, shapes: Shapes) -> int:
        return prod(self.shape_of(shapes)) * prod(self.kernel)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, h, w = self.images
        return {"n": n, "o": o, "h": h, "w": w, "oh": oh, "ow": ow, "pixels": n * oh * ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return windows.defines(*self._geometry)


class _View(HandwrittenOperator):
    """An op that moves nothing."""

    view: ClassVar[bool] = True

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {}


@dataclass(frozen=True)
class Rows(_View):
    """Images x (n, c, h, w) as a matrix (n * h * w, c)."""

    name: ClassVar[str] = "rows"

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        return n * h * w, c

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(-1, x.shape[1])

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return "nhwC4c", "R4"


@dataclass(frozen=True)
class Images(_View):
    """A matrix (n * h * w, c) as images (n, c, h, w); with `transposed` it is (c, n * h * w)."""

    name: ClassVar[str] = "images"
    images: tuple[int, int, int]
    transposed: bool = False

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 2, "(n * h * w, c)")
        n, h, w = self.images
        rows, c = shapes["x"][::-1] if self.transposed else shapes["x"]
        if rows != n * h * w:
            raise ShapeError(f"images: {shapes['x']} is no matrix of {n} images of {h} x {w}")
        return n, c, h, w

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"].T if self.transposed else operands["x"]
        n, h, w = self.images
        return np.ascontiguousarray(x.reshape(n, h, w, x.shape[1]).transpose(0, 3, 1, 2))

    def view_layouts(self, layout: str) -> tuple[str, str]:
        return ("C" if self.transposed else "R4"), "nhwC4c"


@dataclass(frozen=True)
class Zero(HandwrittenOperator):
    """Zeros of `shape` in `layout`, the padding of which is zero too."""

    name: ClassVar[str] = "zero"
    inputs: ClassVar[tuple[str, ...]] = ()
    shape: Shape
    layout: str = "R"

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.shape

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return np.zeros(self.shape, np.float32)

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"count": prod(self.shape)}

    def fixed_layouts(self) -> dict[str, str]:
        return {"out": self.layout}


class _Weights(Operator):
    """Base class of transformations of weights (o, c, kh, kw)."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        return (TensorType(self.transformed_shape(x.shape), x.dtype),)

    @abstractmethod
    def transformed_shape(self, weight: Shape) -> Shape:
        """The result's shape."""

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class KernelRows(_Weights):
    """A row for each output channel, in the order of Im2row's columns: (o, kh kw c)."""

    name: ClassVar[str] = "kernel_rows"
    moves: ClassVar[bool] = True

    def transformed_shape(self, weight: Shape) -> Shape:
        o, c, kh, kw = weight
        return o, kh * kw * c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        rows = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        return (rows.reshape(self.transformed_shape(x.shape)),)


@dataclass(frozen=True)
class TapRows(_Weights):
    """A row for each tap and output channel, these innermost: (kh kw o, c), as kn2row has them."""

    name: ClassVar[str] = "tap_rows"
    moves: ClassVar[bool] = True

    def transformed_shape(self, weight: Shape) -> Shape:
        o, c, kh, kw = weight
        return kh * kw * o, c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        rows = np.ascontiguousarray(x.transpose(2, 3, 0, 1))
        return (rows.reshape(self.transformed_shape(x.shape)),)


@dataclass(frozen=True)
class WinogradWeights(_Weights):
    """G g G^T of every 3 x 3 kernel g: ((tile + 2)^2, o, c). Lavin and Gray 2016, section 4."""

    name: ClassVar[str] = "winograd_weights"
    tile: int

    def __post_init__(self) -> None:
        winograd(self.tile)

    def transformed_shape(self, weight: Shape) -> Shape:
        o, c, _, _ = weight
        return winograd(self.tile).window ** 2, o, c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (winograd(self.tile).weights(self.named(arrays)["x"]),)

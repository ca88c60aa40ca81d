"""Two-dimensional convolution (cross-correlation, as in PyTorch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.gathering import for_shapes
from glnn.graph.operator import Reference, Shapes, Types, rank
from glnn.graph.operators import windows
from glnn.graph.operators.convolving import Convolving
from glnn.graph.operators.correlation import correlated, few_correlated
from glnn.graph.prologue import Prologue
from glnn.symint import common_unit, same
from glnn.types import Array, Shape

FEW = 8  # channels of a result
UNIT = 16  # pixels: as many as one invocation may compute


@dataclass(frozen=True)
class Conv2d(Convolving):
    """The convolution of x by weight; an epilogue does the rest.

    x: (n, c, h, w). weight: (o, c / groups, kh, kw). Result: (n, o, oh, ow).
    """

    name: ClassVar[str] = "conv2d"
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    any_sizes: ClassVar[bool] = True
    halves: ClassVar[tuple[str, ...]] = ("weight",)
    bytes: ClassVar[tuple[str, ...]] = ("weight",)
    groups: int = 1
    exact: bool = False
    """True where sums of whole numbers below 2^24 must be exact, which excludes Winograd
    transforms.
    """
    prologue: Prologue | None = None
    """Work on x before it is convolved: an operand by image has a number for each channel of
    each.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        windows.check(self.name, groups=((self.groups,), 1, 1))

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.convolved(shapes)

    def convolved(self, shapes: Shapes) -> Shape:
        """The shape of the convolution itself. Raises ShapeError where the operands do not fit."""
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 4, "(n, c, h, w)")
        rank(self.name, "weight", weight, 4, "(o, c / groups, kh, kw)")
        (n, c, *_), (o, share, *_) = x, weight
        if c != share * self.groups or o % self.groups:
            raise ShapeError(
                f"{self.name}: x {x} and weight {weight} do not fit {self.groups} groups: "
                f"weight must be (multiple of {self.groups}, {c / self.groups:g}, kh, kw)"
            )
        oh, ow = self.windows(x, weight)
        self.check_prologue(shapes)
        return n, o, oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = self.prepared(operands)
        weight = operands["weight"].astype(x.dtype, copy=False)
        *_, oh, ow = self.convolved({k: v.shape for k, v in operands.items()})
        geometry = self.stride, self.padding, self.dilation, self.groups
        return correlated(x, weight, (oh, ow), *geometry)

    def specialize(self, types: Types) -> Reference:
        given = self.named(types)
        x, weight = given["x"], given["weight"]
        if self.prologue is not None or x.dtype is not weight.dtype:
            return self.reference
        geometry = self.stride, self.padding, self.dilation, self.groups

        def convolve(x: Array, weight: Array) -> tuple[Array, ...]:
            return (correlated(x, weight, self.windows(x.shape, weight.shape), *geometry),)

        def of_shapes(x: Array, weight: Array) -> Reference:
            out = self.windows(x.shape, weight.shape)
            few = few_correlated(x.shape, weight.shape, out, *geometry, x.dtype)
            if few is not None:
                return lambda x, weight: (few(x, weight),)
            return lambda x, weight: (correlated(x, weight, out, *geometry),)

        return for_shapes(convolve, of_shapes)

    def flops(self, shapes: Shapes) -> int:
        out = self.convolved(shapes)
        return prod(out) * 2 * prod(shapes["weight"][1:]) + self.prologue_flops(shapes)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, o, oh, ow = self.shape_of(shapes)
        _, c, h, w = shapes["x"]
        o_group, pixels, depth = o // self.groups, n * oh * ow, self.depth(shapes)
        sizes = {"n": n, "c": c, "h": h, "w": w, "o": o, "oh": oh, "ow": ow}
        sizes |= {"groups": self.groups, "o_group": o_group, "pixels": pixels, "depth": depth}
        return sizes | {"taps": prod(shapes["weight"][2:])}

    def product(self, shapes: Shapes) -> tuple[int, int]:
        n, o, oh, ow = self.convolved(shapes)
        return n * oh * ow, o // self.groups

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """The kernel's size; the pixels that a window spans, down or across; the greatest powers of
        two, up to 16, that divide a row and a plane of the result; whether pixels that follow one
        another meet inputs that do, across rows too; whether whole numbers must be exact; a
        group's channels, and whether they end within a quad.
        """
        *_, oh, ow = self.shape_of(shapes)
        kernel_h, kernel_w = shapes["weight"][2:]
        along = zip((kernel_h, kernel_w), self.dilation, strict=True)
        return {
            "kernel_h": kernel_h,
            "kernel_w": kernel_w,
            "window": max((k - 1) * d + 1 for k, d in along),
            "row_unit": common_unit(ow, UNIT),
            "plane_unit": common_unit(oh * ow, UNIT),
            "follows": int(self.stride == (1, 1) and same(ow, shapes["x"][3])),
            "exact": int(self.exact),
            "share": shapes["weight"][1],
            "ragged": int(shapes["weight"][1] % 4 > 0),
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        o, share, *_ = weight = shapes["weight"]
        whole = self.groups == 1 or (share % 4 == 0 and o // self.groups % 4 == 0)
        return {
            **self.window_defines(weight),
            "GROUPS": self.groups,
            "WHOLE_QUADS": int(whole),
            "PADDED": int(any(self.padding)),
            "DEPTHWISE": int(self.groups == shapes["x"][1] == o),
        }

    def depth(self, shapes: Shapes) -> int:
        return prod(shapes["weight"][1:])

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, _, h, w = shapes["x"]
        o, share, *kernel = shapes["weight"]
        least = -(-depth // prod(kernel))
        made = least + (share - least) % 4 if share > 1 else 1  # a whole quad or not, as before
        o_made = min(o, FEW + o % 4) if few and self.groups == 1 else o
        found = self.with_x(shapes, (n, made * self.groups, h, w))
        return {**found, "weight": (o_made, made, *kernel)}

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *size = shapes["x"]
        fewer = windows.shrink_sizes(size, self.convolved(shapes)[2:], self.stride)
        return self.with_x(shapes, (n, c, *fewer))

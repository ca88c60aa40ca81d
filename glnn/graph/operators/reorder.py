"""Changes of layout: what a plan inserts between kernels that disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from glnn.core.layout import Layout, Morton, parse
from glnn.core.layout.layout import Blocked, RowMajor
from glnn.core.symint import same
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Constants, Cost, Operator, Shapes, Types
from glnn.graph.operators.move import Pad, Slice, Transpose
from glnn.graph.operators.views import Reshape

LEVELS = 4  # that a shader takes


@dataclass(frozen=True)
class Reorder(HandwrittenOperator):
    """A change of layout: x, unchanged, from the layout `source` to the layout `target`.

    x: (n, c), between row major and Morton layouts, or (n, c, h, w).
    """

    name: ClassVar[str] = "reorder"
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    source: str
    target: str

    def __post_init__(self) -> None:
        parse(self.source), parse(self.target)

    @property
    def is_matrix(self) -> bool:
        """True where both layouts are of matrices, with at most LEVELS levels of tiling."""
        return all(_levels(parse(text)) is not None for text in (self.source, self.target))

    def shape_of(self, shapes: Shapes) -> Shape:
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return operands["x"]

    def flops(self, shapes: Shapes) -> int:
        return 0

    def fixed_layouts(self) -> Mapping[str, str]:
        return {"x": self.source, "out": self.target}

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = shapes["x"]
        return dict(zip("nchw", x, strict=False), count=prod(x))

    def defines(self, shapes: Shapes) -> dict[str, int]:
        if not self.is_matrix or len(shapes["x"]) != 2:
            return {}
        defines: dict[str, int] = {}
        for role, text in (("SOURCE", self.source), ("TARGET", self.target)):
            levels = _levels(parse(text)) or []
            for i, (base, high, wide) in enumerate(levels + [(0, 1, 1)] * (LEVELS - len(levels))):
                defines[f"{role}_BASE_{i}"] = base
                if i < LEVELS - 1:
                    defines[f"{role}_HIGH_{i}"] = high
                    defines[f"{role}_WIDE_{i}"] = wide
        return defines


def packing(shape: Shape, layout: Morton | Blocked) -> tuple[Operator, ...]:
    """Operators, one after another, whose result in row major order is an array in `layout`.

    shape: of the array, which is row major before; of a stack of matrices (..., n, c) too.
    """
    sizes, order = layout.axes(shape)
    stored = layout.padded(shape)
    padded = (*shape[: len(shape) - len(stored)], *stored)
    more = tuple(whole - size for whole, size in zip(padded, shape, strict=True))
    around = () if same(stored, shape[-len(stored) :]) else (Pad((0,) * len(shape), more),)
    return (*around, Reshape(tuple(sizes), True), Transpose(tuple(order)))


def unpacking(shape: Shape, layout: Morton | Blocked) -> tuple[Shape, tuple[Operator, ...]]:
    """The way back from `packing`: what the memory is in row major order, and the operators.

    shape: of the array, which is row major after.
    """
    sizes, order = layout.axes(shape)
    stored = layout.padded(shape)
    padded = (*shape[: len(shape) - len(stored)], *stored)
    rank = len(shape)
    back = Transpose(tuple(sorted(range(len(order)), key=order.__getitem__)))
    cut = Slice((0,) * rank, shape, tuple(range(rank)), (1,) * rank)
    around = () if same(padded, shape) else (cut,)
    return tuple(sizes[axis] for axis in order), (back, Reshape(padded, True), *around)


def repadding(shape: Shape, source: RowMajor, layout: RowMajor) -> tuple[Shape, Operator]:
    """Return a shape and an operator that change the padding of the rows of an array of `shape`
    from the layout `source` to `layout`.

    That is the shape of the dense matrix that the array's memory is, padding included, and the
    operator whose result for it, dense too, is the memory of the array in `layout`.
    """
    rows, before, after = layout.rows(shape), source.row(shape), layout.row(shape)
    if source.alignment < layout.alignment:
        return (rows, before), Pad((0, 0), (0, after - before))
    return (rows, before), Slice((0,), (after,), (1,), (1,))


def _levels(layout: Layout) -> list[tuple[int, int, int]] | None:
    """Return each level's base (0 R, 1 C) and the size of its chunks; None where no shader takes
    the layout.
    """
    if isinstance(layout, RowMajor):
        return [(0, 1, 1)]
    if not isinstance(layout, Morton) or len(layout.bases) > LEVELS:
        return None
    return [
        ("RC".index(base), high, wide)
        for base, (high, wide) in zip(layout.bases, (*layout.chunks, (1, 1)), strict=True)
    ]


PACKED = (DType.uint8, DType.int8, DType.bool)


@dataclass(frozen=True)
class Pack(Operator):
    """x as it is, each number of which takes a word on a GPU before, and a byte then.

    x: uint8, int8 or bool, any shape. What comes back to the host is a quarter by it.
    """

    name: ClassVar[str] = "pack"
    passes: ClassVar[tuple[str, ...]] = ("x",)

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        if x.dtype not in PACKED:
            raise ShapeError(f"pack: x must be of 8 bits a number, got {x}")
        return (x,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.named(arrays)["x"].copy(),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 5 * prod(self.named(types)["x"].shape))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"fours": -(-prod(shapes["x"]) // 4)}

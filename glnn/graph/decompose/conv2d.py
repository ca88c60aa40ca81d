"""Convolution in stages: Winograd, and the ways that go by a patch matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from glnn.graph.decompose.stage import Derived, Lowered, Stage
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.conv2d import Conv2d, PooledConv2d
from glnn.graph.operators.conv2d_gradients import Conv2dInputGradient, Conv2dWeightGradient
from glnn.graph.operators.conv2d_lowering import (
    Im2row,
    Images,
    KernelRows,
    Rows,
    ShiftAdd,
    TapRows,
    WinogradWeights,
    Zero,
)
from glnn.graph.operators.matmul import Matmul
from glnn.graph.operators.move import Pad, Rearrange
from glnn.graph.operators.reductions import Reduce
from glnn.graph.operators.reorder import Reorder
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput, winograd

ROOM = 1 << 20  # numbers of the parts of a gradient by a weight
MORTON = "R 2 4 R"  # of the patches and the result (the weights: C 4 2 C, transposed)


def by_winograd(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Return F(TILE x TILE, 3 x 3) of Lavin and Gray 2016: transform, (TILE + 2)^2 products,
    transform.

    PARTS: of the tiles, one after the other in the same memory, where there are as many tiles.
    """
    assert isinstance(op, Conv2d)
    form, out = winograd(parameters["TILE"]), op.shape_of(shapes)
    n, o, oh, ow = op.convolved(shapes)
    mode = op.mode if isinstance(op, PooledConv2d) else None
    weight = (form.window**2, o, shapes["weight"][1])
    tiles = n * -(-oh // form.tile) * -(-ow // form.tile)
    count = min(parameters["PARTS"], tiles)
    stages = [] if count < 2 else [Stage("room", Zero(out, "nhwC4c"), {}, "flat")]
    for i in range(count):
        first, end = i * tiles // count, (i + 1) * tiles // count
        part, whole = ((first, end - first), f" {i + 1}") if count > 1 else (None, "")
        ahead = WinogradInput(form.tile, op.padding, part)
        back = WinogradOutput((n, oh, ow), form.tile, part, mode)
        reads = {"x": f"products{whole}", **({"into": stages[-1].name} if stages else {})}
        stages += [
            Stage(f"tiles{whole}", ahead, {"x": "x"}),
            Stage(f"products{whole}", Matmul(), {"x": f"tiles{whole}", "weight": "transformed"}),
            Stage(f"result{whole}", back, reads, finishes=True),
        ]
    return Lowered(
        tuple(stages), {"transformed": Derived("weight", weight, WinogradWeights(form.tile))}
    )


def by_product(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """A 1 x 1 convolution of stride 1: the pixels' channels by the weights."""
    assert isinstance(op, Conv2d)
    n, _, h, w = op.shape_of(shapes)
    beside = {name: f"{name} rows" if name in op.by_image() else name for name in op.beside}
    operands = {"x": "rows", "weight": "matrix", **beside}
    return Lowered(
        (
            Stage("rows", Rows(), {"x": "x"}),
            *(Stage(beside[name], Rows(), {"x": name}) for name in op.by_image()),
            Stage("product", Matmul(op.prologue), operands, finishes=True),
            Stage("result", Images((n, h, w)), {"x": "product"}),
        ),
        {"matrix": _matrix(shapes)},
    )


def by_im2col(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Rovder 2019, section 5.2: padding, zeroing, im2col, the Morton 4-2 product, step by step."""
    assert isinstance(op, Conv2d)
    n, _, oh, ow = op.shape_of(shapes)
    kernel = shapes["weight"][2:]
    rows, depth = n * oh * ow, prod(shapes["weight"][1:])
    gather = Im2row((kernel[0], kernel[1]), op.stride, (0, 0, 0, 0), op.dilation)
    top, left, bottom, right = op.padding
    return Lowered(
        (
            Stage("padding", Pad((0, 0, top, left), (0, 0, bottom, right)), {"x": "x"}, "images"),
            Stage("zeroing", Zero((rows, depth), MORTON), {}, "flat"),
            Stage("im2col", gather, {"x": "padding", "into": "zeroing"}, "morton_2_4"),
            Stage("product", Matmul(), {"x": "im2col", "weight": "matrix"}, "morton_4_2", True),
            Stage("rows", Reorder(MORTON, "R4"), {"x": "product"}),
            Stage("result", Images((n, oh, ow)), {"x": "rows"}),
        ),
        {"matrix": _matrix(shapes)},
    )


def by_im2row(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Cronin 2018, section 4.1.3: im2row, then one of three products.

    ORDER 0 is ab-ik (the patches by the kernels), 1 abt-ik (by the kernels, stored transposed), and
    2 abt-ki (the kernels by the transposed patches).
    """
    order = parameters["ORDER"]
    return _patches(op, shapes, order == 2, "rows", "blocked_nt" if order else "blocked_nn")


def by_patches(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """The same with any kernels.

    KERNELS_FIRST: the kernels by the patches, which gives the transposed result.
    """
    return _patches(op, shapes, bool(parameters["KERNELS_FIRST"]))


def by_kn2row(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Cronin 2018, section 2.4.5, for stride 1: kernels as rows, and a post-pass shift add.

    The products of every tap's 1 x 1 slice by all pixels are one, of kh * kw * o columns.
    """
    assert isinstance(op, Conv2d)
    n, _, h, w = shapes["x"]
    o, c, kh, kw = shapes["weight"]
    add = ShiftAdd((n, h, w), (kh, kw), op.padding, op.dilation)
    return Lowered(
        (
            Stage("rows", Rows(), {"x": "x"}),
            Stage("product", Matmul(), {"x": "rows", "weight": "matrix"}),
            Stage("result", add, {"x": "product"}, "nhwc", True),
        ),
        {"matrix": Derived("weight", (kh * kw * o, c), TapRows())},
    )


def by_weight_parts(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Return at most PARTS parts of a gradient by a weight, computed in parallel, of LEAST pixels
    or more, and their sum.
    """
    assert isinstance(op, Conv2dWeightGradient)
    room = ROOM // prod(op.shape_of(shapes))
    parts = max(min(parameters["PARTS"], room, op.depth(shapes) // parameters["LEAST"]), 1)
    return Lowered(
        (
            Stage("parts", replace(op, parts=parts), {"x": "x", "dy": "dy"}),
            Stage("result", Reduce("sum", (0,)), {"x0": "parts"}),
        )
    )


def by_turned_convolution(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """A convolution of the gradient by the result, where that has strides of 1.

    Its weight is the other one upside down and inside out, with inputs for outputs.
    """
    assert isinstance(op, Conv2dInputGradient)
    shape = shapes["weight"]
    o, c, kh, kw = (Axis(size, axis) for axis, size in enumerate(shape))
    turned = tuple(Axis(one.size, one.axis, one.size - 1, -1) for one in (kh, kw))
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, shape[2:], strict=True))
    top, left, bottom, right = (r - p for r, p in zip(2 * reach, op.padding, strict=True))
    convolution = Conv2d(padding=(top, left, bottom, right), dilation=op.dilation)
    moved = Rearrange(shape, ((c,), (o,), *((one,) for one in turned)))
    stage = Stage("result", convolution, {"x": "dy", "weight": "turned"}, finishes=True)
    derived = Derived("weight", (shape[1], shape[0], *shape[2:]), moved)
    return Lowered((stage,), {"turned": derived})


def _patches(
    op: Operator,
    shapes: Shapes,
    first: bool,
    gather: str | None = None,
    product: str | None = None,
) -> Lowered:
    """The patches by the kernels or, where these come `first`, the other way round.

    gather, product: the kernels that these stages take.
    """
    assert isinstance(op, Conv2d)
    n, _, oh, ow = op.shape_of(shapes)
    kernel = shapes["weight"][2:]
    im2row = Im2row((kernel[0], kernel[1]), op.stride, op.padding, op.dilation)
    factors = ("matrix", "im2row") if first else ("im2row", "matrix")
    operands = dict(zip(("x", "weight"), factors, strict=True))
    turned = [Stage("transposition", Reorder("R4", "C"), {"x": "product"})] if first else []
    whole = "transposition" if first else "product"
    return Lowered(
        (
            Stage("im2row", im2row, {"x": "x"}, gather),
            Stage("product", Matmul(), operands, product, finishes=True),
            *turned,
            Stage("result", Images((n, oh, ow), first), {"x": whole}),
        ),
        {"matrix": _matrix(shapes)},
    )


def _matrix(shapes: Shapes) -> Derived:
    """The weights with a row for each output channel, in the order of Im2row's columns."""
    o, c, kh, kw = shapes["weight"]
    return Derived("weight", (o, kh * kw * c), KernelRows())

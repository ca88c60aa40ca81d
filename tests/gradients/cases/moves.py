"""Moves of numbers."""

from __future__ import annotations

from glnn.graph.index_map import Axis
from glnn.graph.operators import (
    Concat,
    Expand,
    Flip,
    Pad,
    Rearrange,
    Roll,
    Slice,
    Split,
    Tile,
    Transpose,
)
from tests.gradients.case import Case

WHOLE = 2**31 - 1

CASES = [
    Case("transpose", Transpose((2, 0, -2)), ((3, 7, 5),), torch=lambda t, x: x.permute(2, 0, 1)),
    Case("transpose large", Transpose((1, 0)), ((127, 129),), large=True),
    Case("transpose none", Transpose(()), ((),)),
    Case("expand", Expand((3, 7, 5)), ((7, 1),), torch=lambda t, x: x.expand(3, 7, 5)),
    Case("expand nothing", Expand((3,)), ((),)),
    Case("expand to nothing", Expand((0, 3)), ((1, 3),)),
    Case("slice", Slice((1, 2), (3, 7), (0, 2), (1, 1)), ((5, 3, 7),)),
    Case(
        "slice in steps",
        Slice((1, 0), (11, 7), (0, 1), (3, 2)),
        ((13, 7, 2),),
        torch=lambda t, x: x[1:11:3, :7:2],
    ),
    Case("slice to the end", Slice((2,), (WHOLE,), (-1,), (5,)), ((3, 13),)),
    Case("slice backwards", Slice((-1, 5), (-WHOLE, 0), (0, 1), (-1, -2)), ((3, 7),)),
    Case("slice backwards in steps", Slice((11,), (-14,), (0,), (-4,)), ((13, 3),)),
    Case("slice of one", Slice((4,), (5,), (0,), (7,)), ((5, 3),)),
    Case("slice of nothing", Slice((4,), (2,), (0,), (1,)), ((5, 3),)),
    Case("flip", Flip((0, -1)), ((3, 5, 7),), torch=lambda t, x: x.flip(0, -1)),
    Case("roll", Roll((2, -3), (0, 1)), ((5, 7),), torch=lambda t, x: x.roll((2, -3), (0, 1))),
    Case("pad", Pad((1, 0), (2, 3), fill=5.0), ((3, 7),)),
    Case("pad and crop", Pad((-1, 2), (1, -3)), ((3, 7),)),
    Case("crop all but one", Pad((-7, 0), (3, 0)), ((5, 3),)),
    Case(
        "pad by edges",
        Pad((0, 0, 2, 3), (0, 0, 4, 1), "edge"),
        ((1, 2, 3, 5),),
        torch=lambda t, x: t.nn.functional.pad(x, (3, 1, 2, 4), "replicate"),
    ),
    Case(
        "pad by reflection",
        Pad((0, 0, 2, 3), (0, 0, 1, 4), "reflect"),
        ((1, 2, 3, 5),),
        torch=lambda t, x: t.nn.functional.pad(x, (3, 4, 2, 1), "reflect"),
    ),
    Case(
        "pad around",
        Pad((0, 0, 2, 3), (0, 0, 1, 5), "wrap"),
        ((1, 2, 3, 5),),
        torch=lambda t, x: t.nn.functional.pad(x, (3, 5, 2, 1), "circular"),
    ),
    Case("pad by edges and crop", Pad((-2, 40), (3, -1), "edge"), ((7, 3),)),
    Case("tile", Tile((2, 1, 3)), ((3, 5, 2),), torch=lambda t, x: x.repeat(2, 1, 3)),
    Case("tile to nothing", Tile((0, 2)), ((3, 5),)),
    Case(
        "rearrange", Rearrange((6, 5), ((Axis(5, 1),), (Axis(2, 0, 0, 3), Axis(3, 0)))), ((6, 5),)
    ),
    Case("rearrange again", Rearrange((6,), ((Axis(2), Axis(3, 0, 4, -2)), (Axis(2),))), ((6,),)),
    Case("rearrange beyond", Rearrange((6,), ((Axis(8, 0),),)), ((6,),)),
    Case(
        "concat",
        Concat(-1),
        ((3, 5), (3, 1), (3, 7)),
        torch=lambda t, *x: t.cat(x, -1),
    ),
    Case("concat with nothing", Concat(0), ((3, 5), (0, 5))),
    Case("split", Split((2, 0, 5), 1), ((3, 7),)),
    Case("split once", Split((3,)), ((3, 7),)),
]

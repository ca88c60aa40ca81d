"""Pools."""

from __future__ import annotations

from glnn.graph.operators import Pool2d
from tests.gradients.case import Case

SAME = {"padding": (1, 1, 1, 1)}
CASES = [
    Case(
        "max pool",
        Pool2d(),
        ((2, 3, 7, 7),),
        torch=lambda t, x: t.nn.functional.max_pool2d(x, 2),
    ),
    Case(
        "max pool, overlapping",
        Pool2d("max", (3, 2), (2, 1), (1, 1, 1, 1)),
        ((2, 3, 9, 8),),
        torch=lambda t, x: t.nn.functional.max_pool2d(x, (3, 2), (2, 1), 1),
    ),
    Case(
        "max pool, ceil mode",
        Pool2d("max", (3, 3), (2, 3), ceil_mode=True),
        ((1, 5, 8, 7),),
        torch=lambda t, x: t.nn.functional.max_pool2d(x, 3, (2, 3), ceil_mode=True),
    ),
    Case(
        "max pool, dilated",
        Pool2d("max", (3, 2), (1, 2), dilation=(2, 3)),
        ((2, 3, 11, 9),),
        torch=lambda t, x: t.nn.functional.max_pool2d(x, (3, 2), (1, 2), 0, (2, 3)),
    ),
    Case(
        "average pool",
        Pool2d("average", (3, 3), (2, 2), **SAME),
        ((1, 4, 6, 7),),
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1),
    ),
    Case(
        "average pool, pads not counted",
        Pool2d("average", (3, 3), (2, 2), count_include_pad=False, **SAME),
        ((1, 4, 6, 7),),
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    Case(
        "average pool, ceil mode",
        Pool2d("average", (2, 2), (3, 3), ceil_mode=True, **SAME),
        ((1, 4, 6, 6),),
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, 2, 3, 1, ceil_mode=True),
    ),
    Case(
        "average pool, divisor",
        Pool2d("average", (3, 2), (2, 1), divisor=7, **SAME),
        ((2, 5, 7, 6),),
        torch=lambda t, x: t.nn.functional.avg_pool2d(x, (3, 2), (2, 1), 1, divisor_override=7),
    ),
    Case(
        "global average",
        Pool2d("average", None),
        ((2, 3, 5, 7),),
        torch=lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1),
    ),
    Case(
        "global maximum",
        Pool2d("max", None),
        ((2, 3, 5, 7),),
        torch=lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 1),
    ),
    Case(
        "adaptive average",
        Pool2d("average", None, output=(3, 4)),
        ((2, 3, 7, 10),),
        torch=lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, (3, 4)),
    ),
    Case(
        "adaptive maximum",
        Pool2d("max", None, output=(3, 4)),
        ((2, 3, 7, 10),),
        torch=lambda t, x: t.nn.functional.adaptive_max_pool2d(x, (3, 4)),
    ),
    Case(
        "more windows than rows",
        Pool2d("average", None, output=(5, 3)),
        ((1, 2, 2, 13),),
        torch=lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, (5, 3)),
    ),
]

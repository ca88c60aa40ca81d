"""Views."""

from __future__ import annotations

from glnn.graph.interval import Interval
from glnn.graph.operators import (
    Flatten,
    Identity,
    Images,
    Reorder,
    Reshape,
    Rows,
    Squeeze,
    Unflatten,
    Unsqueeze,
    Within,
)
from tests.gradients.case import Case

CASES = [
    Case("reshape", Reshape((7, -1)), ((3, 7, 1),), torch=lambda t, x: x.reshape(7, -1)),
    Case("reshape kept", Reshape((0, 1, 6)), ((2, 3, 2),)),
    Case("reshape empty", Reshape((0, 3), True), ((3, 0),)),
    Case("flatten", Flatten(), ((3, 7, 1, 2),), torch=lambda t, x: x.flatten(1)),
    Case("unflatten", Unflatten(1, (7, -1)), ((3, 21),)),
    Case("squeeze", Squeeze((1,)), ((3, 1, 5),)),
    Case("squeeze all", Squeeze(), ((1, 1),)),
    Case("unsqueeze", Unsqueeze((0, 2)), ((3, 5),), torch=lambda t, x: x[None, :, None]),
    Case("identity", Identity(), ((5,),)),
    Case("within", Within(Interval(-10, 10)), ((5,),)),
    Case("rows", Rows(), ((2, 3, 5, 7),)),
    Case("images", Images((2, 5, 7)), ((70, 3),)),
    Case("images transposed", Images((2, 5, 7), True), ((3, 70),)),
    Case("reorder", Reorder("R", "C 4 2 C"), ((3, 5),)),
]

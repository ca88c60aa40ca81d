"""Pointwise work: how operands broadcast, and expressions of several calls."""

from __future__ import annotations

import numpy as np

from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import Pointwise
from tests.gradients.case import Case

MASK = np.array([True, False, True, True, False, True, False])


def _long() -> Pointwise:
    """Whose derivative has more calls than an expression may have."""
    expr = Arg(0)
    for i in range(9):
        expr = call("mul", call("sin", expr), call("add", Arg(1 + i % 4), 0.1 * i))
    return Pointwise(call("add", expr, call("gelu_tanh", Arg(0))))


CASES = [
    Case("add", Pointwise(formula("a + b")), ((3, 7), (7,)), torch=lambda t, a, b: a + b),
    Case("sub", Pointwise(formula("a - b")), ((3, 1, 5), (7, 1)), torch=lambda t, a, b: a - b),
    Case("mul", Pointwise(formula("a * b")), ((3, 7), ()), torch=lambda t, a, b: a * b),
    Case("square by itself", Pointwise(formula("a * a")), ((5,),)),
    Case("to the result", Pointwise(formula("relu(a - b)")), ((3, 7), (3, 1))),
    Case("masked", Pointwise(formula("where(a, b, 2.0 * c)")), (MASK, (3, 7), (1,))),
    Case("cast", Pointwise(formula("cast_float32(a) * b")), (MASK, (3, 7))),
    Case("long", _long(), ((5,), (3, 1), (5,), (), (3, 5))),
    Case("leaky", Pointwise(call("leaky_relu", Arg(0), 0.1)), ((7,),)),
    Case("elu", Pointwise(call("elu", Arg(0), 1.3)), ((7,),)),
    Case("nothing", Pointwise(formula("a * b")), ((0, 7), (7,))),
]

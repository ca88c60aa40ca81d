"""Reductions."""

from __future__ import annotations

import numpy as np

from glnn.graph.expression import formula
from glnn.graph.operators import CumSum, Reduce
from tests.gradients.case import Case

TIED = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [0, -1, -1, -2]], np.float32)
ZEROS = np.array([[2, 0, -3, 0.5], [0, 4, 0, 1], [1, -2, 3, 0.25]], np.float32)

CASES = [
    Case("sum", Reduce("sum", (1,)), ((3, 7, 5),), torch=lambda t, x: x.sum(1)),
    Case("sum kept", Reduce("sum", (-1, 0), True), ((3, 7, 5),)),
    Case("sum of all", Reduce("sum", (0, 1)), ((7, 129),), large=True),
    Case("sum of one", Reduce("sum", ()), ((7,),)),
    Case("sum of nothing", Reduce("sum", (0,)), ((0, 3),)),
    Case("mean", Reduce("mean", (1,)), ((3, 7),), torch=lambda t, x: x.mean(1)),
    Case("mean of 127", Reduce("mean", (0,)), ((127, 1),)),
    Case("mean counted", Reduce("mean", (0,), count=20), ((5, 2),)),
    Case(
        "sum of products",
        Reduce("sum", (1,), False, formula("a * b")),
        ((3, 7, 5), (7, 1)),
        torch=lambda t, x, y: (x * y).sum(1),
    ),
    Case("sum of sums", Reduce("sum", (0,), False, formula("a + b")), ((3, 7), (7,))),
    Case(
        "norm",
        Reduce("sum", (1,), True, formula("square(a)"), formula("sqrt(a)")),
        ((3, 7, 5),),
        torch=lambda t, x: x.square().sum(1, keepdim=True).sqrt(),
    ),
    Case(
        "variance",
        Reduce("mean", (-1,), True, formula("square(a - b)"), formula("log(a + 0.5)")),
        ((3, 7), (3, 1)),
    ),
    Case("max", Reduce("max", (1,)), ((3, 7, 5),), torch=lambda t, x: x.amax(1)),
    Case(
        "min of all",
        Reduce("min", (0, 1), True),
        ((3, 7),),
        torch=lambda t, x: x.amin((0, 1))[None],
    ),
    Case("max of one", Reduce("max", (0,)), ((1, 7),)),
    Case("max of absolutes", Reduce("max", (-1,), False, formula("abs(a)")), ((3, 129),)),
    Case("max of products", Reduce("max", (1,), False, formula("a * b")), ((3, 7), (3, 1))),
    Case("prod", Reduce("prod", (1,)), ((3, 4),), torch=lambda t, x: x.prod(1)),
    Case("prod with zeros", Reduce("prod", (1,)), (ZEROS,), torch=lambda t, x: x.prod(1)),
    Case("prod of all", Reduce("prod", (0, 1), False, formula("a * b")), ((2, 3), (3,))),
    Case("log sum", Reduce("sum", (0,), False, formula("exp(a)"), formula("log(a)")), ((5, 3),)),
    Case("prod finished", Reduce("prod", (0,), True, formula("a"), formula("exp(a)")), ((3, 2),)),
    Case("cumulated", CumSum(1), ((3, 7),), torch=lambda t, x: x.cumsum(1)),
    Case("cumulated, exclusive", CumSum(0, True), ((5, 2),)),
    Case("cumulated backwards", CumSum(-1, False, True), ((2, 3, 5),)),
    Case("cumulated backwards, exclusive", CumSum(0, True, True), ((4,),)),
    Case(
        "products cumulated",
        CumSum(1, multiply=True),
        (ZEROS,),
        torch=lambda t, x: x.cumprod(1),
    ),
    Case("products cumulated, exclusive", CumSum(0, True, False, True), ((4, 3),)),
    Case("products cumulated backwards", CumSum(1, False, True, True), ((2, 3, 2),)),
    Case("products cumulated backwards, exclusive", CumSum(0, True, True, True), ((4,),)),
]

KINKS = [
    Case("max shared", Reduce("max", (1,)), (TIED,), torch=lambda t, x: x.amax(1)),
    Case("min shared", Reduce("min", (0,)), (TIED,), torch=lambda t, x: x.amin(0)),
    Case(
        "norm of zeros",
        Reduce("sum", (0,), False, formula("abs(a)")),
        (np.zeros(3, np.float32),),
        torch=lambda t, x: x.abs().sum(0),
    ),
]

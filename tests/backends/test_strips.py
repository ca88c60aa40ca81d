"""Kernels that read and write some channels of wider images: what is beside them stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Matmul,
    Pointwise,
    Pool2d,
    Slice,
    WinogradInput,
    WinogradOutput,
)
from glnn.kernels import kernels_for
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, run

Array = np.ndarray[Any, Any]
Made = tuple[Operator, dict[str, Array], Array]
STARTS = [(0, 0), (0, 8), (4, 0), (16, 12)]
"""Numbers of a pixel before a strip, and those behind it."""


def strip(array: Array, layout: str, start: int, behind: int) -> str:
    """Such a layout for `array`."""
    return f"{layout} {start}/{start + -(-array.shape[1] // 4) * 4 + behind}"


def conv(rng: Any, kernel: str, c: int) -> Made:
    o, groups = 8, 1
    if kernel.startswith("depthwise"):
        o = groups = c
    if kernel.startswith("grouped_nhwc"):
        groups = c + 1
        c, o = 4 * groups, 8 * groups
    x, weight, bias = rng((2, c, 5, 7)), rng((o, c // groups, 3, 3)), rng((o,))
    stride = (1, 1) if "columns" in kernel else (1, 2)
    how: dict[str, Any] = {"stride": stride, "padding": (1, 1, 1, 0), "groups": groups}
    expected = oracle.conv2d(x, weight, bias, function="relu", **how)
    return Conv2d(**how), {"x": x, "weight": weight, "e1": bias}, expected


def product(rng: Any, kernel: str, c: int) -> Made:
    x, weight, bias = rng((35, c)), rng((12, c)), rng((12,))
    return (
        Matmul(),
        {"x": x, "weight": weight, "e1": bias},
        oracle.matmul(x, weight, bias, function="relu"),
    )


def pool(rng: Any, kernel: str, c: int) -> Made:
    x = rng((2, c, 6, 5))
    if kernel == "nhwc_global":
        return Pool2d("average", None), {"x": x}, oracle.pool2d(x, "average", (6, 5), (1, 1))
    stride = (1, 1) if kernel == "nhwc_columns" else (1, 2)
    how: dict[str, Any] = {"kernel": (3, 2), "stride": stride, "padding": (1, 0, 0, 1)}
    return Pool2d("max", **how), {"x": x}, oracle.pool2d(x, "max", **how)


def transformed(rng: Any, kernel: str, c: int) -> Made:
    tile, x = int(kernel.split("_")[1]), rng((2, c, 5, 7))
    padding = (1, 1, 1, 1)
    return WinogradInput(tile, padding), {"x": x}, oracle.winograd_input(x, tile, padding)


def transformed_back(rng: Any, kernel: str, c: int) -> Made:
    images, tile = (2, 5, 7), 4
    x, bias = rng((36 * 8, 8)), rng((8,))
    whole = oracle.bias(oracle.winograd_output(x, images, tile), bias)
    return WinogradOutput(images, tile), {"x": x, "e1": bias}, np.maximum(whole, 0)


def pointwise(rng: Any, kernel: str, c: int) -> Made:
    x, scale, other = rng((2, c, 3, 5)), rng((c, 1, 1)), rng((2, c, 3, 5))
    expr = call("add", call("mul", Arg(0), Arg(1)), Arg(2))
    expected = x.astype(np.float64) * scale + other
    return Pointwise(expr), {"x0": x, "x1": scale, "x2": other}, expected


def joined(rng: Any, kernel: str, c: int) -> Made:
    x, other = rng((2, c, 3, 5)), rng((2, 8 - c % 4, 3, 5))
    return Concat(), {"x0": x, "x1": other}, np.concatenate([x, other], 1)


def sliced(rng: Any, kernel: str, c: int) -> Made:
    x = rng((2, c, 5, 3))
    return Slice((1,), (4,), (2,), (2,)), {"x": x}, x[:, :, 1:4:2]


MAKERS: dict[str, tuple[Callable[[Any, str, int], Made], bool]] = {
    "conv2d": (conv, True),
    "matmul": (product, True),
    "pool2d": (pool, False),
    "winograd_input": (transformed, False),
    "winograd_output": (transformed_back, True),
    "pointwise": (pointwise, False),
    "concat": (joined, False),
    "move": (sliced, False),
}
"""Of each operator what it computes and should give, and whether with a bias and a ReLU."""
KERNELS = [
    (op, kernel.name)
    for op in MAKERS
    for kernel in kernels_for(op, "compute")
    if any(operand.subviews for operand in kernel.operands.values()) and not kernel.stages
]


def test_each_operator_has_kernels_for_strips() -> None:
    assert {op for op, _ in KERNELS} == set(MAKERS)


@pytest.mark.parametrize(("op", "kernel"), KERNELS)
@pytest.mark.parametrize("c", [1, 7, 20])
@pytest.mark.parametrize("lies", range(4))
def test_beside_others(opened, rng, op, kernel, c, lies) -> None:
    backend = opened("compute")
    (declared,) = (one for one in kernels_for(op, "compute") if one.name == kernel)
    make, finishes = MAKERS[op]
    operator, operands, expected = make(rng, kernel, c)
    layouts: dict[str, str] = {}
    for name, array in {**operands, "out": expected}.items():
        if declared.takes_subviews(name) and array.ndim in (2, 4):
            layout = "R4" if array.ndim == 2 else "nhwC4c"
            layouts[name] = strip(array, layout, *STARTS[(lies + len(layouts)) % 4])
    epilogue = finish(bias=True, activation="relu") if finishes else None
    got = run(backend, operator, operands, kernel, epilogue, layouts)
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (1, 8, 1, 1), (3, 4, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("taken", [("x0",), ("out",), ("x0", "x1"), ("x0", "out")])
def test_pointwise_of_few_pixels(opened, rng, shape, taken) -> None:
    """Of which some dimensions are 1, so that a strip might be taken for the whole."""
    operands = {"x0": rng(shape), "x1": rng(shape)}
    layouts = dict.fromkeys(("x0", "x1"), "nhwC4c")
    layouts |= {name: strip(operands["x0"], "nhwC4c", 8, 4) for name in taken}
    operator = Pointwise(call("sub", Arg(0), Arg(1)))
    got = run(opened("compute"), operator, operands, "compute", None, layouts)
    expected = operands["x0"].astype(np.float64) - operands["x1"]
    assert oracle.error(got, expected) <= TOLERANCE


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (2, 9, 3, 2)])
def test_full_operands_of_an_epilogue_lie_as_the_result(opened, rng, shape) -> None:
    n, c, h, w = shape
    x, weight, added = rng(shape), rng((8, c, 1, 1)), rng((n, 8, h, w))
    lies = strip(added, "nhwC4c", 8, 4)
    layouts = {"x": "nhwC4c", "e1": lies, "out": lies}
    operands = {"x": x, "weight": weight, "e1": added}
    epilogue = finish(full=True)
    got = run(opened("compute"), Conv2d(), operands, "implicit_gemm", epilogue, layouts)
    assert oracle.error(got, oracle.conv2d(x, weight) + added) <= TOLERANCE

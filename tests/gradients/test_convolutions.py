"""Gradients of what is composed of convolutions: of one and three dimensions, and transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glnn.core.types import TensorType
from glnn.graph.builder import Builder
from glnn.graph.compose.sliding_windows import conv, conv_transpose
from glnn.graph.expression import formula
from glnn.graph.gradients.differentiation import differentiate
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Reduce
from tests.gradients.case import Array

FUNCTIONS = {"conv": conv, "conv_transpose": conv_transpose}
CASES: list[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ("conv", {"stride": 2, "padding": 1, "dilation": 1}, (2, 4, 9), (3, 4, 3)),
    ("conv", {"stride": 1, "padding": 1, "dilation": 1}, (2, 3, 4, 3, 5), (3, 3, 3, 3, 3)),
    (
        "conv_transpose",
        {"stride": 2, "padding": 1, "dilation": 1, "output_padding": 1, "groups": 2},
        (2, 4, 3, 4),
        (4, 3, 3, 3),
    ),
    (
        "conv_transpose",
        {"stride": 2, "padding": 1, "dilation": 2, "output_padding": 0, "groups": 1},
        (1, 2, 4, 3),
        (2, 3, 3, 3),
    ),
    (
        "conv_transpose",
        {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 4},
        (1, 4, 5),
        (4, 1, 3),
    ),
]


def differentiated(name: str, how: dict[str, Any], x: Any, weight: Any) -> tuple[Graph, Graph]:
    """The sum of the results times `t`, and the gradients by x and the weight."""
    builder, count = Builder("composed"), len(x) - 2
    spread = {k: (v,) * (2 * count if k == "padding" else count) for k, v in how.items()}
    if "groups" in how:
        spread["groups"] = how["groups"]

    def add(operator: Any, *inputs: Value) -> Value:
        return builder.add(operator, *inputs, name=operator.name)[0]

    given = builder.input("x", TensorType(x)), builder.input("weight", TensorType(weight))
    function: Callable[..., Value] = FUNCTIONS[name]
    y = function(add, *given, **spread)
    axes = tuple(range(len(y.type.dims)))
    total = add(Reduce("sum", axes, False, formula("a * b")), y, builder.input("t", y.type))
    graph = builder.graph([total])
    whole, by = differentiate(graph, total, given)
    return graph, Graph(whole.nodes, whole.inputs, by, "backward")


def numbers(graph: Graph) -> list[Array]:
    random = np.random.default_rng(5)
    return [random.standard_normal(value.type.shape) for value in graph.inputs]


@pytest.mark.parametrize(("name", "how", "x", "weight"), CASES)
def test_along_random_directions(name, how, x, weight) -> None:
    forward, backward = differentiated(name, how, x, weight)
    *given, t = numbers(forward)
    gradients, random = backward.reference(*given, t), np.random.default_rng(6)
    for place, gradient in enumerate(gradients):
        for _ in range(4):
            step = random.standard_normal(gradient.shape)
            ends = []
            for sign in (1, -1):
                moved = [a + sign * step if i == place else a for i, a in enumerate(given)]
                ends.append(float(forward.reference(*moved, t)[0]))
            # The sum is linear in each operand: any step is small enough.
            assert np.sum(gradient * step) == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-9)


@pytest.mark.parametrize(("name", "how", "x", "weight"), CASES)
def test_against_pytorch(name, how, x, weight) -> None:
    torch = pytest.importorskip("torch")
    forward, backward = differentiated(name, how, x, weight)
    *given, t = numbers(forward)
    tensors = [torch.tensor(array, requires_grad=True) for array in given]
    function = getattr(torch.nn.functional, f"{name}{len(x) - 2}d")
    (function(*tensors, **how) * torch.tensor(t)).sum().backward()
    for got, tensor in zip(backward.reference(*given, t), tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)

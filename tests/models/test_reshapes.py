"""Reshapes move nothing; rows are padded only between kernels that want them so and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import pytest

from glnn.backends import NAMES, Backend, open_backend
from glnn.compiler import Plan
from glnn.core.types import Array, Shape, TensorType
from glnn.errors import DeviceError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Concat, Matmul, Pointwise, Reduce, Softmax
from glnn.graph.operators.gather import Gather
from glnn.graph.operators.move import Transpose
from glnn.graph.operators.scatter import ScatterND
from glnn.graph.operators.views import Flatten, Reshape
from glnn.graph.passes import Pass
from tests.oracle import error

pytestmark = pytest.mark.usefixtures("poisoned")
Make = Callable[[Builder, Value], Value]
NEGATIVE = Pointwise(call("neg", Arg(0)))
SUM = Pointwise(call("add", Arg(0), Arg(1)))


@pytest.fixture(params=NAMES)
def backend(request) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as closed:
        pytest.skip(str(closed))


def planned(
    backend: Backend, shape: Shape, make: Make, *without: Pass
) -> tuple[list[str], Array, Array]:
    """The operators of the plan's steps, an input, and what comes out for it."""
    builder = Builder()
    x = builder.input("x", TensorType(shape))
    graph = builder.graph([make(builder, x)])
    plan = Plan(graph, backend, {"x": shape}, without=frozenset(without))
    given = np.random.default_rng(prod(shape)).standard_normal(shape).astype(np.float32)
    for _ in range(2):
        (found,) = plan.run({"x": given}).values()
    return [type(step.op).__name__ for step in plan.steps], given, found


def weight(n: int, k: int) -> Array:
    return np.random.default_rng(n * k).standard_normal((n, k)).astype(np.float32)


def product(builder: Builder, x: Value, n: int, k: int) -> Value:
    return by(builder, Matmul(), x, constant(weight(n, k)))


def by(builder: Builder, op: Operator, *operands: Value) -> Value:
    (made,) = builder.add(op, *operands, name=builder.fresh(op.name))
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 3, 5, 7), (6, 35)),
        ((2, 3, 7), (6, 7)),
        ((6, 7), (2, 3, 7)),
        ((7, 3), (3, 7)),
        ((1, 7, 3), (7, 3)),
        ((7, 1), (1, 7)),
        ((5, 1, 13), (65,)),
        ((13,), (13, 1)),
        ((3, 127), (127, 3)),
        ((8, 3), (3, 8)),
    ],
)
def test_a_reshape_is_no_step(backend, before, after) -> None:
    def make(builder: Builder, x: Value) -> Value:
        return by(builder, NEGATIVE, by(builder, Reshape(after), by(builder, NEGATIVE, x)))

    for without, count in (((), 1), ((Pass.SINK,), 2)):
        steps, x, found = planned(backend, before, make, *without)
        assert steps == ["Pointwise"] * count
        np.testing.assert_array_equal(found, x.reshape(after))


def test_products_with_reshapes_between_them(backend) -> None:
    """(6, 7) by (7, 5), seen as (2, 15), by (15, 3), seen as (3, 2), by (2, 7)."""

    def make(builder: Builder, x: Value) -> Value:
        a = by(builder, Reshape((2, 15)), product(builder, x, 5, 7))
        b = by(builder, Reshape((3, 2)), product(builder, a, 3, 15))
        return product(builder, b, 7, 2)

    steps, x, found = planned(backend, (6, 7), make)
    expected = (x.astype(np.float64) @ weight(5, 7).T).reshape(2, 15) @ weight(3, 15).T
    assert error(found, expected.reshape(3, 2) @ weight(7, 2).T) <= 1e-5
    moved = [op for op in steps if op in ("Slice", "Pad")]
    assert moved == ([] if backend.name == "cpu" else ["Slice", "Pad"] * 2)


# What follows a product (5, 7) whose rows are padded, and what it is by NumPy.
READERS: Mapping[str, tuple[Make, Callable[[Array], Array]]] = {
    "pointwise": (lambda b, x: by(b, NEGATIVE, by(b, Softmax(), x)), lambda x: -softmax(x)),
    "sum": (
        lambda b, x: by(b, SUM, by(b, Softmax(), x), x),
        lambda x: softmax(x) + x,
    ),
    "mean": (lambda b, x: by(b, Reduce("mean", (0,)), x), lambda x: x.mean(0)),
    "max": (lambda b, x: by(b, Reduce("max", (1,)), x), lambda x: x.max(1)),
    "transpose": (lambda b, x: by(b, Transpose((1, 0)), x), lambda x: x.T),
    "gather": (
        lambda b, x: by(b, Gather(1), x, constant(np.array([3, 6, 0], np.int32))),
        lambda x: x[:, [3, 6, 0]],
    ),
    "concat": (
        lambda b, x: by(b, Concat(1), x, by(b, Softmax(), x)),
        lambda x: np.concatenate([x, softmax(x)], 1),
    ),
    "scatter": (
        lambda b, x: by(b, ScatterND(), x, constant(np.array([[3]], np.int32)), constant(ROW)),
        lambda x: np.concatenate([x[:3], ROW, x[4:]]),
    ),
    "updates": (
        lambda b, x: by(
            b, ScatterND(), constant(np.zeros((9, 7), np.float32)), constant(PLACES), x
        ),
        lambda x: np.concatenate([x[::-1], np.zeros((4, 7))]),
    ),
}
ROW = np.arange(7, dtype=np.float32)[None]
PLACES = np.array([[4], [3], [2], [1], [0]], np.int32)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


@pytest.mark.parametrize("reader", READERS)
def test_what_is_generated_takes_padded_rows_as_they_come(backend, reader) -> None:
    make, expected = READERS[reader]
    steps, x, found = planned(backend, (5, 3), lambda b, x: make(b, product(b, x, 7, 3)))
    assert error(found, expected(x.astype(np.float64) @ weight(7, 3).T)) <= 1e-5
    assert not {"Slice", "Pad", "Reorder"} & set(steps)


@pytest.mark.parametrize(
    ("shape", "make", "expected"),
    [
        ((6, 7), lambda b, x: product(b, x, 5, 7), lambda x: x @ weight(5, 7).T),
        (
            (3, 1, 7, 7),
            lambda b, x: product(b, by(b, Flatten(), x), 5, 49),
            lambda x: x.reshape(3, 49) @ weight(5, 49).T,
        ),
        (
            (5, 7),
            lambda b, x: by(b, Concat(1), by(b, Softmax(), x), product(b, x, 5, 7)),
            lambda x: np.concatenate([softmax(x), x @ weight(5, 7).T], 1),
        ),
    ],
)
def test_the_host_pads_the_rows_of_inputs(backend, shape, make, expected) -> None:
    steps, x, found = planned(backend, shape, make)
    assert error(found, expected(x.astype(np.float64))) <= 1e-5
    assert not {"Slice", "Pad", "Reorder"} & set(steps)


def test_an_input_that_is_seen_in_other_rows_is_padded_by_a_launch(backend) -> None:
    def make(builder: Builder, x: Value) -> Value:
        return product(builder, by(builder, Reshape((6, 7)), x), 5, 7)

    steps, x, found = planned(backend, (2, 3, 7), make)
    assert error(found, x.reshape(6, 7).astype(np.float64) @ weight(5, 7).T) <= 1e-5
    assert steps == (["Matmul"] if backend.name == "cpu" else ["Pad", "Matmul"])


@pytest.mark.parametrize(("m", "n", "k"), [(3, 17, 3), (3, 17, 1), (2, 1, 6), (7, 4, 5)])
def test_a_row_each_of_a_stack_is_packed(backend, m, n, k) -> None:
    """As keys of one token are: rows that are padded, seen as a stack, and packed from there."""
    builder, rng = Builder(), np.random.default_rng(n)
    q, x = builder.input("q", TensorType((m * n, k))), builder.input("x", TensorType((m, k)))
    stack = by(builder, Reshape((m, 1, k), True), product(builder, x, k, k))
    graph = builder.graph([by(builder, Matmul(), q, stack)])
    given = {one.name: rng.standard_normal(one.type.shape).astype(np.float32) for one in (q, x)}
    plan = Plan(graph, backend, {name: array.shape for name, array in given.items()})
    (found,) = plan.run(given).values()
    rows = given["x"].astype(np.float64) @ weight(k, k).T
    expected = given["q"].reshape(m, n, k) @ rows[:, :, None]
    assert error(found, expected.reshape(-1, 1)) <= 1e-5

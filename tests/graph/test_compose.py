"""Products of any rank, as a function and as a graph of factors that are computed."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import run
from glnn.core.symint import ShapeEnv
from glnn.core.types import Dim, DType, TensorType
from glnn.errors import DeviceError, ShapeError
from glnn.graph.builder import Builder
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.node_adder import NodeAdder
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Matmul, Pointwise
from glnn.ops import matmul as function
from tests.oracle import error

FACTORS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((1, 2, 3), (5, 3, 1)),
    ((3,), (2, 5, 3, 4)),
    ((5, 2, 3), (3,)),
    ((1, 1, 2, 3), (1, 3, 4)),
    ((2, 5, 1, 3), (5, 3, 7)),
    ((3, 2, 5), (3, 5, 6)),
]


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request: pytest.FixtureRequest) -> Backend:
    try:
        return open_backend(request.param)
    except DeviceError as failure:
        pytest.skip(str(failure))


def product(a: tuple[Dim, ...], b: tuple[Dim, ...], *, transposed: bool = False) -> Graph:
    """The graph of a times b, both given in each run."""
    builder, numbers = Builder(), count()

    def add(operator: Operator, *inputs: Value) -> Value:
        return builder.add(operator, *inputs, name=f"{operator.name} {next(numbers)}")[0]

    factors = [builder.input(name, TensorType(dims)) for name, dims in (("a", a), ("b", b))]
    return builder.graph([matmul(add, *factors, transposed=transposed)])


def test_products_of_any_rank(backend, rng) -> None:
    for left, right in FACTORS:
        a, b = rng(left), rng(right)
        exact = np.matmul(a.astype(np.float64), b)
        (got,) = run(product(left, right), {"a": a, "b": b}, backend).values()
        assert got.shape == exact.shape, (left, right)
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5, err_msg=f"{left} {right}")
        c = rng(exact.shape)
        got = function(a, b, c, 2.0, 0.5, backend=backend)
        assert got.shape == exact.shape and got.flags.c_contiguous
        np.testing.assert_allclose(got, 2 * exact + 0.5 * c, rtol=1e-5, atol=1e-5)
        if len(right) > 1:
            turned = np.ascontiguousarray(b.swapaxes(-1, -2))
            graph = product(left, turned.shape, transposed=True)
            (got,) = run(graph, {"a": a, "b": turned}, backend).values()
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
            got = function(a, turned, transpose_b=True, backend=backend)
            np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)


def test_sizes_that_are_not_known_yet(rng) -> None:
    for left, right, expected in (
        (("N", 4, 2, 3), (3, 5), ("N", 4, 2, 5)),
        (("N", 4, 2, 3), ("N", 4, 3, 5), ("N", 4, 2, 5)),
        ((2, 3), ("N", 3, 5), ("N", 2, 5)),
        ((4, "N", 3), (4, 3, 5), (4, "N", 5)),
        ((4, "N", 3), (4, 3, "N"), (4, "N", "N")),
    ):
        graph = product(left, right)
        assert graph.outputs[0].type.dims == expected
        a, b = (rng(tuple(6 if dim == "N" else dim for dim in dims)) for dims in (left, right))
        (got,) = run(graph, {"a": a, "b": b}, "cpu").values()
        np.testing.assert_allclose(got, np.matmul(a.astype(np.float64), b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "x", "weight"),
    [
        (Conv2d((1, 1), (1, 1, 1, 1)), (1, 64, 12, 12), (64, 64, 3, 3)),
        (Conv2d(groups=2), (2, 8, 9, 9), (6, 4, 3, 3)),
        (Conv2d(groups=8), (2, 8, 9, 9), (8, 1, 3, 3)),
        (Conv2d(), (1, 32, 14, 14), (64, 32, 1, 1)),
        (Matmul(), (1, 256), (512, 256)),
    ],
)
def test_weights_that_are_computed(backend, rng, op, x, weight) -> None:
    """They are packed by moves, where a kernel wants them otherwise than they come."""
    builder = Builder()
    values = [builder.input(n, TensorType(s)) for n, s in (("x", x), ("weight", weight))]
    (doubled,) = builder.add(Pointwise(call("mul", Arg(0), 2.0)), values[1], name="doubled")
    graph = builder.graph(builder.add(op, values[0], doubled, name="result"))
    feeds = {"x": rng(x), "weight": rng(weight)}
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    (exact,) = op.reference(wide["x"], 2 * wide["weight"])
    (got,) = run(graph, feeds, backend).values()
    assert error(got, exact) <= 1e-5


@pytest.mark.parametrize(
    ("left", "right", "says"),
    [
        ((2, 3), (4, 3), r"op\(a\) \(2, 3\) and op\(b\) \(4, 3\) do not fit"),
        ((2, 2, 3), (3, 3, 4), r"op\(a\) \(2, 2, 3\) and op\(b\) \(3, 3, 4\) do not fit"),
        ((), (3,), r"factors must have at least one dimension, got \(\) and \(3,\)"),
        ((1, 2, 2, 3), ("N", 1, 3, 4), "the size 'N' of .* is not known yet"),
    ],
)
def test_factors_that_do_not_fit(left, right, says) -> None:
    with pytest.raises(ShapeError, match=says):
        product(left, right)


def test_numbers_of_open_sizes_keep_their_type() -> None:
    """A number that is folded of symbols is of its operator's type, whatever Python computed."""
    size = ShapeEnv().symbol("n", 5, (2, 7))
    add = NodeAdder(Builder("folded"), "least")
    zero, n = (add.constant(one, np.int32) for one in (0, size))
    least = add.pointwise("where(a <= b, a, b)", zero, n)
    assert (least.type.dtype, least.data) == (DType.int32, 0)

"""Reductions along any axes, by every kernel, against NumPy's sums in float64."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import ArgReduce, Pointwise, Reduce
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, run

CASES = [  # shape, axes
    ((1,), (0,)),
    ((3, 1), (1,)),
    ((129, 7), (1,)),
    ((7, 129), (0,)),
    ((6, 128), (-1,)),
    ((128, 12), (0,)),
    ((5, 8, 3, 12), (1, 3)),
    ((5, 8, 3, 12), (0, 2)),
    ((2, 3, 5, 4, 1, 7), (1, 4, 5)),
    ((4, 3, 8), ()),
    ((3, 257, 2), (0, 1, 2)),
    ((2, 5000), (1,)),
    ((1031, 5), (0,)),
    ((1040, 8), (0,)),
]
EXACT = {
    "sum": np.sum,
    "mean": np.mean,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
}


def asked(opened, name, kernel, op, operands):
    """What the kernel gives; None where it does not take such operands."""
    try:
        return run(opened(name), op, operands, kernel)
    except UnsupportedOpError:
        return None


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_epilogues(opened, rng, name, kernel) -> None:
    """What is done to the results before they are stored, as an optimiser's momentum."""
    takes = {k.name for k in kernels_for("reduce", name) if k.epilogue is not None}
    epilogue, ran = Epilogue(formula("0.9 * b + a * c"), ("full", "one")), 0
    for shape, axes in CASES:
        x = rng(shape)
        expected = x.astype(np.float64).sum(axis=axes)
        beside = {"e1": rng(expected.shape), "e2": rng((1,))}
        op = Reduce("sum", axes)
        given = {"x0": x, **beside}
        if kernel not in takes:
            with pytest.raises(UnsupportedOpError, match="it takes no epilogue"):
                opened(name).choose(
                    OpSpec.create(op, {n: a.shape for n, a in given.items()}, {}, epilogue), kernel
                )
            return
        try:
            got = run(opened(name), op, given, kernel, epilogue)
        except UnsupportedOpError:
            continue
        wanted = 0.9 * beside["e1"] + expected * beside["e2"].reshape(())
        assert oracle.error(got, np.asarray(wanted)) <= TOLERANCE, (shape, axes)
        ran += 1
    assert ran


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_work_on_results_joins_those_of_floats(opened, rng, backend, dtype) -> None:
    """Where a kernel takes it; integers have no epilogues, and stay as exact."""
    builder = Builder()
    kind = TensorType((37, 12), DType(np.dtype(dtype).name))
    x, y = builder.input("x", kind), builder.input("y", TensorType((12,), kind.dtype))
    (total,) = builder.add(Reduce("sum", (0,)), x, name="total")
    (made,) = builder.add(Pointwise(formula("a * b")), total, y, name="made")
    session = Executor(builder.graph([made]), backend if backend == "cpu" else opened(backend))
    feeds = {"x": (1000 * rng((37, 12))).astype(dtype), "y": (100 * rng((12,))).astype(dtype)}
    (got,) = session.run(feeds).values()
    expected = feeds["x"].astype(np.float64).sum(0) * feeds["y"]
    assert got.dtype == dtype
    if dtype is np.int32:
        np.testing.assert_array_equal(got, expected)
    else:
        assert oracle.error(got, expected) <= TOLERANCE
    steps = session.plan({name: array.shape for name, array in feeds.items()}).steps
    joined = backend == "cpu" or (backend == "compute" and dtype is np.float32)
    assert len(steps) == (1 if joined and dtype is np.float32 else 2)


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_any_axes(opened, rng, name, kernel) -> None:
    ran = 0
    for i, (shape, axes) in enumerate(CASES):
        kind = list(EXACT)[i % len(EXACT)]
        x = rng(shape)
        if kind == "prod":  # of 5000 numbers, and no 0
            x = (1 + x / 500).astype(np.float32)
        got = asked(opened, name, kernel, Reduce(kind, axes, keepdims=i % 2 == 1), {"x0": x})
        if got is not None:
            expected = EXACT[kind](x.astype(np.float64), axis=axes, keepdims=i % 2 == 1)
            assert oracle.error(got, np.asarray(expected)) <= TOLERANCE, (shape, axes, kind)
            ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_expressions_before_and_after(opened, rng, name, kernel) -> None:
    distance = call("sub", Arg(0), Arg(1))
    squares = call("mul", call("mul", distance, distance), 0.5)
    finish = call("add", call("mul", Arg(0), 3.0), 1.0)
    for shape, other, axes in (
        ((7, 12, 20), (7, 12, 1), (2,)),
        ((7, 12, 20), (12, 1), (1,)),
        ((7, 160), (160,), (1,)),
        ((160, 12), (160, 1), (0,)),
        ((3, 5, 7), (), (0, 2)),
    ):
        x, y = rng(shape), rng(other)
        op = Reduce("mean", axes, prologue=squares, finish=finish)
        got = asked(opened, name, kernel, op, {"x0": x, "x1": np.asarray(y)})
        if got is not None:
            mean = np.mean(0.5 * (x.astype(np.float64) - y) ** 2, axis=axes)
            assert oracle.error(got, 3 * mean + 1) <= TOLERANCE, (shape, axes)


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_nan_and_infinities(opened, rng, name, kernel) -> None:
    for shape, axis in (((6, 160), 1), ((160, 8), 0), ((6, 13), 1), ((13, 9), 0)):
        x = np.moveaxis(rng(shape), axis, 1)
        x[0, 3], x[1, 5], x[2, :], x[3, :], x[4, 1:3] = np.nan, np.inf, -np.inf, np.inf, [1, -1]
        x[4, 4:6] = np.inf, -np.inf
        x = np.ascontiguousarray(np.moveaxis(x, 1, axis))
        for kind in ("max", "min", "sum"):
            got = asked(opened, name, kernel, Reduce(kind, (axis,)), {"x0": x})
            if got is not None:
                with np.errstate(invalid="ignore"):
                    expected = EXACT[kind](x.astype(np.float64), axis=axis)
                assert oracle.error(got, expected) <= TOLERANCE, (kind, shape)


WHOLE = {  # by dtype: the least and the most of random numbers
    np.int32: (-(2**31), 2**31),
    np.uint8: (0, 256),
    np.int8: (-128, 128),
    np.bool_: (0, 2),
}
ALONG = [  # shape, axis: along rows, then along columns
    *(((129, 7), 1), ((3, 5000), 1), ((6, 128), 1), ((5, 3, 8), 1), ((3, 1), 1)),
    *(((7, 129), 0), ((1040, 8), 0), ((128, 12), 0), ((1031, 5), 0), ((257,), 0)),
]
TYPED = [  # a dtype and a kind for each of ALONG
    *((np.int32, "sum"), (np.int8, "sum"), (np.bool_, "sum"), (np.int8, "prod"), (np.uint8, "min")),
    *(
        (np.uint8, "sum"),
        (np.int32, "prod"),
        (np.bool_, "prod"),
        (np.int32, "max"),
        (np.int8, "max"),
    ),
]


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_integers_keep_their_type(opened, name, kernel) -> None:
    """Sums and products wrap around in it; of bools they are any and all."""
    generator = np.random.default_rng(7)
    ran = 0
    for (shape, axis), (dtype, kind) in zip(ALONG, TYPED, strict=True):
        x = generator.integers(*WHOLE[dtype], shape).astype(dtype)
        got = asked(opened, name, kernel, Reduce(kind, (axis,)), {"x0": x})
        if got is not None:
            wrapping = {"dtype": dtype} if kind in ("sum", "prod") else {}
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, EXACT[kind](x, axis=axis, **wrapping))
            ran += 1
    assert ran


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_means_and_expressions_of_integers(opened, name, kernel) -> None:
    """Means go towards 0; what is reduced may be another type than what is read and stored."""
    odd = call("equal", call("bitwise_and", Arg(0), 1), 1)
    count = call("cast_int32", odd)
    halved = call("mul", call("cast_float32", Arg(0)), 0.5)
    for shape, axis in ALONG[::2]:
        x = np.random.default_rng(8).integers(-1000, 1000, shape).astype(np.int32)
        total, n = x.sum(axis, dtype=np.int64), shape[axis]
        for op, expected in (
            (Reduce("mean", (axis,)), np.sign(total) * (abs(total) // n)),
            (Reduce("sum", (axis,), prologue=count, finish=halved), (x % 2).sum(axis) / 2),
            (Reduce("max", (axis,), prologue=odd), (x % 2).max(axis) > 0),
        ):
            got = asked(opened, name, kernel, op, {"x0": x})
            if got is not None:
                np.testing.assert_array_equal(got, expected, err_msg=f"{op} {shape}")


@pytest.mark.parametrize(("name", "kernel"), kernels("reduce"))
def test_places_of_extremes(opened, rng, name, kernel) -> None:
    """The first or the last of equal ones, and of NaN, which is the most extreme."""
    for i, (shape, axis) in enumerate(ALONG[::2]):
        floats = np.round(2 * rng(shape)) / 2
        special = np.moveaxis(floats.copy(), axis, -1)
        special[..., -1:], special[..., -2:-1] = np.inf, -np.inf
        special.reshape(-1)[:: 1 + special.size // 3] = np.nan
        special = np.ascontiguousarray(np.moveaxis(special, -1, axis))
        whole = np.random.default_rng(9).integers(-3, 3, shape).astype(np.int32)
        nothing = np.full(shape, -np.inf, np.float32)
        least = np.full(shape, -(2**31), np.int32)
        for kind, find, last in (("max", np.argmax, i % 2 > 0), ("min", np.argmin, i % 2 < 1)):
            for x in (floats, special, whole, whole.astype(np.int8), nothing, least):
                got = asked(opened, name, kernel, ArgReduce(kind, axis, last, last), {"x0": x})
                if got is not None:
                    expected = find(x, axis)
                    if last:
                        back = shape[axis] - 1 - find(np.flip(x, axis), axis)
                        expected = np.expand_dims(back, axis)
                    np.testing.assert_array_equal(got, expected, err_msg=f"{kind} {shape}")


@pytest.mark.parametrize(("shape", "axis"), [((3_000_017,), 0), ((3, 1_000_003), 1)])
def test_long_sums(backend, shape, axis) -> None:
    """Of one sign, each rounded: what is added up number by number is off by 1e-3."""
    x = np.full(shape, 0.1, np.float32)
    x.reshape(-1)[::3] = 0.7
    for op in (Reduce("sum", (axis,)), Reduce("mean", (axis,))):
        got = run(backend, op, {"x0": x}, None)
        exact = EXACT[op.kind](x.astype(np.float64), axis=axis)
        assert oracle.error(got, np.asarray(exact)) <= TOLERANCE


def test_more_rows_than_workgroups_may_be(backend, rng) -> None:
    for shape in ((70_001, 3), (70_001, 20), (66_000, 260)):
        x, op = rng(shape), Reduce("max", (1,))
        got = run(backend, op, {"x0": x}, None)
        np.testing.assert_array_equal(got, x.max(1))


def test_shapes_and_faults() -> None:
    def shape(op: Reduce, *shapes: tuple[int, ...]) -> tuple[int, ...]:
        return op.shape_of({f"x{i}": one for i, one in enumerate(shapes)})

    assert shape(Reduce("sum", (0, -1)), (2, 3, 4)) == (3,)
    assert shape(Reduce("sum", (0, -1), keepdims=True), (2, 3, 4)) == (1, 3, 1)
    assert shape(Reduce("sum", (1,), parts=5), (2, 30)) == (5, 2)
    nothing = np.zeros((3, 0), np.float32)
    for kind, expected in (("sum", 0), ("prod", 1), ("mean", np.nan)):
        found = Reduce(kind, (1,)).compute({"x0": nothing})
        np.testing.assert_array_equal(found, np.full(3, expected, np.float32))
    with pytest.raises(ShapeError, match="nothing to take the max of"):
        Reduce("max", (1,)).compute({"x0": nothing})
    for make, text in (
        (lambda: Reduce("median", (0,)), "kind must be"),  # type: ignore[arg-type]
        (lambda: Reduce("sum", (0.5,)), "axes must be integers"),  # type: ignore[arg-type]
        (lambda: shape(Reduce("sum", (2,)), (2, 3)), "axes"),
        (lambda: shape(Reduce("sum", (0, -2)), (2, 3)), "axes"),
        (lambda: shape(Reduce("sum", (0,)), (2, 3), (2,)), "x1, .* does not broadcast"),
        (lambda: shape(Reduce("sum", (0,), prologue=Arg(1)), (2, 3)), "1 operands"),
        (lambda: Reduce("sum", (0,), finish=Arg(1)), "one argument"),
        (lambda: Reduce("mean", (0,)).compute({"x0": np.ones(3, bool)}), "mean is of floats"),
        (lambda: ArgReduce("max", 1).compute({"x0": nothing}), "nothing to take the max"),
        (lambda: ArgReduce("max", 0).shape_of({"x0": (2,), "x1": (2,)}), "expected one operand"),
    ):
        with pytest.raises(ShapeError, match=text):
            make()


def test_parts_are_those_of_the_whole(rng) -> None:
    x = rng((3, 130, 2))
    parts = Reduce("sum", (1,), parts=4).compute({"x0": x})
    assert parts.shape == (4, 3, 2)
    np.testing.assert_allclose(parts[0], x[:, :36].sum(1), rtol=1e-5)
    np.testing.assert_allclose(parts.sum(0), x.sum(1), rtol=1e-5)
    few = Reduce("max", (1,), parts=64).compute({"x0": x})  # some are of nothing
    np.testing.assert_array_equal(few.max(0), x.max(1))
    assert prod(few.shape) == 64 * 6

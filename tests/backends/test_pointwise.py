"""Expressions of operands that broadcast, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError, ShaderError, ShapeError
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.kernels import kernels_for
from glnn.kernels.manifest import Launch, Quantity
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, run, run_kernel

SUM = call("add", call("mul", Arg(0), 2.5), Arg(1))
SHAPES = {
    "alike": [(127, 129), (127, 129)],
    "one number": [(3, 7), ()],
    "one number first": [(1, 1), (3, 7)],
    "no dimensions": [(), ()],
    "row": [(127, 129), (129,)],
    "row of vec4": [(7, 8), (8,)],
    "column": [(127, 129), (127, 1)],
    "column of vec4": [(7, 8), (7, 1)],
    "both": [(7, 1), (1, 5)],
    "column by vec4": [(5, 1), (1, 8)],
    "channel": [(2, 3, 5, 7), (3, 1, 1)],
    "channel of vec4": [(2, 3, 4, 2), (1, 3, 1, 1)],
    "image": [(2, 3, 5, 7), (2, 1, 1, 1)],
    "map": [(2, 3, 5, 7), (1, 1, 5, 7)],
    "inner one": [(5, 3, 1), (5, 1, 1)],
    "pixels": [(2, 3, 4, 4), (2, 1, 4, 4)],
    "vector": [(7,), (7,)],
    "single": [(1,), (129,)],
    "rank 8": [(2, 1, 3, 1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 2, 1, 4)],
    "empty": [(0, 3), (3,)],
    "empty inside": [(2, 0), (2, 1)],
}


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape
    most = np.linalg.norm(expected)
    assert np.linalg.norm(got - expected) <= TOLERANCE * most, np.abs(got - expected).max()


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_shapes_that_broadcast(backend: GlBackend, shapes) -> None:
    x, y = numbers(shapes[0]), numbers(shapes[1], 1)
    got = run(backend, Pointwise(SUM), {"x0": x, "x1": y}, backend.name)
    check(got, 2.5 * x.astype(np.float64) + y)
    got = run(backend, Pointwise(SUM), {"x0": y, "x1": x}, backend.name)
    check(got, 2.5 * y.astype(np.float64) + x)


@pytest.mark.parametrize("layout", ["nhwC4c", "nChw4c"])
@pytest.mark.parametrize("c", [1, 3, 8])
@pytest.mark.parametrize("other", [(2, 0, 5, 7), (1, 0, 1, 1), (2, 1, 1, 1), (0, 1, 1), (7,)])
def test_images_in_blocks(backend: GlBackend, layout, c, other) -> None:
    x, y = numbers((2, c, 5, 7)), numbers(tuple(size or c for size in other), 1)
    lie = {"x0": layout, **({"x1": layout} if len(other) == 4 else {})}
    got = run(backend, Pointwise(SUM), {"x0": x, "x1": y}, backend.name, layouts=lie)
    check(got, 2.5 * x.astype(np.float64) + y)


@pytest.mark.parametrize("layout", ["C", "R 2 4 R", "C 4 2 C", "R 4 4 R 2 2 R"])
@pytest.mark.parametrize("other", [(7, 5), (5,), (7, 1), ()])
def test_matrices_in_blocks(backend: GlBackend, layout, other) -> None:
    x, y = numbers((7, 5)), numbers(other, 1)
    lie = {"x0": layout, **({"x1": layout} if len(other) == 2 else {})}
    got = run(backend, Pointwise(SUM), {"x0": x, "x1": y}, backend.name, layouts=lie)
    check(got, 2.5 * x.astype(np.float64) + y)


def test_as_many_operands_as_the_device_binds(backend: GlBackend) -> None:
    offers = backend.device.capabilities
    compute = backend.name == "compute"
    most = offers.max_compute_shader_storage_blocks - 1
    most = min(most if compute else offers.max_vertex_texture_image_units, 12)
    total = Arg(0)
    for i in range(1, most):
        total = call("add", total, Arg(i))
    shapes = [(5, 6, 7), (6, 7), (5, 1, 7), (1,)]
    operands = {f"x{i}": numbers(shapes[i % 4], i) for i in range(most)}
    expected = sum(array.astype(np.float64) for array in operands.values())
    check(run(backend, Pointwise(total), operands, backend.name), expected)
    if compute:
        op = Pointwise(call("add", total, Arg(most)))
        many = {f"x{i}": (2, 2) for i in range(offers.max_compute_shader_storage_blocks)}
        with pytest.raises(GlnnError, match="storage blocks, the device has") as caught:
            backend.choose(OpSpec.create(op, many, {}))
        assert str(most + 2) in str(caught.value)


def test_a_long_expression(backend: GlBackend) -> None:
    expr, expected = Arg(0), (x := numbers((3, 7))).astype(np.float64)
    for _ in range(31):
        expr, expected = call("mul", call("add", expr, 0.5), 0.75), (expected + 0.5) * 0.75
    check(run(backend, Pointwise(expr), {"x0": x}, backend.name), expected)


def test_numbers_are_no_text(backend: GlBackend) -> None:
    """Other numbers in an expression are another run of the same program."""
    x = numbers((3, 7))
    before = None
    for factor in (2.0, -0.5):
        op = Pointwise(call("mul", Arg(0), factor))
        check(run(backend, op, {"x0": x}, backend.name), factor * x.astype(np.float64))
        assert before in (None, len(backend.device.programs))
        before = len(backend.device.programs)


ACTIVATIONS = [k.name for k in kernels_for("pointwise", "compute") if "activation" in k.name]
BIASES = [k.name for k in kernels_for("pointwise", "compute") if "bias" in k.name]


@pytest.mark.parametrize("kernel", ACTIVATIONS)
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (129, 127)])
def test_documented_activations(opened, kernel, function, shape) -> None:
    x = 3 * numbers(shape)
    got = run(opened("compute"), Pointwise(call(function, Arg(0))), {"x0": x}, kernel)
    check(got, oracle.activation(x, function))


@pytest.mark.parametrize("kernel", BIASES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (129, 10)])
@pytest.mark.parametrize("wide", [False, True])
def test_documented_biases(opened, kernel, shape, wide) -> None:
    x, y = numbers(shape), numbers((1, shape[1]) if wide else shape[1:], 1)
    got = run(opened("compute"), Pointwise(SUM), {"x0": x, "x1": y}, kernel)
    check(got, 2.5 * x.astype(np.float64) + y)


@pytest.mark.parametrize(
    ("kernel", "shapes", "says"),
    [
        ("bias_vector", [(3, 7), (3, 1)], "COLUMNS is 0"),
        ("bias_vector", [(2, 3, 7), (7,)], "COLUMNS is 0"),
        ("activation_rm", [(2, 3, 7)], "layout C does not take x0"),
        ("activation_unbound", [(3, 7), (7,)], "it takes no operand x1"),
    ],
)
def test_documented_kernels_take_few_problems(opened, kernel, shapes, says) -> None:
    op = Pointwise(SUM if len(shapes) > 1 else call("relu", Arg(0)))
    spec = OpSpec.create(op, {f"x{i}": shape for i, shape in enumerate(shapes)}, {})
    assert says in str(opened("compute").why_not(spec, kernel))
    assert opened("compute").choose(spec).name == "compute"  # the others are for the asking


@pytest.mark.parametrize("captures", [4, 32])
def test_a_declaration_that_is_wrong_about_what_a_vertex_captures(opened, captures) -> None:
    backend, op, x = opened("feedback"), Pointwise(call("relu", Arg(0))), numbers((9, 12))
    choice = backend.choose(OpSpec.create(op, {"x0": x.shape}, {}))
    with pytest.raises(
        ShaderError, match=f"feedback.toml: launch.captures: .* 16 floats, not {captures}"
    ):
        run_kernel(
            backend, op, {"x0": x}, replace(choice, launch=Launch(captures=Quantity.read(captures)))
        )


def test_an_operand_that_is_set_anew_is_read_anew(backend: GlBackend) -> None:
    """Also where it is a vertex attribute, which nobody copies."""
    spec = OpSpec.create(Pointwise(SUM), {"x0": (5, 7), "x1": (5, 7)}, {})
    choice = backend.choose(spec)
    layouts = backend.layouts(choice, spec)
    stores = {name: backend.allocate((5, 7), layouts[name]) for name in ("x0", "x1")}
    out = backend.allocate((5, 7), layouts["out"])
    perform = backend.prepare(choice, spec, stores, out)
    for seed in range(3):
        values = {name: numbers((5, 7), 2 * seed + i) for i, name in enumerate(stores)}
        for name, value in values.items():
            stores[name].set(value)
            backend.upload(stores[name])
        perform()
        check(out.pull(), 2.5 * values["x0"].astype(np.float64) + values["x1"])


@pytest.mark.parametrize("layout", ["R", "nhwC4c", "nChw4c"])
def test_it_takes_the_layout_that_comes(backend: GlBackend, layout) -> None:
    types = {"x0": (1, 3, 2, 2), "x1": (3, 1, 1), "x2": (1, 3, 2, 2)}
    op = Pointwise(call("add", call("mul", Arg(0), Arg(1)), Arg(2)))
    spec = OpSpec.create(op, types, {"x2": layout})
    found = backend.layouts(backend.choose(spec), spec)
    assert {name: chosen.name for name, chosen in found.items()} == {
        **dict.fromkeys(("x0", "x2", "out"), layout),
        "x1": "R",
    }


INTEGERS = np.random.default_rng(3).integers(-99, 99, (3, 7)).astype(np.int32)


@pytest.mark.parametrize("other", [(3, 7), (7,), (3, 1), ()])
def test_integers(backend: GlBackend, other) -> None:
    y = np.resize(INTEGERS[::-1], other).astype(np.int32)
    got = run(backend, Pointwise(call("mul", Arg(0), Arg(1))), {"x0": INTEGERS, "x1": y}, None)
    assert got.dtype == np.int32 and (got == INTEGERS * y).all()


@pytest.mark.parametrize("other", [(3, 7), (7,), (3, 1), ()])
def test_bools_of_numbers_and_numbers_by_bools(backend: GlBackend, other) -> None:
    y = np.resize(INTEGERS[::-1], other).astype(np.int32)
    less = run(backend, Pointwise(call("less", Arg(0), Arg(1))), {"x0": INTEGERS, "x1": y}, None)
    assert less.dtype == np.bool_ and (less == (y > INTEGERS)).all()
    x = numbers(other)
    chosen = Pointwise(call("where", Arg(0), Arg(1), -1.0))
    got = run(backend, chosen, {"x0": less, "x1": x}, None)
    check(got, np.where(less, x, -1.0))


@pytest.mark.parametrize("function", ["minimum", "maximum", "add", "mul", "bitwise_xor"])
@pytest.mark.parametrize("cast", ["cast_int32", "cast_uint8", "cast_int8", "cast_float32"])
def test_numbers_made_of_bools(backend: GlBackend, function, cast) -> None:
    """NVIDIA's compiler takes some ints made by int() of a bool for 0 and -1."""
    if (function, cast) == ("bitwise_xor", "cast_float32"):
        pytest.skip("floats have no bits here")
    x = np.arange(16, dtype=np.int32)
    bools = [call("not_equal", call("bitwise_and", Arg(0), 1 << i), 0) for i in range(4)]
    a, b, c, d = (call(cast, one) for one in bools)
    op = Pointwise(call(function, call(function, a, b), call(function, c, d)))
    ufunc = np.multiply if function == "mul" else getattr(np, function)
    bits = x >> np.arange(4)[:, None] & 1
    np.testing.assert_array_equal(run(backend, op, {"x0": x}, None), ufunc.reduce(bits))


def test_bytes_stay_bytes(backend: GlBackend) -> None:
    x = np.arange(250, dtype=np.uint8).reshape(10, 25)
    got = run(backend, Pointwise(call("add", Arg(0), Arg(0))), {"x0": x}, None)
    assert got.dtype == np.uint8 and (got == x + x).all()


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([(3, 7), (5,)], "x1 of shape .5,. does not broadcast with .3, 7."),
        ([(1,) * 9, (1,)], "x0 has more than 8 dimensions"),
        ([(3,)], "needs 2 operands, got 1"),
    ],
)
def test_what_does_not_fit(shapes, says) -> None:
    with pytest.raises(ShapeError, match=says):
        Pointwise(SUM).infer([TensorType(shape) for shape in shapes])


def test_the_reference_computes_in_the_precision_of_its_operands() -> None:
    for kind in (np.float32, np.float64):
        (got,) = Pointwise(SUM).reference(np.ones((3, 1), kind), np.ones(4, kind))
        assert got.dtype == kind and got.shape == (3, 4) and (got == 3.5).all()
    (made,) = Pointwise(SUM).infer([TensorType((3, 1)), TensorType((4,))])
    assert made == TensorType((3, 4), DType.float32)

"""Every row of FUNCTIONS, against independent references: values, derivative, layer, ONNX operator.

Adding a row needs no line here. Only a function that NumPy and SciPy do not have under its
name needs one in `function_references.FLOATS`.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from glnn import layers
from glnn.core.types import DType
from glnn.doctor.function_accuracy import INTS, function_checks, points, takes
from glnn.errors import ShapeError
from glnn.graph.expression import Arg, Call, call, formula
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS, by_name
from glnn.graph.gradients.pointwise import differentiate_expression
from glnn.layers.activations import Activation
from tests.graph.function_references import BOOLS, INTEGERS, float_reference

FLOAT = DType.float32
CHECKED = [row for row in FUNCTIONS.values() if row.accuracy is not None]
OF_FLOATS = [row for row in CHECKED if takes(row, "float")]
OF_INTEGERS = [row for row in CHECKED if takes(row, "int")]
THRESHOLDS = ("softplus", "thresholded_relu", "hardshrink")
"""Functions whose last argument is a threshold, at which they are not smooth."""


def of(row: Function) -> Call:
    return call(row.name, *map(Arg, range(row.arity)))


def name_of(row: Function) -> str:
    return row.name


FORMULAS = {
    f"{row.name}-{field}": (row, text, letters)
    for row in FUNCTIONS.values()
    for field, letters in (("body", 0), ("onnx_formula", 0), ("gradient", 4), ("by_result", 4))
    if (text := getattr(row, field)) is not None
}


@pytest.mark.parametrize(("row", "text", "letters"), FORMULAS.values(), ids=FORMULAS.keys())
def test_a_formula_has_arguments_of_its_function_alone(
    row: Function, text: str, letters: int
) -> None:
    """Of a derivative, also `da` for `a`."""
    own = {*range(row.arity), *range(letters, letters + row.arity)}
    found = {part.index for part in formula(text).parts() if isinstance(part, Arg)}
    assert found <= own, f"{row.name} has {row.arity} arguments, and not all that are in {text!r}"


@pytest.mark.parametrize("row", OF_FLOATS, ids=name_of)
def test_values_of_floats(row: Function) -> None:
    """In float64 to its precision and in float32 to that; without a warning."""
    assert row.accuracy is not None
    reference, arguments = float_reference(row.name), points(row)[: row.arity]
    for dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            given = [one.astype(dtype) for one in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = of(row).evaluate(*given)
        with np.errstate(all="ignore"):
            exact = np.asarray(reference(*(one.astype(np.float64) for one in arguments)))
            exact = exact.astype(got.dtype).astype(np.float64)
            got64 = got.astype(np.float64)
            relative, tiny = (2e-6, 2.0**-125) if dtype == np.float32 else (1e-13, 0.0)
            close = np.isclose(
                got64, exact, relative, 4 * relative * row.accuracy.least + tiny, equal_nan=True
            )
            close |= np.isinf(exact) & (np.abs(got64) > 3e38)
        assert got.dtype == of(row).infer([DType(given[0].dtype.name)] * len(given)).numpy
        assert close.all(), [one[~close][:3] for one in (*arguments, got, exact)]


def test_a_function_without_a_reference_is_no_test_that_is_skipped() -> None:
    with pytest.raises(LookupError, match=r"have no log_cosh: FLOATS of .* must have it"):
        float_reference("log_cosh")


def test_two_rows_of_one_name_are_refused() -> None:
    rows = FUNCTIONS["exp"], FUNCTIONS["log"], replace(FUNCTIONS["log"], name="exp")
    with pytest.raises(ShapeError, match="two rows of functions are called exp"):
        by_name(rows)
    assert by_name(rows[:2]) == {"exp": rows[0], "log": rows[1]}


@pytest.mark.parametrize("dtype", [DType.int32, DType.uint8, DType.int8], ids=lambda d: d.value)
@pytest.mark.parametrize("row", OF_INTEGERS, ids=name_of)
def test_values_of_integers(row: Function, dtype: DType) -> None:
    """Computed in int64, of which the type keeps its own bits; the third argument is 0."""
    limits = np.iinfo(dtype.numpy)
    inside = INTS[(limits.min <= INTS) & (limits.max >= INTS)]
    a, b = (grid.reshape(-1) for grid in np.meshgrid(inside, inside))
    arguments = (a, b, np.zeros_like(a))[: row.arity]
    with np.errstate(all="ignore"):
        got = of(row).evaluate(*(one.astype(dtype.numpy) for one in arguments))
    result = of(row).infer([dtype] * row.arity)
    exact = np.asarray(INTEGERS[row.name](*arguments[:2])).astype(np.int64)
    bits = got.view(np.int32) if result.kind == "float" else got.astype(np.int32)
    width = result.numpy if result.kind == "int" else np.dtype(np.int32)
    assert np.array_equal(bits, exact.astype(width).astype(np.int32))


@pytest.mark.parametrize("row", [row for row in CHECKED if takes(row, "bool")], ids=name_of)
def test_values_of_bools(row: Function) -> None:
    a, b, c = np.array([[i & 1, (i >> 1) & 1, (i >> 2) & 1] for i in range(8)]).T
    got = of(row).evaluate(*(one.astype(bool) for one in (a, b, c)[: row.arity]))
    assert np.array_equal(got.astype(np.int32), np.asarray(BOOLS[row.name](a, b, c)))


def test_every_row_is_checked_with_the_kinds_that_it_takes() -> None:
    checks = {(one.name, one.dtype) for checks in function_checks() for one in checks}
    assert {name for name, dtype in checks if dtype is DType.int32} == set(INTEGERS)
    assert {name for name, dtype in checks if dtype is DType.bool} == set(BOOLS)
    assert {name for name, dtype in checks if dtype is FLOAT} == {row.name for row in OF_FLOATS}


@pytest.mark.parametrize("row", OF_FLOATS, ids=name_of)
def test_derivatives(row: Function) -> None:
    """Against differences in float64, where the function has no corner."""
    if of(row).infer([FLOAT] * row.arity) is not FLOAT or "cast" in row.name:
        return
    assert row.accuracy is not None
    domain = row.accuracy.domain or ((-20.0, 20.0),) * row.arity
    generator = np.random.default_rng(3)
    given = [generator.uniform(*over, 200) for over in domain]
    if row.name in ("exp", "expm1", "cosh", "sinh", "exp2"):
        given = [one / 20 for one in given]
    for index in range(len(given)):
        if row.name in THRESHOLDS and index == len(given) - 1:
            continue  # a threshold
        step = 1e-6
        values = []
        for sign in (-1, 1):
            there = [one + sign * step * (i == index) for i, one in enumerate(given)]
            values.append(of(row).evaluate(*there))
        middle = of(row).evaluate(*given)
        slopes = (values[1] - values[0]) / (2 * step)
        smooth = np.abs(values[1] + values[0] - 2 * middle) <= 1e-8 * (1 + np.abs(middle))
        derivative = differentiate_expression(of(row), index)
        got = np.zeros_like(middle) if derivative is None else derivative.evaluate(*given)
        if derivative is not None:
            assert derivative.infer([FLOAT] * len(given)) is FLOAT
            halves = [one / 2 for one in given]
            doubled = call(row.name, *(call("mul", 2.0, Arg(i)) for i in range(row.arity)))
            chained = differentiate_expression(doubled, index)
            assert chained is not None
            assert np.allclose(chained.evaluate(*halves), 2 * got, equal_nan=True), (
                f"{row.name}: expected da, db, ... as a factor of each term of its gradient"
            )
        close = np.isclose(np.broadcast_to(got, middle.shape), slopes, 1e-5, 1e-6)
        assert smooth.mean() > 0.5 or row.name in ("pow", "tan"), smooth.mean()
        assert (close | ~smooth).all(), (
            "it has no gradient" if derivative is None else "its gradient is wrong",
            index,
            [one[~close & smooth][:2] for one in (*given, slopes)],
        )


def test_every_activation_layer_is_a_row() -> None:
    """But those with another formula, whose constants or arguments are PyTorch's own."""
    named = {row.layer: row for row in FUNCTIONS.values() if row.layer}
    classes = {kind.__name__: kind for kind in layers.LAYERS if issubclass(kind, Activation)}
    assert set(classes) - set(named) == {"Hardsigmoid", "RReLU", "Threshold"}
    for name, row in named.items():
        numbers = [p for p in classes[name].__signature__.parameters if p != "inplace"]
        assert len(numbers) == row.arity - 1
        assert formula(classes[name].formula) == of(row), name


ONNX = [row for row in FUNCTIONS.values() if row.onnx is not None]
LATEST = 26  # version of the operator set


@pytest.mark.parametrize("row", ONNX, ids=name_of)
def test_onnx_operators(row: Function) -> None:
    """The formula that is imported is what the onnx package computes, with attributes left out."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    assert row.onnx is not None
    schema = onnx.defs.get_schema(row.onnx.name)
    assert set(row.onnx.attributes) <= set(schema.attributes)
    for name, default in row.onnx.attributes.items():
        assert np.isclose(schema.attributes[name].default_value.f, default, 1e-7), name
    count = row.arity - len(row.attributes) if row.onnx.name != "Softplus" else 1
    kind = next(kind for kind in ("float", "int", "bool") if row.body or kind in row.forms)
    dtype = {"float": np.float32, "int": np.int32, "bool": np.bool_}[kind]
    ((low, high), *_) = (row.accuracy and row.accuracy.domain) or ((-4, 4),)
    x = np.linspace(max(low, -4), min(high, 4), 33)
    arrays = [np.roll(x, i).astype(dtype) for i in range(count)]
    if row.condition:
        arrays[0] = arrays[0] > 0
    names = [f"x{i}" for i in range(count)]
    node = onnx.helper.make_node(row.onnx.name, names, ["y"])
    tensors = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    results = [onnx.helper.make_tensor_value_info("y", 0, None)]
    graph = onnx.helper.make_graph([node], "function", tensors, results)
    opset = [onnx.helper.make_opsetid("", LATEST)]
    model = onnx.helper.make_model(graph, opset_imports=opset)
    with np.errstate(all="ignore"):
        (expected,) = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    numbers = [np.asarray(one, dtype) for one in row.onnx.attributes.values()]
    got = formula(row.onnx_import).evaluate(*arrays, *numbers)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, 2e-6, 1e-6)

"""Weights that follow from sizes: a flat list of calls of array functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn.compiler.weights import ArrayWriter, Weight
from glnn.core.size_table import SizeIndex
from glnn.core.symint import Substitution
from glnn.gl.command_buffer import FormatError
from glnn.graph import constant
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise
from glnn.runtime.array_program import ArrayCall, ArrayProgram, SizedArrays
from glnn.session import InferenceSession
from tests.onnx.test_open_graphs import BY_POSITION, OPEN

onnx = pytest.importorskip("onnx")
BACKENDS = ["cpu", "compute", "feedback"]
HEAD = '<ir_version: 9, opset_import: ["": 20]>'


MASKS = {
    "causal": """g (float[1, P, 8] x) => (float[A, B, C] y, float[D, E, F] z)
    <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}, float low = {-10000}, float no = {0}> {
        s = Shape (x)  n = Gather <axis = 0> (s, one)  r = Range (zero, n, one)
        c = Unsqueeze (r, axis)  m = Greater (r, c)  f = Where (m, low, no)
        t = Transpose <perm = [0, 2, 1]> (x)  p = MatMul (x, t)
        q = Add (p, f)  y = Softmax (q)  w = Mul (p, f)  z = Tanh (w) }""",
    "triangle": """g (float[1, P, 8] x) => (float[A, B, C] y)
    <int64[1] one = {1}, int64[1] two = {2}> {
        s = Shape (x)  n = Slice (s, one, two)  e = Concat <axis = 0> (n, n)
        c = ConstantOfShape <value = float[1] {0.5}> (e)  m = Trilu <upper = 0> (c)
        t = Transpose <perm = [0, 2, 1]> (x)  p = MatMul (x, t)  y = Mul (p, m) }""",
    "buckets": """g (float[1, P, 8] x) => (float[A, B, C] y)
    <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 most = {7}, int64[1] axis = {1},
     float[8] table = {0.25, -1, 2, 3.5, 4, 5, 6, 7}> {
        s = Shape (x)  n = Gather <axis = 0> (s, one)  r = Range (zero, n, one)
        c = Unsqueeze (r, axis)  d = Sub (c, r)  a = Abs (d)  h = Div (a, two)  b = Min (h, most)
        w = Gather <axis = 0> (table, b)  t = Transpose <perm = [0, 2, 1]> (x)  p = MatMul (x, t)
        y = Add (p, w) }""",
    "sums": """g (float[1, P, 8] x) => (float[A, B, C] y)
    <int64[1] one = {1}, int64[1] two = {2}, int64 axis = {0}, int64[1] last = {1},
     int64[2] sides = {1, 2}, float[1] width = {3}> {
        s = Shape (x)  n = Slice (s, one, two)  o = ConstantOfShape <value = int64[1] {1}> (n)
        k = CumSum <exclusive = 1, reverse = 1> (o, axis)  f = Cast <to = 10> (k)
        h = Cast <to = 1> (f)  g = Sqrt (h)  i = Mod <fmod = 1> (g, width)
        v = Unsqueeze (i, last)  y = Mul (x, v) }""",
}


def _executables(text: str, backend: str, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Run a model at some shapes, and return the executables of its regimes."""
    content = onnx.parser.parse_model(f"{HEAD} {text}").SerializeToString()
    session, draw = InferenceSession(content, backend), np.random.default_rng(0)
    for shape in shapes:
        feeds = {}
        for one in session.get_inputs():
            given = shape if len(one.shape) <= len(shape) else (1, 4, *shape)
            sizes = [n if isinstance(n, int) else m for n, m in zip(one.shape, given, strict=True)]
            feeds[one.name] = draw.standard_normal(sizes, np.float32)
        session.run(None, feeds)
    return [plan.executable for plan in session._executor.range_plans]  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*MASKS, *OPEN])
def test_they_are_what_their_operators_compute(backend, name, monkeypatch) -> None:
    """Bit for bit, at sizes that the plan was not made for."""
    added: dict[str, Weight] = {}

    def noted(self, called, weight, dtype, add=ArrayWriter.add) -> None:
        added[called] = weight
        add(self, called, weight, dtype)

    monkeypatch.setattr(ArrayWriter, "add", noted)
    text = MASKS[name] if name in MASKS else " ".join(OPEN[name])
    shapes = [(1, 20, 8)] if name in MASKS else [(17, 23)]
    (made,) = _executables(text, backend, shapes)
    arrays = SizedArrays(made.array_program)
    assert made.array_program.results.keys() == added.keys() and (added or name not in MASKS)
    for size in (9, 11, 30):
        sizes = tuple(size + i for i in range(len(made.symbols)))
        change = Substitution.by_sizes(dict(zip((one.name for one in made.symbols), sizes)))
        found = arrays.changed(made.numbers(sizes))
        for called, weight in added.items():
            expected = Weight(change(weight.constant), change(weight.type)).read()
            assert found[called].shape == expected.shape and found[called].dtype == expected.dtype
            assert found[called].tobytes() == expected.tobytes(), (called, sizes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_binding_computes_no_operator(backend, monkeypatch) -> None:
    """Neither their results nor their types, and none is looked through for sizes."""
    content = onnx.parser.parse_model(f"{HEAD} {BY_POSITION}").SerializeToString()
    session = InferenceSession(content, backend)

    def run(size: int) -> None:
        session.run(None, {"past": np.zeros((1, size, 4), "f"), "x": np.ones((1, 1, 4), "f")})

    run(20)
    asked: list[object] = []
    monkeypatch.setattr(constant, "computed", lambda *given: asked.append(given))
    monkeypatch.setattr(Weight, "read", lambda *given: asked.append(given))
    if backend != "cpu":  # which makes steps ready for their sizes
        infer = Pointwise.infer
        monkeypatch.setattr(Pointwise, "infer", lambda *a: asked.append(a) or infer(*a))  # type: ignore[func-returns-value]
    walk = Substitution._made

    def walked(self, value) -> Any:
        asked.extend([value] if isinstance(value, Operator) else [])
        return walk(self, value)

    monkeypatch.setattr(Substitution, "_made", walked)
    for size in (21, 22, 23):
        run(size)
    assert not asked


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_several_have_in_common_is_computed_once(backend) -> None:
    (made,) = _executables(MASKS["causal"], backend, [(1, 20, 8)])
    functions = [one.function for one in made.array_program.calls]
    assert functions.count("greater") == functions.count("where") == 1
    assert len(made.array_program.results) <= 2


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_their_memory_grows_and_is_kept(backend) -> None:
    content = onnx.parser.parse_model(f"{HEAD} {MASKS['causal']}").SerializeToString()
    session = InferenceSession(content, backend)
    kept: list[object] = []
    for size in (31, 9, 30, 17):
        x = np.random.default_rng(size).standard_normal((1, size, 8), np.float32)
        y, _ = session.run(None, {"x": x})
        p = x[0] @ x[0].T + np.triu(np.full((size, size), -10000.0), 1)
        e = np.exp(p - p.max(1, keepdims=True))
        np.testing.assert_allclose(y[0], e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
        (plan,) = session._executor.range_plans  # type: ignore[union-attr]
        names = plan.executable.array_program.results
        blocks = [plan.executable.slots[name].block for name in names]
        kept.append([plan.buffers._memories[block] for block in blocks])  # type: ignore[index]
    assert all(one == kept[0] for one in kept)


def test_what_depends_on_other_sizes_is_not_computed_again() -> None:
    calls = (
        ArrayCall("arange", (), (SizeIndex(0), "int64")),
        ArrayCall("arange", (), (SizeIndex(1), "int64")),
        ArrayCall("add", (0, -1), ()),
    )
    program = ArrayProgram((np.array(3),), calls, {"a": 2, "b": 1})
    program.check(2)
    arrays = SizedArrays(program)
    first = arrays.changed((2, 3))
    assert {name: array.tolist() for name, array in first.items()} == {"a": [3, 4], "b": [0, 1, 2]}
    assert arrays.changed((2, 3)) == {}
    second = arrays.changed((2, 1))
    assert {name: array.tolist() for name, array in second.items()} == {"b": [0]}


@pytest.mark.parametrize(
    "calls, results",
    [
        ([ArrayCall("system", (), ())], {}),
        ([ArrayCall("add", (0, 0), ())], {}),
        ([ArrayCall("negative", (-2,), ())], {}),
        ([ArrayCall("arange", (), (SizeIndex(2), "int64"))], {}),
        ([ArrayCall("arange", (), (3, "int64"))], {"a": 1}),
    ],
)
def test_programs_speak_of_what_is_there(calls, results) -> None:
    with pytest.raises(FormatError):
        ArrayProgram((np.array(3),), tuple(calls), results).check(2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_a_large_table_no_wider_copy_is_kept(backend, monkeypatch) -> None:
    """What is looked up is widened, not the table."""
    content = onnx.parser.parse_model(f"""{HEAD} g (float[1, P, 8] x) => (float[A, B, C] y)
        <float[4000, 8] table, int64 zero = {{0}}, int64 one = {{1}}> {{
            s = Shape (x)  n = Gather <axis = 0> (s, one)  r = Range (zero, n, one)
            w = Gather <axis = 0> (table, r)  t = Tanh (w)  y = Mul (x, t) }}""")
    table = np.random.default_rng(0).standard_normal((4000, 8), np.float32)
    content.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    session = InferenceSession(content.SerializeToString(), backend)
    for size in (20, 23):
        x = np.ones((1, size, 8), np.float32)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y[0], np.tanh(table[:size]), rtol=1e-5, atol=1e-6)
    (plan,) = session._executor.range_plans  # type: ignore[union-attr]
    kept = [one for one in plan.executable.array_program.constant_results if one is not None]
    assert (
        plan.executable.array_program.results
        and sum(one.nbytes for one in kept) < 1.5 * table.nbytes
    )

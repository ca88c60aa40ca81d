"""Branches, loops, sequences and functions of ONNX models, by ONNX Runtime or plain formulae."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.model.load import load_bytes
from glnn.onnx import importing
from glnn.session import InferenceSession

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request) -> str:
    return request.param


def run(text: str, backend: str, _head: str = HEAD, **feeds: Any) -> list[Any]:
    model = parser.parse_model(_head + text)
    try:
        session = InferenceSession(model.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    return session.run(None, feeds)


def f(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


BRANCHES = """
g (float[N] x, bool c) => (float[M] y) {
  y = If (c) <
    then_branch = t () => (a) { a = Mul (x, x) },
    else_branch = e () => (b) {
      axes = Constant <value_ints = [0]> ()
      s = ReduceSum (x, axes)
      b = Identity (s)
    }>
}"""


def test_branches_of_other_sizes(backend) -> None:
    x = f(1, 2, 3)
    for flag, expected in ((True, x * x), (False, f(6)), (True, x * x)):
        (got,) = run(BRANCHES, backend, x=x, c=np.array(flag))
        np.testing.assert_array_equal(got, expected)


def test_branches_of_other_ranks_that_a_size_decides(backend) -> None:
    """As exporters write squeeze: the condition is a size of x, so that one branch is planned."""
    text = """
    g (float[N, M] x) => (y) {
      shape = Shape (x)
      at = Constant <value_int = 1> ()
      size = Gather (shape, at)
      one = Constant <value_int = 1> ()
      is_one = Equal (size, one)
      y = If (is_one) <
        then_branch = t () => (a) { axes = Constant <value_ints = [1]> () a = Squeeze (x, axes) },
        else_branch = e () => (b) { b = Neg (x) }>
    }"""
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(run(text, backend, x=x[:, None])[0], x)
    np.testing.assert_array_equal(run(text, backend, x=x.reshape(2, 3))[0], -x.reshape(2, 3))


RATES = """
g (float[N, M] x, float[K, L] state, int64 rate) => (y, float[K, L] after) {
  fast = Constant <value_int = 16000> ()
  is_fast = Equal (rate, fast)
  y, after = If (is_fast) <
    then_branch = t () => (a, c) {
      four = Constant <value_ints = [2, 4]> ()
      a = Reshape (x, four)
      c = Neg (state)
    },
    else_branch = e () => (b, d) {
      fours = Constant <value_ints = [4, 2]> ()
      of_four = ConstantOfShape <value = float[1] {1}> (fours)
      b = MatMul (x, of_four)
      shape = Shape (state)
      d = Expand (state, shape)
    }>
}"""


def test_a_branch_that_is_not_taken_may_be_wrong_for_the_inputs(backend) -> None:
    """As voice detectors have it: an input says which of two networks suits the other."""
    x, state = np.arange(8, dtype=np.float32)[None], f(1, 2)[None]
    got, after = run(RATES, backend, x=x, state=state, rate=np.array(16000))
    np.testing.assert_array_equal(got, x.reshape(2, 4))
    np.testing.assert_array_equal(after, -state)
    got, after = run(RATES, backend, x=x[:, :4], state=state, rate=np.array(8000))
    np.testing.assert_array_equal(got, f(6, 6)[None])
    np.testing.assert_array_equal(after, state)
    with pytest.raises(ShapeError):
        run(RATES, backend, x=x, state=state, rate=np.array(8000))


def test_what_branches_compute_with_is_not_what_plans_are_made_by() -> None:
    """Each run has another state: one plan does, as what it decides about is its shape."""
    model = load_bytes(parser.parse_model(HEAD + RATES).SerializeToString())
    x, state = np.zeros((1, 8), np.float32), np.zeros((1, 2), np.float32)
    feeds = {"x": x, "state": state, "rate": np.array(16000)}
    assert set(model.graph.shape_input_arrays(feeds)) == {"rate"}


def test_a_loop_that_grows_and_ends_itself(backend) -> None:
    """The sum doubles until it is above 20, what was seen is appended; its length is the run's."""
    text = """
    g (float[1] x, int64 most) => (float[1] last, float[M] seen, float[K, 1] rows) {
      go = Constant <value = bool {1}> ()
      last, seen, rows = Loop (most, go, x, x) <body = b (int64 i, bool c, float[1] s, float[L] all)
          => (bool on, float[1] s2, float[P] all2, float[1] row) {
        s2 = Add (s, s)
        all2 = Concat <axis = 0> (all, s2)
        limit = Constant <value_float = 20.0> ()
        below = Less (s2, limit)
        none = Constant <value_ints = [0]> ()
        on = Squeeze (below, none)
        place = Cast <to = 1> (i)
        row = Mul (place, x)
      }>
    }"""
    for most, sums in ((100, [3, 6, 12, 24]), (2, [3, 6, 12]), (0, [3])):
        last, seen, rows = run(text, backend, x=f(3), most=np.array(most))
        np.testing.assert_array_equal(last, f(sums[-1]))
        np.testing.assert_array_equal(seen, f(*sums))
        expected = 3 * np.arange(len(sums) - 1, dtype=np.float32)[:, None]
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("p = Slice (x, none, end, none) h = MatMul (p, w) r = ReduceMax <axes = [0]> (h)", (1, 2)),
        ("p = Slice (x, none, end, none) r = MatMul (p, w)", (0, 2)),
        ("t = Concat <axis = 0> (end, one) u = Tile (x, t) r = ReduceMax <axes = [0]> (u)", (1, 3)),
        ("r = ReduceMax <axes = [0]> (x)", (1, 3)),
        ("p = Slice (x, end, five, none) r = Reshape (p, three)", (3,)),
    ],
)
def test_what_is_stacked_in_no_iterations_has_the_sizes_that_all_have(backend, body, shape) -> None:
    """The others are 0: the end of the Slice is the iteration's."""
    dims = ", ".join("NM"[: len(shape)])
    text = f"""
    g (float[2, 3] x, float[3, 2] w, int64 most) => (float[1] last, float[K, {dims}] rows) {{
      z = Constant <value_floats = [1.0]> ()
      last, rows = Loop (most, , z) <body = b (int64 i, bool c, float[1] s)
          => (bool on, float[1] s2, float[{dims}] r) {{
        on = Identity (c)
        s2 = Identity (s)
        none = Constant <value_ints = [0]> ()
        one = Constant <value_ints = [1]> ()
        three = Constant <value_ints = [3]> ()
        five = Constant <value_ints = [5]> ()
        at = Unsqueeze (i, none)
        end = Add (at, one)
        {body}
      }}>
    }}"""
    feeds = {"x": np.ones((2, 3), np.float32), "w": np.ones((3, 2), np.float32)}
    _, rows = run(text, backend, **feeds, most=np.array(0))
    assert rows.shape == (0, *shape)


SCAN = """
g (float[2] s, float[{shape}] x) => (float[2] last, float[{out}] y) {{
  last, y = Scan <num_scan_inputs = 1, {settings}, body = b (float[2] before, float[2] row)
      => (float[2] after, float[2] twice) {{
    after = Add (before, row)
    twice = Add (after, row)
  }}> (s, x)
}}"""


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize(("axis", "out"), [(0, 0), (-1, 1), (1, -2)])
def test_a_scan_along_any_axis_either_way(backend, rng, back, axis, out) -> None:
    settings = f"scan_input_axes = [{axis}], scan_input_directions = [{back}]"
    settings += f", scan_output_axes = [{out}], scan_output_directions = [{1 - back}]"
    rows = rng((5, 2))
    x = np.moveaxis(rows, 0, axis)
    text = SCAN.format(shape=",".join(map(str, x.shape)), out="A, B", settings=settings)
    last, y = run(text, backend, s=f(1, -1), x=x)
    walked = rows[::-1] if back else rows
    sums = f(1, -1) + np.cumsum(walked, 0)
    found = (sums + walked)[:: 1 if back else -1]
    np.testing.assert_allclose(last, sums[-1], rtol=1e-6)
    np.testing.assert_allclose(y, np.moveaxis(found, 0, out), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lengths", [None, (3, 1)])
def test_the_scan_of_version_8_walks_each_sample_by_itself(backend, rng, lengths) -> None:
    text = """
    g (float[2, 2] s, float[2, 3, 2] x{more}) => (float[2, 2] last, float[2, 3, 2] y) {{
      last, y = Scan <num_scan_inputs = 1, body = b (float[2] before, float[2] row)
          => (float[2] after, float[2] twice) {{
        after = Add (before, row)
        twice = Add (after, row)
      }}> ({lengths}, s, x)
    }}"""
    given = {} if lengths is None else {"n": np.array(lengths)}
    text = text.format(more=", int64[2] n" if given else "", lengths="n" if given else '""')
    text = text.replace('("", ', "(, ")
    head = '<ir_version: 3, opset_import: ["" : 8]>\n'
    s, x = rng((2, 2)), rng((2, 3, 2))
    last, y = run(text, backend, head, s=s, x=x, **given)
    for sample, length in enumerate(lengths or (3, 3)):
        sums = s[sample] + np.cumsum(x[sample, :length], 0)
        np.testing.assert_allclose(last[sample], sums[-1], rtol=1e-6, atol=1e-6)
        expected = np.zeros((3, 2), np.float32)
        expected[:length] = sums + x[sample, :length]
        np.testing.assert_allclose(y[sample], expected, rtol=1e-5, atol=1e-6)


def test_functions_of_the_model(backend) -> None:
    """One that calls another, with an attribute, and reads the values around a body in it."""
    head = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
    text = """
    g (float[N] x, bool c) => (float[N] y, float[N] z) {
      y = own.outer <scale = 3.0> (x, c)
      z = own.outer <scale = 5.0> (y, c)
    }
    <domain: "own", opset_import: ["" : 17, "own" : 1]>
    outer <scale> (a, flag) => (r) {
      twice = Add (a, a)
      r = If (flag) <
        then_branch = t () => (p) {
          s = Constant <value_float: float = @scale> ()
          p = Mul (twice, s)
        },
        else_branch = e () => (q) { q = own.inner (twice) }>
    }
    <domain: "own", opset_import: ["" : 17]>
    inner (twice) => (r) { a = Neg (twice) r = Identity (a) }
    """
    x = f(1, -2, 3)
    y, z = run(text, backend, head, x=x, c=np.array(True))
    np.testing.assert_array_equal(y, 6 * x)
    np.testing.assert_array_equal(z, 60 * x)
    y, z = run(text, backend, head, x=x, c=np.array(False))
    np.testing.assert_array_equal(y, -2 * x)
    np.testing.assert_array_equal(z, 4 * x)


def test_functions_that_call_themselves_are_refused() -> None:
    head = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
    text = """
    g (float[N] x) => (float[N] y) { y = own.one (x) }
    <domain: "own", opset_import: ["own" : 1]> one (a) => (r) { r = own.two (a) }
    <domain: "own", opset_import: ["own" : 1]> two (a) => (r) { r = own.one (a) }
    """
    with pytest.raises(ModelError, match=r"calls the function 'one' inside itself"):
        run(text, "cpu", head, x=f(1))


def test_functions_that_grow_without_bounds_are_refused(monkeypatch) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
    text = "g (float[N] x) => (float[N] y) { y = own.f0 (x) }\n"
    for i in range(40):
        call = f"own.f{i + 1}" if i < 39 else "Neg"
        text += f'<domain: "own", opset_import: ["" : 17, "own" : 1]> f{i} (a) => (r) '
        text += f"{{ b = {call} (a) r = {call} (b) }}\n"
    monkeypatch.setattr(importing, "MAX_NODES", 1000)
    with pytest.raises(ModelError, match="has more than 1000 nodes"):
        run(text, "cpu", head, x=f(1))


SEQUENCES = """
g (float[N, 3] x, int64 at) => (seq(float[P]) parts, float[Q] one, int64 count, float[R] whole) {
  parts = SplitToSequence <axis = 0, keepdims = 0> (x)
  turned = SequenceMap (parts) <body = b (float[3] row) => (float[3] r) { r = Neg (row) }>
  one = SequenceAt (turned, at)
  shorter = SequenceErase (turned, at)
  longer = SequenceInsert (shorter, one)
  count = SequenceLength (longer)
  whole = ConcatFromSequence <axis = 0> (longer)
}"""


def test_sequences(backend, rng) -> None:
    x = rng((4, 3))
    parts, one, count, whole = run(SEQUENCES, backend, x=x, at=np.array(-3))
    assert count == 4
    for got, row in zip(parts.item(), x, strict=True):
        np.testing.assert_array_equal(got, row)
    np.testing.assert_array_equal(one, -x[1])
    np.testing.assert_array_equal(whole, -x[[0, 2, 3, 1]].reshape(-1))
    with pytest.raises(ShapeError, match="a sequence of 4 has no position 4"):
        run(SEQUENCES, backend, x=x, at=np.array(4))


def test_what_was_given_is_said_as_onnx_runtime_says_it() -> None:
    text = "g (seq(int32[N]) s, optional(float[2]) o) => (int64 n) { n = SequenceLength (s) }"
    session = InferenceSession(parser.parse_model(HEAD + text).SerializeToString(), "cpu")
    kinds = [info.type for info in session.get_inputs()]
    assert kinds == ["seq(tensor(int32))", "optional(tensor(float))"]
    given = [np.array([1, 2], np.int32)] * 3
    assert session.run(None, {"s": given, "o": None})[0] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "y = If (c) <then_branch = t () => (a) { a = Neg (x) }>",
            "If lacks the attribute 'else_branch'",
        ),
        (
            "y = If (c) <then_branch = t () => (a) { a = Neg (x) }, "
            "else_branch = e (float[N] p) => (b) { b = Neg (p) }>",
            "'e' must have 0 inputs and 1 outputs, got 1 and 1",
        ),
        (
            "y = If (c) <then_branch = t () => (a) { a = Neg (q) }, "
            "else_branch = e () => (b) { b = Neg (x) }>",
            "reads 'q', which no node makes",
        ),
        (
            "y = Scan <num_scan_inputs = 2, body = b (float r) => (float s) { s = Neg (r) }> (x)",
            "num_scan_inputs must be from 1 to 1, got 2",
        ),
    ],
)
def test_bodies_that_do_not_fit(text, message) -> None:
    model = parser.parse_model(HEAD + f"g (float[N] x, bool c) => (float[N] y) {{ {text} }}")
    with pytest.raises(ModelError, match=message):
        InferenceSession(model.SerializeToString(), "cpu")


def test_a_loop_with_no_end_is_refused() -> None:
    text = """
    g (float[1] x) => (float[1] y) {
      y = Loop (n, c, x) <body = b (int64 i, bool c1, float[1] a) => (bool c2, float[1] r) {
        c2 = Identity (c1)
        r = Neg (a)
      }>
    }"""
    model = parser.parse_model(HEAD + text)
    del model.graph.node[0].input[:]
    model.graph.node[0].input.extend(["", "", "x"])
    with pytest.raises(ModelError, match="trips or a condition must be there"):
        InferenceSession(model.SerializeToString(), "cpu")


def test_a_part_of_a_sequence_that_no_run_changes(backend) -> None:
    """The host takes it once a run, and what reads it is planned behind that."""
    text = """
    g (float[2, 2] x) => (float[2, 4] y)
    <float[4, 4] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}> {
      two = Constant <value_int = 2> ()
      one = Constant <value_int = 1> ()
      parts = SplitToSequence <axis = 0> (w, two)
      part = SequenceAt (parts, one)
      y = MatMul (x, part)
    }"""
    x = np.array([[1, 2], [3, 4]], np.float32)
    (got,) = run(text, backend, x=x)
    np.testing.assert_array_equal(got, x @ np.arange(8, 16, dtype=np.float32).reshape(2, 4))


def test_a_result_whose_size_a_run_tells_is_the_callers_own(backend: str) -> None:
    """Whoever writes into it changes nothing of later runs."""
    text = HEAD + "g (float[N] x) => (int64[1, M] y) { y = NonZero (x) }"
    model = parser.parse_model(text).SerializeToString()
    try:
        session = InferenceSession(model, backend)
    except DeviceError as error:
        pytest.skip(str(error))
    for _ in range(2):
        (found,) = session.run(None, {"x": f(0, 3, 0, 4)})
        assert found.tolist() == [[1, 3]]
        found[...] = 0

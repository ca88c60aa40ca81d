"""Sizes that only a run tells, by ONNX Runtime: no model is refused for sizes that stand for them,
and numbers from which no size follows make no plans of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from glnn.compiler.memory_budget import Outline
from glnn.compiler.plan import Plan
from glnn.errors import DeviceError, ModelError, ShapeError, UnsupportedOpError
from glnn.model.load import load_bytes
from glnn.session import InferenceSession

HEAD = '<ir_version: 9, opset_import: ["": 17]>\n'
DECODER = Path(__file__).parent / "decoder-fixed.onnx"
F32 = np.float32


@pytest.fixture(params=["cpu", "compute", "feedback"])
def backend(request) -> str:
    return request.param


def session_of(model: bytes | str, backend: str) -> InferenceSession:
    try:
        return InferenceSession(model, backend)
    except DeviceError as error:
        pytest.skip(str(error))


def check(model: bytes, backend: str, feeds: dict[str, Any]) -> None:
    session = session_of(model, backend)
    runtime = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for got, expected in zip(session.run(None, feeds), runtime.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert got.dtype == expected.dtype


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


X = numbers(1, 6, 3)
ROWS = {"x": numbers(9, 3), "a": np.array([2]), "b": np.array([6])}
LATE = {
    "assign to a slice": (
        """g (float[1, 6, 3] x, int64[1] i, int64[1] j, float[1, 1, 3] v) => (float[A, B, D] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] six = {6}> {
          s = Slice (x, i, j, one)
          n = Shape (s)
          e = Expand (v, n)
          p = Slice (x, zero, i, one)
          q = Slice (x, j, six, one)
          y = Concat <axis = 1> (p, e, q)
        }""",
        {"x": X, "i": np.array([2]), "j": np.array([4]), "v": -numbers(1, 1, 3)},
    ),
    "loop reads its step by Slice": (
        """g (float[1, 6, 3] x, float[1, 1, 3] h0) => (float[1, 1, 3] h)
        <int64 n = {6}, bool t = {1}> {
          h = Loop (n, t, h0) <body = b (int64 it, bool k, float[1, 1, 3] s) => (k2, s2)
          <int64[1] zero = {0}, int64[1] one = {1}> {
            k2 = Identity (k)
            i = Unsqueeze (it, zero)
            i2 = Add (i, one)
            u = Slice (x, i, i2, one)
            s2 = Add (u, s)
          }>
        }""",
        {"x": X, "h0": np.zeros((1, 1, 3), F32)},
    ),
    "branch adds to a slice": (
        """g (float[1, 6, 3] x, int64[1] i, bool q, float[1, 1, 3] w) => (float[A, B, D] h) {
          h = If (q) <
            then_branch = t () => (a) <int64[1] one = {1}> {
              i2 = Add (i, one)
              s = Slice (x, i, i2, one)
              a = Add (s, w)
            },
            else_branch = e () => (d) { d = Identity (w) }>
        }""",
        {"x": X, "i": np.array([2]), "q": np.array(True), "w": numbers(1, 1, 3)},
    ),
    "Reshape by the length of a slice": (
        """g (float[9, 3] x, int64[1] a, int64[1] b, float[4, 6] w) => (float[N, M] y)
        <int64[1] zero = {0}, int64[1] rest = {-1}> {
          s = Slice (x, a, b, zero)
          n = Shape <start = 0, end = 1> (s)
          q = Concat <axis = 0> (n, rest)
          y = Reshape (w, q)
        }""",
        {**ROWS, "w": numbers(4, 6)},
    ),
    "Expand by the shape of a slice": (
        """g (float[9, 3] x, int64[1] a, int64[1] b, float[1, 3] w) => (float[N, M] y)
        <int64[1] zero = {0}> { s = Slice (x, a, b, zero)  n = Shape (s)  y = Expand (w, n) }""",
        {**ROWS, "w": numbers(1, 3)},
    ),
    "Expand by the shape of NonZero's rows": (
        """g (float[6, 3] x, float[6] m, float[1, 3] w) => (float[A, B] y) {
          nz = NonZero (m)
          i = Transpose (nz)
          r = GatherND (x, i)
          s = Shape (r)
          e = Expand (w, s)
          d = Sub (r, e)
          y = Concat <axis = 0> (d, w)
        }""",
        {"x": numbers(6, 3), "m": np.array([1, 0, 1, 1, 0, 0], F32), "w": numbers(1, 3)},
    ),
    "Expand by an open input": (
        "g (float[N, 3] x, float[4, 1] c) => (float[A, B] y) { n = Shape (x)  y = Expand (c, n) }",
        {"x": numbers(4, 3), "c": numbers(4, 1)},
    ),
}
for name, line, sizes in (
    ("TopK", "v, i = TopK <axis = 1> (x, k)", [3]),
    ("Tile", "v = Tile (x, k)", [1, 3]),
    ("Pad", "v = Pad (x, k)", [0, 0, 0, 3]),
):
    LATE[f"Expand by the shape of {name}"] = (
        f"g (float[2, 6] x, int64[{len(sizes)}] k, float[2, 1] w) => (float[A, B] y) {{ {line} "
        "s = Shape (v)  e = Expand (w, s)  y = Sub (v, e) }",
        {"x": numbers(2, 6), "k": np.array(sizes), "w": numbers(2, 1)},
    )


@pytest.mark.parametrize("case", LATE)
def test_sizes_that_a_run_tells(case: str, backend: str) -> None:
    text, feeds = LATE[case]
    check(parser.parse_model(HEAD + text).SerializeToString(), backend, feeds)


def positions(rows: int) -> bytes:
    """Ids of open sizes, and the first of so many positions, expanded to these."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["s"]),
        helper.make_node("Shape", ["ids"], ["n"], start=1, end=2),
        helper.make_node("Slice", ["positions", "zero", "n", "one", "one"], ["p"]),
        helper.make_node("Expand", ["p", "s"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("ids", "y")
    ]
    tables = {"positions": np.arange(rows)[None], "zero": np.array([0]), "one": np.array([1])}
    constants = [numpy_helper.from_array(array, name) for name, array in tables.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()


@pytest.mark.parametrize("rows", [16, 77, 256, 319, 320, 448, 512])
def test_positions_of_any_table(rows: int) -> None:
    for shape in ((2, 5), (1, min(rows, 300)), (3, 1)):
        check(positions(rows), "cpu", {"ids": np.zeros(shape, np.int64)})


def test_a_sequence_beyond_the_table_is_refused_in_the_run() -> None:
    session = InferenceSession(positions(16), "cpu")
    with pytest.raises(ShapeError, match=r"int64 \(1, 16\) does not broadcast with \(2, 17\)"):
        session.run(None, {"ids": np.zeros((2, 17), np.int64)})


STEPS = """(float[1, L, 60] x, bool q, float[1, 8, 3] w, float[1, 8, 2] r) => (float[A, 1, B, 2] y)
<int64[3] shape = {-1, 1, 3}> """
LONG = {
    "in the graph": f"g {STEPS} {{ s = Reshape (x, shape)  y = LSTM <hidden_size = 2> (s, w, r) }}",
    "in a branch": f"""g {STEPS} {{
      s = Reshape (x, shape)
      y = If (q) <
        then_branch = t () => (a) {{ a = LSTM <hidden_size = 2> (s, w, r) }},
        else_branch = e () => (b) {{ z = Neg (s)  b = LSTM <hidden_size = 2> (z, w, r) }}>
    }}""",
}


@pytest.mark.parametrize("case", LONG)
def test_more_steps_than_there_may_be_are_refused_in_the_run(case: str) -> None:
    """20 steps for each of an open size, which is not known when the model is loaded."""
    model = parser.parse_model(HEAD + LONG[case])
    given = {"x": numbers(1, 2, 60) / 120, "q": np.array(True)}
    given |= {"w": numbers(1, 8, 3) / 24, "r": numbers(1, 8, 2) / 16}
    names = [one.name for one in model.graph.input]
    if case == "in the graph":  # nothing reads q
        del model.graph.input[names.index("q")], given["q"]
    content = model.SerializeToString()
    check(content, "cpu", given)
    with pytest.raises(UnsupportedOpError, match="LSTM: 5000 steps, there may be 1 to 4096"):
        InferenceSession(content, "cpu").run(None, {**given, "x": numbers(1, 250, 60)})


def test_what_is_wrong_for_all_sizes_is_refused_at_once() -> None:
    """No size that matters here is open."""
    text = """g (float[N, 3] x) => (float[A, B] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
      s = MatMul (w, w)
      y = Mul (x, s)
    }"""
    with pytest.raises(ModelError, match=r"MatMul.*\(2, 3\)"):
        InferenceSession(parser.parse_model(HEAD + text).SerializeToString(), "cpu")


def test_dtypes_are_known_where_sizes_are_not() -> None:
    """So an output that is said to be of another dtype is refused at once."""
    text = """g (float[1, 6, 3] x, int64[1] i, float[1, 1, 3] v) => (int64[A, B, D] y)
    <int64[1] one = {1}> { j = Add (i, one)  s = Slice (x, i, j, one)  y = Add (s, v) }"""
    with pytest.raises(ModelError, match="said to be int64, it is float32"):
        InferenceSession(parser.parse_model(HEAD + text).SerializeToString(), "cpu")


def tokens(session: Any, count: int) -> list[int]:
    """The tokens that a decoder of 256 places gives, at first those behind a prompt's."""
    prompt, past = [1, 7, 42, 9, 3, 11, 5, 2], np.zeros((4, 1, 2, 256, 16), F32)
    found: list[int] = []
    for place in range(count):
        token = prompt[place] if place < len(prompt) else found[-1]
        feeds = {"ids": np.array([[token]]), "pos": np.array([place]), "past": past}
        logits, new = session.run(["logits", "new"], feeds)
        past[:, :, :, place : place + 1] = new
        found.append(int(logits[0, -1].argmax()))
    return found


def test_a_decoder_has_one_plan_for_all_positions(backend: str) -> None:
    session = session_of(str(DECODER), backend)
    expected = tokens(onnxruntime.InferenceSession(str(DECODER)), 24)
    assert tokens(session, 24) == expected
    assert len(session._executor._plans) == 1


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("n = Shape (p)  y = Reshape (x, n)", set()),
        ("s = Size (p)  n = Reshape (s, rest)  y = Reshape (x, n)", set()),
        ("f = Cast <to = 1> (k)  c = CastLike (k, p)  y = Reshape (x, c)", {"k"}),
        ("n = Add (p, k)  y = Reshape (x, n)", {"k", "p"}),
        (
            "n = If (q) <then_branch = t () => (a) { a = Shape (p) }, "
            "else_branch = e () => (b) { b = Identity (k) }>  y = Reshape (x, n)",
            {"k", "q"},
        ),
    ],
)
def test_numbers_are_looked_at_where_sizes_follow_from_them(line: str, asked: set[str]) -> None:
    text = f"""g (float[1] x, int64[1] p, int64[1] k, bool q) => (float[N] y)
    <int64[1] rest = {{-1}}> {{ {line} }}"""
    model = load_bytes(parser.parse_model(HEAD + text).SerializeToString())
    feeds = {"x": np.zeros(1, F32), "p": np.array([1]), "k": np.array([1]), "q": np.array(True)}
    assert set(model.graph.shape_input_arrays(feeds)) == asked


COUNTING = """counting (float[64, 3] t, int64 n) => (float[M, 3] rows, float[64, 3] last) {
    yes = Constant<value = bool {1}>() from = Constant<value = int64 {0}>()
    place, last, rows = Loop(n, yes, from, t) <body = body
        (int64 k, bool c, int64 p, float[64, 3] s) =>
        (bool more, int64 q, float[64, 3] s2, float[3] sum) {
        one = Constant<value_ints = [1]>() axis = Constant<value_ints = [0]>()
        step = Constant<value = int64 {1}>() q = Add(p, step)
        more = Identity(c) begin = Reshape(p, one) end = Reshape(q, one)
        row = Slice(s, begin, end, axis, one)
        size = Shape(row) wide = Expand(row, size) twice = Add(wide, row)
        column = Constant<value_ints = [-1, 1]>()
        count = Range(p, q, step) index = Reshape(count, column) same = Expand(index, size)
        s2 = ScatterElements<axis = 0>(s, same, twice) sum = ReduceSum<keepdims = 0>(s2, axis)
    }> }"""


GROWING = """growing (float[64, 3] t, int64 n, float[1, 3] w) => (float[M, 3] rows, float[3] sum) {
    yes = Constant<value = bool {1}>()
    rows, sums = Loop(n, yes, w) <body = body
        (int64 k, bool c, float[P, 3] s) => (bool more, float[Q, 3] s2, float[3] sum) {
        one = Constant<value_ints = [1]>() axis = Constant<value_ints = [0]>()
        more = Identity(c) begin = Reshape(k, one) end = Add(begin, one)
        row = Slice(t, begin, end, axis) s2 = Concat<axis = 0>(s, row)
        square = MatMul(s2, u) soft = Softmax<axis = 0>(square)
        sum = ReduceSum<keepdims = 0>(soft, axis)
    }> first = Constant<value_ints = [0]>() sum = ReduceSum<keepdims = 0>(sums, first) }"""


def plans_of(model: bytes, backend: str, feeds: dict[str, Any], monkeypatch: Any) -> int:
    """How many plans a new session makes whole for a run, whose results are right."""
    made: list[str] = []
    of = Outline.create.__func__  # type: ignore[attr-defined]

    def counted(cls: type[Outline], graph: Any, *args: Any, **options: Any) -> Outline:
        made.append(graph.name)
        found: Outline = of(cls, graph, *args, **options)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Outline, "create", classmethod(counted))
        check(model, backend, feeds)
    return len(made)


def test_a_loop_whose_state_grows_has_one_plan_for_its_body(backend: str, monkeypatch: Any) -> None:
    """As a decoder in the graph itself: as many plans for 40 iterations as for 16."""
    proto = parser.parse_model(HEAD + GROWING)
    proto.graph.initializer.append(numpy_helper.from_array(numbers(3, 3) / 9, "u"))
    table, start = numbers(64, 3) / 99, numbers(1, 3)
    counts = [
        plans_of(
            proto.SerializeToString(),
            backend,
            {"t": table, "n": np.array(trips), "w": start},
            monkeypatch,
        )
        for trips in (16, 40)
    ]
    assert counts[1] <= counts[0] + 2  # sizes from 32 on are another range, of the sums too


def test_a_loop_that_slices_by_its_counter_has_one_plan(backend: str, monkeypatch: Any) -> None:
    """The host slices, and no iteration beyond the first few makes a plan of its own."""
    model = parser.parse_model(HEAD + COUNTING).SerializeToString()
    made: list[str] = []
    planned = Plan.__init__

    def counted(self: Plan, graph: Any, *args: Any, **options: Any) -> None:
        made.append(graph.name)
        planned(self, graph, *args, **options)

    monkeypatch.setattr(Plan, "__init__", counted)
    counts = []
    for iterations in (16, 40):
        made.clear()
        check(model, backend, {"t": numbers(64, 3), "n": np.array(iterations)})
        counts.append(len(made))
    assert counts[1] <= counts[0] + 1 <= 12  # numbers from 32 on may be another range


RELATED = {
    "not used together": ("float[N, 3] b", "c = ReduceSum <keepdims = 0> (a)  y = Add (b, c)", 0),
    "would broadcast": ("float[N, 3] b", "y = Add (a, b)", 0),
    "joined": ("float[N, 3] b", "y = Concat <axis = 0> (a, b)", 0),
    "another dimension": ("float[3, N] b", "y = MatMul (a, b)", 1),
}


@pytest.mark.parametrize("case", RELATED)
def test_two_inputs_that_share_a_size_are_refused_with_two(case: str, backend: str) -> None:
    """Whatever was run before, also where the graph could be computed."""
    second, line, axis = RELATED[case]
    text = f"g (float[N, 3] a, {second}) => (float[A, B] y) {{ {line} }}"
    session = session_of(parser.parse_model(HEAD + text).SerializeToString(), backend)

    def feeds(one: int, other: int) -> dict[str, Any]:
        return {"a": numbers(one, 3), "b": numbers(*((3, other) if axis else (other, 3)))}

    for one, other in ((1, 4), (2, 5), (5, 2), (2, 3)):
        for _ in range(2):
            said = rf"inputs 'a' and 'b' must have one size N, got {one} and {other} "
            said += rf"\(dimension 0 of 'a', dimension {axis} of 'b'\)"
            with pytest.raises(ShapeError, match=said):
                session.run(None, feeds(one, other))
            with pytest.raises(ShapeError, match=said):
                session.run_async(None, feeds(one, other))
        for same in (one, other):
            assert session.run(None, feeds(same, same))[0].size


def test_one_input_whose_sides_share_a_size(backend: str) -> None:
    text = "g (float[N, N] a) => (float[A, B] y) { y = Relu (a) }"
    session = session_of(parser.parse_model(HEAD + text).SerializeToString(), backend)
    said = r"input 'a' must have one size N, got 2 and 3 \(dimension 0 of 'a', dimension 1 of 'a'\)"
    with pytest.raises(ShapeError, match=said):
        session.run(None, {"a": numbers(2, 3)})
    np.testing.assert_array_equal(session.run(None, {"a": numbers(3, 3)})[0], numbers(3, 3))


def test_sizes_without_a_name_are_each_another() -> None:
    """Two inputs may then have any."""
    text = "g (float[?, 3] a, float[?, 3] b) => (float[A, B] y) { y = Concat <axis = 0> (a, b) }"
    model = parser.parse_model(HEAD + text).SerializeToString()
    check(model, "cpu", {"a": numbers(2, 3), "b": numbers(5, 3)})


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
@pytest.mark.parametrize(
    "shapes",
    [
        [(), (7, 7, 7), (2,), (3, 4)],
        [(5,), (4, 3), (3, 4, 5), (2,), ()],
        [(1,), (1, 1), (2, 1), (3,)],
    ],
)
@pytest.mark.parametrize(
    "nodes",
    [
        "c = ConstantOfShape <value = float[1] {2}> (s)  y = Neg (c)",
        "e = Expand (x, s)  y = Neg (e)",
    ],
)
def test_a_list_of_sizes_of_another_length(nodes, shapes, backend) -> None:
    """It says another rank, also where the plan before was for a list of one size or none."""
    text = f"g (float[B] x, int64[K] s) => (float y) {{ {nodes} }}"
    content = parser.parse_model(HEAD + text).SerializeToString()
    session = InferenceSession(content, backend)
    theirs = onnxruntime.InferenceSession(content)
    for shape in shapes:
        feeds = {"x": np.ones(1, np.float32), "s": np.array(shape, np.int64)}
        (y,), (expected,) = session.run(None, feeds), theirs.run(None, feeds)
        assert y.shape == expected.shape and np.array_equal(y, expected)


def test_integers_that_follow_from_sizes_make_no_plan_of_one_size(backend) -> None:
    """As positions of a causal mask, which transformers' decoders count and cut: to know that they
    are int32's their bounds do."""
    text = """g (float[P, 4] past, float[S, 4] x) => (float[T, 4] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}> {
      n = Shape <start = 0, end = 1> (past)
      all = Concat <axis = 0> (past, x)
      t = Shape <start = 0, end = 1> (all)
      end = Squeeze (t)
      counted = Range (zero, end, one)
      rest = Slice (counted, n, t)
      before = Slice (counted, first, n)
      places = Concat <axis = 0> (rest, before)
      turned = Gather <axis = 0> (all, places)
      numbers = Cast <to = 1> (places)
      axes = Unsqueeze (numbers, one)
      y = Add (turned, axes)
    }"""
    model = parser.parse_model(HEAD + text)
    session = session_of(model.SerializeToString(), backend)
    runtime = onnxruntime.InferenceSession(model.SerializeToString())
    for length in range(8, 30):
        feeds = {"past": numbers(length, 4), "x": numbers(2, 4)}
        (got,), (expected,) = session.run(None, feeds), runtime.run(None, feeds)
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert len(session._executor.range_plans) == 1


def test_a_decoder_whose_branch_an_input_names_is_planned_for_a_range(backend, monkeypatch) -> None:
    """Optimum's merged decoders: the first step is fed empty caches, of sizes that do not agree
    with the other inputs' and that the branch taken does not read; later ones have another branch.
    A shape is cut behind its end there, of which nothing is left."""
    text = """g (float[B, P, 4] past, float[B, S, 4] x, float[B, E, 4] far, float[B, E, 4] kept,
               bool[1] cached) => (float[B, T, 4] y, float[B, E, 4] keeps)
    <int64[1] three = {3}, int64[1] most = {9}, int64[1] zero = {0}> {
      flag = Squeeze (cached)
      y, keeps = If (flag) <
        then_branch = a () => (y1, k1) {
          all = Concat <axis = 1> (past, x)
          sizes = Shape (all)
          rest = Slice (sizes, three, most, zero)
          same = Concat <axis = 0> (sizes, rest)
          y1 = Reshape (all, same)
          k1 = Identity (kept)
        },
        else_branch = b () => (y2, k2) {
          y2 = Relu (x)
          k2 = Neg (far)
        }>
    }"""
    model = parser.parse_model(HEAD + text).SerializeToString()
    session = session_of(model, backend)
    runtime = onnxruntime.InferenceSession(model)
    made, start = list[Plan](), Plan.__init__

    def noted(self: Plan, *arguments: Any, **options: Any) -> None:
        start(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(Plan, "__init__", noted)
    x, far = numbers(2, 1, 4) - 3, numbers(2, 5, 4)
    empty = np.zeros((2, 0, 4), F32)
    feeds = {"past": empty, "x": x, "far": far, "kept": empty, "cached": np.array([False])}
    for _ in range(20):
        got = session.run(None, feeds)
        for one, expected in zip(got, runtime.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, expected)
        feeds |= {"past": got[0], "kept": got[1], "cached": np.array([True])}
    assert len(made) == 4  # for the first step, and lengths of 1, 2 to 7, 8 to 31
    with pytest.raises(ShapeError, match="must have one size E, got 5 and 3"):
        session.run(None, {**feeds, "kept": numbers(2, 3, 4)})


def test_prompts_of_any_length_have_one_plan_where_the_cache_is_empty(backend) -> None:
    text = """g (float[P, 4] past, float[S, 4] x) => (float[T, 4] y) {
      all = Concat <axis = 0> (past, x)
      y = Mul (all, all)
    }"""
    session = session_of(parser.parse_model(HEAD + text).SerializeToString(), backend)
    empty = np.zeros((0, 4), F32)
    for length in (9, 10, 31, 8):
        for x in (numbers(length, 4), numbers(length, 4) - 7):
            (got,) = session.run(None, {"past": empty, "x": x})
            np.testing.assert_array_equal(got, x * x)
    assert len(session._executor.range_plans) == 1
    (got,) = session.run(None, {"past": numbers(2, 4), "x": numbers(9, 4)})
    np.testing.assert_array_equal(got, np.concatenate([numbers(2, 4), numbers(9, 4)]) ** 2)
    assert len(session._executor.range_plans) == 2
    assert not session._executor._plans


def test_a_size_beside_integers_is_no_step_of_the_hosts(backend) -> None:
    text = """g (float[P, 4] past, int64[S] i) => (int64[S] y, float[T, 4] z) {
      n = Shape <start = 0, end = 1> (past)
      y = Add (i, n)
      z = Gather <axis = 0> (past, i)
    }"""
    session = session_of(parser.parse_model(HEAD + text).SerializeToString(), backend)
    for length in range(8, 30):
        past, i = numbers(length, 4), np.arange(3)
        y, z = session.run(None, {"past": past, "i": i})
        np.testing.assert_array_equal(y, i + length)
        np.testing.assert_array_equal(z, past[:3])
    assert not session.hosted
    assert len(session._executor.range_plans) == 1
    assert not session._executor._plans

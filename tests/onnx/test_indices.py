"""Indices given as inputs: beyond their table they are refused, as ONNX Runtime does."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from glnn.backends import NAMES
from glnn.core.tensor_info import TensorInfo
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.layers import Embedding
from glnn.model import Model
from glnn.model.node import Node
from glnn.session import InferenceSession

RNG = np.random.default_rng(36)
T, U = RNG.standard_normal((10, 4)).astype("f"), RNG.standard_normal((2, 4)).astype("f")
GRAPHS = {  # the text, the shape of the indices, the size of the table along their last place
    "gather": ("(int64[N, 3] i, float[10, 4] t) => (float[N, 3, 4] y) { y = Gather(t, i) }", 10),
    "axis": ("(int64[N] i, float[10, 4] t) => (float[10, N] y) { y = Gather<axis=1>(t, i) }", 4),
    "scalar": ("(int64 i, float[10, 4] t) => (float[4] y) { y = Gather(t, i) }", 10),
    "viewed": (
        "(int64[N, 3] i, float[10, 4] t) => (float[M, 4] y) { s = Constant<value_ints=[-1]>()"
        " r = Reshape(i, s) c = Cast<to=6>(r) y = Gather(t, c) }",
        10,
    ),
    "elements": (
        "(int64[2, 3] i, float[10, 4] t) => (float[2, 3] y) { y = GatherElements(t, i) }",
        10,
    ),
    "tuples": ("(int64[3, 2] i, float[10, 4] t) => (float[3] y) { y = GatherND(t, i) }", 4),
    "put": (
        "(int64[2, 4] i, float[10, 4] t, float[2, 4] u) => (float[10, 4] y)"
        " { y = ScatterElements(t, i, u) }",
        10,
    ),
    "put_tuples": (
        "(int64[2, 1] i, float[10, 4] t, float[2, 4] u) => (float[10, 4] y)"
        " { y = ScatterND(t, i, u) }",
        10,
    ),
}
SHAPES = {"gather": (2, 3), "axis": (3,), "scalar": (), "viewed": (2, 3), "elements": (2, 3)}
SHAPES |= {"tuples": (3, 2), "put": (2, 4), "put_tuples": (2, 1)}


def model(text: str) -> bytes:
    head = '<ir_version: 8, opset_import: ["" : 17]> g '
    return bytes(parser.parse_model(head + text).SerializeToString())


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("name", GRAPHS)
def test_beyond_the_table(name: str, backend: str) -> None:
    text, size = GRAPHS[name]
    content = model(text)
    ours, theirs = InferenceSession(content, backend), onnxruntime.InferenceSession(content)
    index = np.array(np.arange(np.prod(SHAPES[name], dtype=int)).reshape(SHAPES[name]) % 4)
    feeds = {"i": index, "t": T} | ({"u": U} if "float[2, 4] u" in text else {})
    for number in (size - 1, -size, 0):
        index.flat[-1] = number
        (expected,) = theirs.run(None, feeds)
        assert np.array_equal(ours.run(None, feeds)[0], expected)
    for number in (size, -size - 1, 2**40):
        index.flat[-1] = number
        if number < 2**40 or name != "viewed":
            with pytest.raises(Exception, match=r"(?i)out of|indice|index|bounds"):
                theirs.run(None, feeds)
        at = [] if not index.shape else [n - 1 for n in index.shape]
        with pytest.raises(ShapeError) as caught:
            ours.run(None, feeds)
        assert str(caught.value) == (
            f"input 'i' must be indices from {-size} to {size - 1}, of a table of {size}, "
            f"got {number}" + (f" at {at}" if at else "")
        )


def test_an_input_that_is_looked_up_in_two_tables() -> None:
    text = """(int64[3] i, float[10, 4] t, float[7, 4] s) => (float[3, 4] y)
        { a = Gather(t, i) b = Gather(s, i) y = Add(a, b) }"""
    session = InferenceSession(model(text), "cpu")
    feeds = {"i": np.array([0, 6, -7]), "t": T, "s": T[:7]}
    assert np.array_equal(session.run(None, feeds)[0], T[[0, 6, 3]] + T[[0, 6, 0]])
    with pytest.raises(ShapeError, match="from -7 to 6, of a table of 7, got 9"):
        session.run(None, feeds | {"i": np.array([0, 9, 0])})


def test_what_is_computed_of_an_input_is_none() -> None:
    text = """(int64[3] i, float[10, 4] t) => (float[3, 4] y)
        { n = Constant<value_int=10>() a = Mod(i, n) y = Gather(t, a) }"""
    index = np.array([10, 23, -1])
    found = InferenceSession(model(text), "cpu").run(None, {"i": index, "t": T})[0]
    assert np.array_equal(found, T[index % 10])


FOLLOWED = {
    "Transpose": ("int64", "k = Transpose<perm=[1, 0]>(i)"),
    "Expand": ("int32", "s = Constant<value_ints=[2, 2, 2]>() k = Expand(i, s)"),
    "Cast": ("float", "k = Cast<to=7>(i)"),
    "Cast of int8": ("int8", "k = Cast<to=7>(i)"),
    "Cast and Transpose": ("float16", "c = Cast<to=6>(i) k = Transpose<perm=[1, 0]>(c)"),
}


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("operator", ["Gather", "GatherElements"])
@pytest.mark.parametrize("name", FOLLOWED)
def test_inputs_are_followed_through_what_keeps_all_numbers(
    name: str, operator: str, backend: str
) -> None:
    dtype, text = FOLLOWED[name]
    shape = "float[4, 4]"
    if name == "Expand":
        shape = "float[2, 4, 4]" if operator == "GatherElements" else shape
    content = model(
        f"({dtype}[2, 2] i, {shape} t) => (float[N, M, K] y) {{ {text} y = {operator}(t, k) }}"
    )
    ours, theirs = InferenceSession(content, backend), onnxruntime.InferenceSession(content)
    sizes = [int(n) for n in shape[6:-1].split(", ")]
    t = RNG.standard_normal(sizes).astype("f")
    index = np.array([[0, 1], [-1, 1]], {"float": "f", "float16": "e"}.get(dtype, dtype))
    (expected,) = theirs.run(None, {"i": index, "t": t})
    assert np.array_equal(ours.run(None, {"i": index, "t": t})[0], expected)
    for number in (sizes[0], -sizes[0] - 1):
        index[0, 1] = number
        with pytest.raises(Exception, match=r"(?i)indic|out of"):
            theirs.run(None, {"i": index, "t": t})
        with pytest.raises(ShapeError, match=rf"^input 'i' must .* got {number}\D.*at \[0, 1\]"):
            ours.run(None, {"i": index, "t": t})


def test_floats_that_are_cast_to_indices() -> None:
    """They are rounded towards 0, NaN is 0."""
    content = model(
        "(float[3] i, float[10, 4] t) => (float[3, 4] y) { k = Cast<to=7>(i) y = Gather(t, k) }"
    )
    session = InferenceSession(content, "cpu")
    found = session.run(None, {"i": np.array([9.9, np.nan, -10.9], "f"), "t": T})[0]
    assert np.array_equal(found, T[[9, 0, 0]])
    for number in (10.0, -11.0, np.inf):
        with pytest.raises(ShapeError, match=rf"of a table of 10, got {number} at \[2\]"):
            session.run(None, {"i": np.array([0, 1, number], "f"), "t": T})


def test_transposed_tuples() -> None:
    """Their places are not those of the input: the largest size bounds them."""
    text = """(int64[2, 2] i, float[10, 4] t) => (float[2] y)
        { k = Transpose<perm=[1, 0]>(i) y = GatherND(t, k) }"""
    session = InferenceSession(model(text), "cpu")
    found = session.run(None, {"i": np.array([[9, 1], [0, 3]]), "t": T})[0]
    assert np.array_equal(found, T[[9, 1], [0, 3]])
    with pytest.raises(ShapeError, match="of a table of 10, got 10"):
        session.run(None, {"i": np.array([[10, 1], [0, 3]]), "t": T})


@pytest.mark.parametrize("backend", NAMES)
def test_an_ignored_target_is_no_index(backend: str) -> None:
    text = """(float[3, 4] x, int64[3] t, float[4] w) => (float y)
        { y = NegativeLogLikelihoodLoss<ignore_index = -100>(x, t, w) }"""
    x, w = -RNG.random((3, 4)).astype("f"), RNG.random(4).astype("f")
    found = InferenceSession(model(text), backend).run(
        None, {"x": x, "t": np.array([1, -100, 3]), "w": w}
    )
    expected = -(x[0, 1] * w[1] + x[2, 3] * w[3]) / (w[1] + w[3])
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


@pytest.mark.parametrize("backend", NAMES)
def test_an_embedding(backend: str) -> None:
    node = Node("rows", Embedding(10, 4), ("ids",), "rows")
    info = TensorInfo("ids", ("N", 3), "tensor(int32)")
    session = InferenceSession(Model((node,), (info,), ("rows",), "words"), backend)
    with pytest.raises(
        ShapeError, match=r"'ids' must be indices from -10 to 9.*, got 10 at \[0, 2"
    ):
        session.run(None, {"ids": np.array([[1, -10, 10]], np.int32)})


ORDERS = """(float[2] x, bool c) => (float[2] y) {
    y = Add(b, d)
    d = If(c) <then_branch = p () => (q) { q = Neg(a) }, else_branch = r () => (s) { s = Abs(b) }>
    b = Mul(a, a)
    a = Exp(x)
}"""


def test_nodes_in_any_order() -> None:
    """ONNX asks for an order, and Runtime finds one."""
    content, x = model(ORDERS), np.array([0.5, -1], np.float32)
    for on in (True, False):
        feeds = {"x": x, "c": np.array(on)}
        (expected,) = onnxruntime.InferenceSession(content).run(None, feeds)
        found = InferenceSession(content, "cpu").run(None, feeds)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_nodes_in_a_circle() -> None:
    text = "(float[2] x) => (float[2] y) { y = Add(x, b) a = Neg(b) b = Add(a, x) c = Neg(x) }"
    with pytest.raises(ModelError, match=r"nodes need each other's results: 'Add_2', 'Neg_1'$"):
        InferenceSession(model(text), "cpu")
    with pytest.raises(ModelError, match="reads 'q', which no node makes"):
        InferenceSession(model("(float[2] x) => (float[2] y) { y = Add(x, q) }"), "cpu")


def test_what_nobody_computes() -> None:
    text = """(float[1, 1, 6, 6] x, float[2, 5] r) => (float[2, 1, 2, 2] y)
        { y = MaxRoiPool<pooled_shape = [2, 2]>(x, r) }"""
    with pytest.raises(GlnnError) as caught:
        InferenceSession(model(text), "cpu").run(
            None, {"x": np.zeros((1, 1, 6, 6), "f"), "r": np.zeros((2, 5), "f")}
        )
    says = "MaxRoiPool (operator set 1) of float: no kernel computes it, and onnx.reference is not"
    assert says in str(caught.value)


@pytest.mark.parametrize("backend", NAMES)
def test_computed_indices_of_a_graph_in_parts_are_clamped(backend: str) -> None:
    text = """(float[5] x, int64[3] i) => (float[3] y) { nz = NonZero(x)
        s = Constant<value_ints=[-1]>() r = Reshape(nz, s) g = Cast<to=1>(r)
        ten = Constant<value_int=10>() j = Add(i, ten) y = Gather(g, j) }"""
    x = np.array([1, 0, 1, 1, 1], "f")
    found = InferenceSession(model(text), backend).run(None, {"x": x, "i": np.array([0, -9, -30])})
    np.testing.assert_array_equal(found[0], np.array([4, 2, 0], "f"))


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("view", ["Identity(i)", "Reshape(i, s)", "Cast<to=7>(i)", "Cast<to=6>(i)"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_an_input_of_a_graph_in_parts_is_checked(dtype: str, view: str, backend: str) -> None:
    """The table is the second part's, the view of the indices may be the first part's."""
    text = f"""(float[5] x, {dtype}[3] i) => (float[3] y) {{ nz = NonZero(x)
        s = Constant<value_ints=[-1]>() r = Reshape(nz, s) g = Cast<to=1>(r)
        k = {view} y = Gather(g, k) }}"""
    session = InferenceSession(model(text), backend)
    x, index = np.array([1, 0, 1, 1, 1], "f"), np.array([0, -4, 3], dtype)
    (found,) = session.run(None, {"x": x, "i": index})
    np.testing.assert_array_equal(found, np.array([0, 0, 4], "f"))
    for number in (4, -5):
        index[1] = number
        with pytest.raises(
            ShapeError, match=rf"^input 'i'.* must be indices from -4 to 3.*got {number} at \[1\]"
        ):
            session.run(None, {"x": x, "i": index})


@pytest.mark.parametrize("backend", NAMES)
def test_an_input_of_a_third_part_is_checked(backend: str) -> None:
    text = """(float[5] x, int64[3] i) => (float[3] y) { nz = NonZero(x)
        s = Constant<value_ints=[-1]>() r = Reshape(nz, s) g = Cast<to=1>(r)
        n2 = NonZero(g) r2 = Reshape(n2, s) h = Cast<to=1>(r2) y = Gather(h, i) }"""
    session = InferenceSession(model(text), backend)
    feeds = {"x": np.array([1, 0, 1, 1, 1], "f"), "i": np.array([0, -3, 2])}
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.array([1, 1, 3], "f"))
    with pytest.raises(ShapeError, match=r"^input 'i' must be indices from -3 to 2.*got 3 at \[1"):
        session.run(None, feeds | {"i": np.array([0, 3, 2])})


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("index", ["i", "k"])
def test_indices_that_a_loop_computes_are_clamped(backend: str, index: str) -> None:
    """They are a state, which is called as the model's input is, or the iteration's number."""
    text = f"""(float[3] t, int64 n, int64[1] i, bool b) => (int64[1] last, float[M, 1] y) {{
        one = Constant<value_ints=[1]>() two = Constant<value_ints=[2]>()
        last, y = Loop(n, b, i) <body = body (int64 k, bool c, int64[1] i) =>
            (bool more, int64[1] j, float[1] out) {{
            more = Identity(c) j = Add(i, two) at = Reshape({index}, one)
            out = Gather(t, at) }}> }}"""
    t = np.array([5, 6, 7], "f")
    feeds = {"t": t, "n": np.array(5), "i": np.array([0]), "b": np.array(True)}
    last, y = InferenceSession(model(text), backend).run(None, feeds)
    assert last.tolist() == [10]
    expected = [0, 2, 2, 2, 2] if index == "i" else [0, 1, 2, 2, 2]
    np.testing.assert_array_equal(y[:, 0], t[expected])

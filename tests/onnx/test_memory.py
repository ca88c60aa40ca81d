"""Models whose sizes need much memory: refused before it is taken, and small when loaded."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import parser

from glnn import host_memory
from glnn.backends import NAMES
from glnn.compile.hosted import LARGE
from glnn.errors import LimitError
from glnn.session import InferenceSession

FREE = 256 << 20
LOADED = 48 << 20
LARGE_MODELS = {
    "OneHot": """(int64[4] x) => (float[N] y) {
        d = Constant<value_ints=[100000000]>() v = Constant<value_floats=[0.0, 1.0]>()
        o = OneHot(x, d, v) y = ReduceSum<keepdims=0>(o) }""",
    "Expand": """(float[1] x) => (float[N] y) { s = Constant<value_ints=[1000000000]>()
        e = Expand(x, s) y = ReduceSum(e) }""",
    "Expand of a constant": """(float[1] x) => (float[N] y) {
        c = Constant<value_floats=[1.0]>() s = Constant<value_ints=[1000000000]>()
        e = Expand(c, s) r = ReduceSum(e) y = Add(r, x) }""",
    "Tile of a constant": """(float[1] x) => (float[N] y) {
        c = Constant<value_floats=[1.0]>() s = Constant<value_ints=[1000000000]>()
        e = Tile(c, s) r = ReduceSum(e) y = Add(r, x) }""",
    "Range": """(float[1] x) => (float[N] y) { a = Constant<value_float=0.0>()
        b = Constant<value_float=100000000.0>() c = Constant<value_float=1.0>()
        e = Range(a, b, c) r = ReduceSum(e) y = Add(r, x) }""",
    "Pad": """(float[1] x) => (float[N] y) { s = Constant<value_ints=[0, 1000000000]>()
        e = Pad(x, s) y = ReduceSum(e) }""",
    "Pad by a value that a run tells": """(float[1] x) => (float[N] y) {
        s = Constant<value_ints=[0, 1000000000]>() z = Squeeze(x)
        e = Pad(x, s, z) y = ReduceSum(e) }""",
    "ConstantOfShape": """(float[1] x) => (float[N] y) { s = Constant<value_ints=[1000000000]>()
        e = ConstantOfShape(s) r = ReduceSum(e) y = Add(r, x) }""",
    "EyeLike": """(float[1] x) => (float[N] y) { s = Constant<value_ints=[20000, 20000]>()
        e = ConstantOfShape(s) f = EyeLike(e) r = ReduceSum<keepdims=0>(f) y = Add(r, x) }""",
    "Trilu": """(float[1] x) => (float[N] y) { s = Constant<value_ints=[20000, 20000]>()
        e = Expand(x, s) f = Trilu(e) y = ReduceSum<keepdims=0>(f) }""",
    "HannWindow": """(float[1] x) => (float[N] y) { s = Constant<value_int=300000000>()
        e = HannWindow(s) r = ReduceSum(e) y = Add(r, x) }""",
    "float64": """(double[1] x) => (double[N] y) { s = Constant<value_ints=[500000000]>()
        e = Expand(x, s) y = ReduceSum(e) }""",
}


def model(text: str) -> bytes:
    head = '<ir_version: 8, opset_import: ["" : 17]> g '
    return bytes(parser.parse_model(head + text).SerializeToString())


@pytest.mark.parametrize("name", LARGE_MODELS)
def test_what_does_not_fit_is_refused_before_it_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine has more: nothing but what is free is the bound of a run, nothing of a load."""
    content = model(LARGE_MODELS[name])
    tracemalloc.start()
    try:
        session = InferenceSession(content, "cpu")
        assert tracemalloc.get_traced_memory()[1] < LOADED
        monkeypatch.setattr(host_memory, "free_memory", lambda: FREE)
        (given,) = session.get_inputs()
        x = np.ones(given.shape, given.dtype.numpy)
        with pytest.raises(LimitError, match=_said(name)):
            session.run(None, {"x": x})
        assert tracemalloc.get_traced_memory()[1] < LOADED
    finally:
        tracemalloc.stop()


def _said(name: str) -> str:
    kind = "float64" if name == "float64" else r"\w+"
    return (
        rf"^node '\w+.*', \w+ with the result {kind} \(.*\), needs \d+ bytes of the host's memory "
        rf"\(\d+\.\d MiB\), {FREE} are free \(256.0 MiB\)$"
    )


CHAIN = """(float[1] x) => (float[N] y) { s = Constant<value_ints=[25000000]>()
    e = Expand(x, s) a = Sin(e) b = CumSum(a, z) c = CumSum(b, z) y = ReduceSum(c) }"""


def test_tensors_that_are_there_at_once_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them fits by itself."""
    text = CHAIN.replace("{ s", "{ z = Constant<value_int=0>() s")
    session = InferenceSession(model(text), "cpu")
    monkeypatch.setattr(host_memory, "free_memory", lambda: FREE)
    tracemalloc.start()
    try:
        said = r"a run of g on cpu, of which node '\w+', \w+ with the result float32 \(25000000,\)"
        with pytest.raises(
            LimitError, match=said + r", takes 100000000, needs [34]0000000\d bytes"
        ):
            session.run(None, {"x": np.ones(1, np.float32)})
        assert tracemalloc.get_traced_memory()[1] < LOADED
    finally:
        tracemalloc.stop()
    monkeypatch.setattr(host_memory, "free_memory", lambda: 3 * FREE)
    (found,) = session.run(None, {"x": np.zeros(1, np.float32)})
    assert found == 0


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """(float[1] x) => (float[N] y) { c = Constant<value_floats=[2.0]>()
            s = Constant<value_ints=[5000000]>() y = Expand(c, s) }""",
            2.0,
        ),
        (
            """(float[2, 500] x) => (float[N, M] y) { c = Constant<value_floats=[2.0]>()
            s = Constant<value_ints=[500, 10000]>() e = Expand(c, s) y = MatMul(x, e) }""",
            500.0,
        ),
        (
            """(float[1] x) => (float[N] y) { c = Constant<value_floats=[2.0]>()
            s = Constant<value_ints=[5000000]>() e = Tile(c, s) f = Neg(e) m = Mul(f, e)
            r = ReduceMean(m) y = Add(r, x) }""",
            -3.5,
        ),
        (
            """(int64[1] x) => (int64[N] y) { a = Constant<value_int=0>()
            b = Constant<value_int=5000000>() c = Constant<value_int=2>() e = Range(a, b, c)
            m = ReduceMax(e) y = Add(m, x) }""",
            4999998,
        ),
        (
            """(float[1] x) => (float[N] y) { s = Constant<value_ints=[3000, 3000]>()
            e = Expand(x, s) f = Trilu(e) y = ReduceSum<keepdims=0>(f) }""",
            2250750.0,
        ),
        (
            """(float[1] x) => (float[N] y) { p = Constant<value_ints=[0, 5000000]>()
            z = Squeeze(x) e = Pad(x, p, z) y = ReduceMean(e) }""",
            0.5,
        ),
        (
            """(float[1] x) => (float[N] y) { a = Constant<value_float=1.0>()
            b = Constant<value_float=5000000.0>() c = Constant<value_float=0.5>()
            e = Range(a, b, c) m = ReduceMax(e) y = Add(m, x) }""",
            5000000.0,
        ),
        (
            """(float[1] x) => (float[N] y) { i = Constant<value_ints=[4999999, -1, 5]>()
            d = Constant<value_int=5000000>() v = Constant<value_floats=[0.0, 1.0]>()
            o = OneHot(i, d, v) r = ReduceSum<keepdims=0>(o) y = Add(r, x) }""",
            3.5,
        ),
        (
            """(float[1] x) => (float[N] y) { s = Constant<value_ints=[3000, 3000]>()
            e = ConstantOfShape(s) f = EyeLike(e) r = ReduceSum<keepdims=0>(f) y = Add(r, x) }""",
            3000.5,
        ),
    ],
)
def test_what_is_much_larger_than_its_constants_is_computed_in_runs(
    backend: str, text: str, expected: float
) -> None:
    session = InferenceSession(model(text), backend)
    (given,) = session.get_inputs()
    (found,) = session.run(None, {"x": np.full(given.shape, 0.5, given.dtype.numpy)})
    assert (found == expected).all()
    if backend != "cpu" and "(c, s)" in text:
        assert session.hosted == (f"move ({LARGE})",)


def test_a_mask_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What networks have of such constants is made once."""
    text = """(float[1024, 1024] x) => (float[N, M] y) { s = Constant<value_ints=[1024, 1024]>()
        e = ConstantOfShape<value=float[1]{1.0}>(s) t = Trilu(e) y = Add(x, t) }"""
    session = InferenceSession(model(text), "cpu")
    x = np.ones((1024, 1024), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + np.triu(x))
    assert [step.op.name for step in session.plan({"x": x.shape}).steps] == ["pointwise"]

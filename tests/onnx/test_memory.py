"""Models whose sizes need much memory: refused before it is taken, and small when loaded."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import parser

from glnn.backends import NAMES
from glnn.compiler.cpu_fallback import LARGE
from glnn.core import process as process_module
from glnn.errors import LimitError, ModelError, ShapeError
from glnn.onnx.detection import roi_align
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


def model(text: str, opset: int = 17) -> bytes:
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g '
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
        monkeypatch.setattr(process_module, "free_memory", lambda: FREE)
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
    monkeypatch.setattr(process_module, "free_memory", lambda: FREE)
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
    monkeypatch.setattr(process_module, "free_memory", lambda: 3 * FREE)
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


TABLES = {
    "Resize": """(float[1, 2] x) => (float[N, M] y) {
        s = Constant<value_ints=[67108864, 2]>() y = Resize(x, , , s) }""",
    "Resize, linear": """(float[1, 2] x) => (float[N, M] y) {
        s = Constant<value_ints=[33554432, 2]>() y = Resize<mode="linear">(x, , , s) }""",
    "Resize, linear, float64": """(double[1, 2] x) => (double[N, M] y) {
        s = Constant<value_ints=[33554432, 2]>() y = Resize<mode="linear">(x, , , s) }""",
    "Resize, antialias": """(float[2, 1000] x) => (float[N, M] y) {
        s = Constant<value_ints=[4194304, 100]>()
        y = Resize<mode="cubic", antialias=1>(x, , , s) }""",
    "Resize, sizes of an input": """(float[1, 2] x, int64[2] n) => (float[N, M] y) {
        y = Resize<mode="linear">(x, , , n) }""",
    "AffineGrid": """(float[1, 2, 3] x) => (float[N, H, W, 2] y) {
        s = Constant<value_ints=[1, 1, 16384, 16384]>() y = AffineGrid(x, s) }""",
    "RoiAlign": """(float[1, 1, 4, 4] x) => (float[N, C, H, W] y) {
        r = Constant<value = float[1, 4] {0.0, 0.0, 2.0, 2.0}>() i = Constant<value_ints=[0]>()
        y = RoiAlign<output_height=4500000>(x, r, i) }""",
    "a window": """(float[1] x, int64 m) => (double[N] y) {
        y = HannWindow<output_datatype=11>(m) }""",
    "DFT": """(float[1, 4, 1] x) => (float[N, M, 2] y) {
        n = Constant<value_int=4500000>() y = DFT(x, n) }""",
    "MaxPool": """(float[1, 1, 8192, 1] x) => (float[N, C, H, W] y, int64[N, C, H, W] i) {
        y, i = MaxPool<kernel_shape=[4096, 1]>(x) }""",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_do_not_fit_are_not_computed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "free_memory", lambda: FREE)
    said = rf"{name.split(',')[0]}.* needs \d+ bytes of the host's memory .*, {FREE} are free"
    _refused(TABLES[name], LimitError, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            """(int64[2] x) => (float[N, M] y) { d = Constant<value_int=2147483648>()
            v = Constant<value_floats=[0.0, 1.0]>() y = OneHot(x, d, v) }""",
            "OneHot: .* more than 2147483647",
        ),
        (
            """(int64[2] x, int64 n) => (float[N, M] y) {
            v = Constant<value_floats=[0.0, 1.0]>() y = OneHot(x, n, v) }""",
            "OneHot: .* more than 2147483647",
        ),
        (
            """(float[1, 2] x) => (float[N, M] y) { s = Constant<value_ints=[2147483648, 2]>()
            y = Resize(x, , , s) }""",
            "Resize: .* more than 2147483647",
        ),
        (
            """(float[1, 2, 3] x) => (float[N, H, W, 2] y) {
            s = Constant<value_ints=[1, 1, 268435456, 268435456]>() y = AffineGrid(x, s) }""",
            "AffineGrid: .* more than 2147483647",
        ),
    ],
)
def test_sizes_beyond_any_tensor_are_refused_at_once(text: str, said: str) -> None:
    _refused(text, (ModelError, ShapeError), said)


def test_means_of_large_windows_have_no_table_of_their_numbers() -> None:
    text = """(float[1, 1, 16384] x) => (float[N, C, M] y) {
        y = AveragePool<kernel_shape=[4096], dilations=[2]>(x) }"""
    tracemalloc.start()
    try:
        InferenceSession(model(text, opset=20), "cpu").plan({"x": (1, 1, 16384)})
        assert tracemalloc.get_traced_memory()[1] < LOADED
    finally:
        tracemalloc.stop()


def test_regions_of_very_many_parts_are_refused_at_once() -> None:
    """Regions beyond an image need no places, but tables of their parts."""
    x, regions = np.ones((1, 1, 4, 4), np.float32), np.array([[9, 9, 10, 10]], np.float32)
    tracemalloc.start()
    try:
        with pytest.raises(LimitError, match="at most 16777216 places of a region, got 268435456"):
            roi_align({"output_height": 1 << 28}, 16, x, regions, np.array([0]))
        assert tracemalloc.get_traced_memory()[1] < LOADED
    finally:
        tracemalloc.stop()


def _refused(text: str, error: type[Exception] | tuple[type[Exception], ...], said: str) -> None:
    content = model(text, opset=20)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=said):
            _run(content)
        assert tracemalloc.get_traced_memory()[1] < LOADED
    finally:
        tracemalloc.stop()


def _run(content: bytes) -> None:
    """Load a model and run it on ones; `n` and `m` are large sizes."""
    session = InferenceSession(content, "cpu")
    feeds = {one.name: np.ones(one.shape, one.dtype.numpy) for one in session.get_inputs()}
    if "n" in feeds:
        feeds["n"] = np.array([33554432, 2]) if feeds["n"].ndim else np.array(2**31)
    if "m" in feeds:
        feeds["m"] = np.array(5_800_000)
    session.run(None, feeds)

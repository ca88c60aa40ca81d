"""Axes without a place: what ONNX Runtime gives for them, and what is refused and how."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

import glnn
from glnn.errors import GlnnError, ModelError, ShapeError
from tests.onnx.runtime import BACKENDS

Array = NDArray[Any]
F32 = np.float32
HEAD = '<ir_version: 9, opset_import: ["": 18]> '
pytestmark = pytest.mark.parametrize("name", BACKENDS)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, F32)


def dims(names: Sequence[int | str]) -> str:
    return ",".join(map(str, names))


def runtime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)  # type: ignore[no-any-return]


def made(text: str, weights: dict[str, Array] | None = None) -> onnx.ModelProto:
    model = parser.parse_model(HEAD + text)
    arrays = (weights or {}).items()
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays)
    return model


def check(name: str, model: onnx.ModelProto, *each: dict[str, Array]) -> None:
    """Hold a session's results for inputs, one after the other, against ONNX Runtime's."""
    session = glnn.InferenceSession(model.SerializeToString(), name)
    for feeds in each:
        found, right = session.run(None, feeds), runtime(model, feeds)
        for got, wanted in zip(found, right, strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


REDUCTIONS = ["Mean", "Sum", "Prod", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("sizes", [(2, 0, 3), ("a", "b", "c")], ids=["exact", "open"])
def test_reductions(name: str, kind: str, sizes: Sequence[int | str]) -> None:
    """The mean of nothing is 0 as ONNX Runtime has it: ONNX leaves it undefined."""
    feeds = [{"x": np.zeros((2, 0, 3), F32)}]
    if "a" in sizes:
        feeds = [{"x": numbers(2, 5, 3)}, *feeds, {"x": numbers(3, 4, 2)}]
        feeds = [{"x": np.abs(one["x"]) + 1} for one in feeds]
    for axes in ((1,), (0, 1), (2,), (0, 1, 2)):
        text = (
            f"g (float[{dims(sizes)}] x) => (float y) {{ y = Reduce{kind}<keepdims=0>(x, axes) }}"
        )
        model = made(text, {"axes": np.array(axes)})
        model.graph.output[0].type.tensor_type.ClearField("shape")
        check(name, model, *feeds)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_extremes(name: str, op: str) -> None:
    for axis, refused in ((0, False), (1, True), (2, False)):
        text = f"g (float[a,b,c] x) => (int64[d,e] y) {{ y = {op}<axis={axis},keepdims=0>(x) }}"
        model, x = made(text), np.zeros((2, 0, 3), F32)
        if not refused:
            check(name, model, {"x": x})
            continue
        with pytest.raises(ShapeError, match=r"nothing to take the m(ax|in) of") as error:
            glnn.InferenceSession(model.SerializeToString(), name).run(None, {"x": x})
        assert "would do" not in str(error.value)  # other sizes are no advice for an empty input
        with pytest.raises(Exception, match=op):
            runtime(model, {"x": x})


POOLS = ("MaxPool", "AveragePool", "LpPool")


def windows(op: str, pads: int, stride: int, sizes: Sequence[int | str]) -> onnx.ModelProto:
    given = "(x, w, b)" if op == "Conv" else "(x)"
    text = f"""g (float[{dims(sizes)}] x) => (float[n,o,p,q] y) {{ y = {op}
        <kernel_shape=[3,3], pads=[{dims([pads] * 4)}], strides=[{stride},{stride}]>{given} }}"""
    return made(text, {"w": numbers(4, 2, 3, 3), "b": numbers(4)} if op == "Conv" else {})


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("is_open", [False, True])
def test_windows_of_nothing_but_padding(name: str, stride: int, is_open: bool) -> None:
    """A convolution has zeros there, and its bias; there is nothing to pool."""
    for shape in ((1, 2, 0, 5), (2, 2, 5, 0), (1, 2, 0, 0), (0, 2, 0, 5)):
        sizes = ("n", 2, "h", "w") if is_open else shape
        feeds = [{"x": np.zeros(shape, F32)}]
        if is_open:
            feeds = [{"x": numbers(2, 2, 6, 7)}, *feeds]
        for pads in (2, 3):
            check(name, windows("Conv", pads, stride, sizes), *feeds)
        for op in POOLS if shape[0] else ():
            model = windows(op, 2, stride, sizes)
            with pytest.raises(GlnnError, match="empty: only the batch may be 0") as error:
                glnn.InferenceSession(model.SerializeToString(), name).run(None, feeds[-1])
            assert isinstance(error.value, ShapeError if is_open else ModelError)
            assert "would do" not in str(error.value)
            with pytest.raises(Exception, match="Only N can be zero"):
                runtime(model, feeds[-1])


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize("is_open", [False, True])
def test_pooling_of_no_images(name: str, op: str, is_open: bool) -> None:
    """A batch of 0 may have images that are too small for a window, or empty."""
    cases = (((0, 2, 0, 5), 1, 1), ((0, 2, 0, 0), 2, 1), ((0, 2, 0, 5), 0, 2), ((0, 2, 6, 5), 1, 2))
    for shape, pads, stride in cases:
        model = windows(op, pads, stride, ("n", 2, "h", "w") if is_open else shape)
        feeds = [{"x": np.zeros(shape, F32)}]
        check(name, model, *([{"x": numbers(2, 2, 6, 7)}] if is_open else []), *feeds)


def test_places_of_no_images(name: str) -> None:
    text = """g (float[n,2,h,w] x) => (float[n,2,p,q] y, int64[n,2,p,q] place)
        { y, place = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(x) }"""
    check(name, made(text), {"x": numbers(1, 2, 4, 4)}, {"x": np.zeros((0, 2, 0, 4), F32)})


@pytest.mark.parametrize("op", ["LSTM", "RNN", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("steps", [0, "steps"])
def test_no_steps(name: str, op: str, direction: str, steps: int | str) -> None:
    """The states at its end are those that ONNX Runtime has where all lengths are 0.

    Without a step it says no numbers, but what memory held before, and of a GRU it dies.
    """
    d, gates = 1 + (direction != "forward"), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    more = f", float[{d},2,4] cell" if op == "LSTM" else ""

    def model(steps: int | str, lengths: str) -> onnx.ModelProto:
        text = f"""g (float[{steps},2,3] x, float[{d},2,4] first) =>
            (float[t,{d},2,4] y, float[{d},2,4] last{more})
            {{ y, last{", cell" if more else ""} =
            {op}<hidden_size=4, direction="{direction}">(x, w, r, , {lengths}, first) }}"""
        weights = {"w": numbers(d, gates * 4, 3), "r": numbers(d, gates * 4, 4)}
        return made(text, {**weights, "lengths": np.zeros(2, np.int32)})

    first = numbers(d, 2, 4)
    some, none = ({"x": numbers(n, 2, 3), "first": first} for n in (3, 0))
    session = glnn.InferenceSession(model(steps, "").SerializeToString(), name)
    before = session.run(None, some) if steps else []
    y, *ends = session.run(None, none)
    assert y.shape == (0, d, 2, 4)
    for end, right in zip(ends, runtime(model(3, "lengths"), some)[1:], strict=True):
        np.testing.assert_array_equal(end, right)
    if op != "GRU":
        assert [one.shape for one in runtime(model(0, ""), none)] == [
            y.shape,
            *(e.shape for e in ends),
        ]
    if steps:
        for again, one in zip(session.run(None, some), before, strict=True):
            np.testing.assert_array_equal(again, one)


BODIES = {
    "a window larger than the image": (
        "s2 = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(s, w) r = ReduceSum<keepdims=0>(s2)",
        (1, 2, 0, 4),
    ),
    "the place of nothing": (
        "m = ArgMax<axis=2>(s) f = Cast<to=1>(m) s2 = Add(s, f) r = ReduceSum<keepdims=0>(s2)",
        (1, 2, 0, 4),
    ),
    "a row of none": ("r = ReduceSum<keepdims=0>(s) p = Gather(x, i) s2 = Add(s, p)", (0, 2, 4, 4)),
    "a product that does not fit": (
        "s2 = MatMul(s, s) r = ReduceSum<keepdims=0>(s2)",
        (1, 2, 0, 4),
    ),
}


def looped(body: str, sizes: Sequence[int | str], trips: str) -> onnx.ModelProto:
    head = f"(float[{dims(sizes)}] x, int64 {'' if trips == 'input' else 'other_'}trips)"
    model = made(
        f"""g {head} => (float[a,b,c,d] y, float[t] sums) {{
        yes = Constant<value = bool {{1}}>()
        y, sums = Loop(trips, yes, x) <body = b (int64 i, bool more, float[e,f,g,h] s) =>
            (bool again, float[e2,f2,g2,h2] s2, float r) {{ again = Identity(more) {body} }}> }}""",
        {"w": numbers(2, 2, 3, 3), **({} if trips == "input" else {"trips": np.array(0)})},
    )
    if trips != "input":
        del model.graph.input[1]
    return model


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("trips", ["input", "constant"])
@pytest.mark.parametrize("is_open", [False, True])
def test_loops_of_no_trip(name: str, body: str, trips: str, is_open: bool) -> None:
    """What would not fit in an iteration is refused where there is one, and only then."""
    text, shape = BODIES[body]
    model = looped(text, ("n", 2, "h", "w") if is_open else shape, trips)
    x = np.zeros(shape, F32)
    count = {"trips": np.array(0)} if trips == "input" else {}
    some = {"x": numbers(2, 2, 4, 4), **count}
    check(name, model, *([some] if is_open else []), {"x": x, **count})
    if not count:
        return
    run = partial(glnn.InferenceSession(model.SerializeToString(), name).run, None)
    with pytest.raises(ShapeError) as error:
        run({"x": x, "trips": np.array(2)})
    assert "would do" not in str(error.value)
    with pytest.raises(Exception, match="Loop"):
        runtime(model, {"x": x, "trips": np.array(2)})

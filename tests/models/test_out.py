"""Results in the caller's own arrays: `session.run(out=...)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn.backends import NAMES
from glnn.compiler import Executor
from glnn.core.array_functions import overlaps_itself
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.gl import transfer
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.control_flow import loop
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operators import Pointwise, Reduce
from glnn.layers import Flatten, ReLU, Sigmoid
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession
from tests.models.test_threads import available

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
RIGHT = np.maximum(X, 0)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return available(request.param)


@pytest.fixture
def session(name: str) -> InferenceSession:
    nodes = (
        Node("relu", ReLU(), ("x",), "r"),
        Node("flat", Flatten(), ("r",), "f"),
        Node("sigmoid", Sigmoid(), ("x",), "s"),
    )
    return InferenceSession(Model(nodes, (TensorInfo("x", ("N", 3)),), ("r", "f", "s"), "m"), name)


@pytest.mark.parametrize("way", ["run", "run_async"])
def test_the_arrays_given_are_the_results(session: InferenceSession, way: str) -> None:
    def run(names: list[str] | None, out: dict[str, Any]) -> list[Any]:
        if way == "run":
            return session.run(names, {"x": X}, out=out)
        return session.run_async(names, {"x": X}, out=out).result(60)

    plain = session.run(None, {"x": X})
    whole = np.full((4, 6), 7, np.float32)
    out = {"r": np.full((2, 3), np.nan, np.float32), "f": whole[1:3, ::2]}
    found = run(None, out)
    assert found[0] is out["r"] and found[1] is out["f"] and found[2] is not plain[2]
    np.testing.assert_array_equal(out["r"], RIGHT)
    np.testing.assert_array_equal(whole[1:3], [[0, 7, 2, 7, 0, 7], [4, 7, 0, 7, 6, 7]])
    assert (whole[[0, 3]] == 7).all() and found[2].tobytes() == plain[2].tobytes()
    column = np.zeros((3, 2), np.float32).T
    (alone,) = run(["f"], {"f": column})
    assert alone is column and (column == RIGHT).all()
    one = np.zeros((2, 3), np.float32)
    assert run(["s", "r"], {"r": one})[1] is one and (one == RIGHT).all()
    assert run(None, {})[0].tobytes() == plain[0].tobytes()
    assert (out["r"] == RIGHT).all()  # of no later run


@pytest.mark.parametrize("way", ["run", "run_async"])
@pytest.mark.parametrize(
    ("names", "out", "says"),
    [
        (None, [X], "out must map outputs to arrays, got list"),
        (None, {"x": X}, "out has 'x', which is not among the outputs"),
        (["r"], {"s": X}, r"out has 's', which is not among the outputs \('r',\)"),
        (None, {3: X}, "out has 3, which is not among"),
        (
            None,
            {"r": X[:1]},
            r"out\['r'\] must be a writeable float32 array of shape \(2, 3\)",
        ),
        (None, {"r": X.ravel()}, r"got a float32 array of shape \(6,\)"),
        (None, {"r": X.astype(np.float64)}, r"got a float64 array of shape \(2, 3\)"),
        (None, {"r": X.astype(">f4")}, r"got a >f4 array of shape \(2, 3\)"),
        (None, {"r": X.tolist()}, r"of shape \(2, 3\), got "),
        (None, {"r": None}, r"of shape \(2, 3\), got None"),
        (None, {"r": np.broadcast_to(X[0], (2, 3))}, r"got a read-only float32 array of shape"),
        (None, {"r": np.zeros_like(X), "s": X[:0]}, r"out\['s'\] must .* got a float32 array"),
    ],
)
def test_arrays_that_do_not_fit(
    session: InferenceSession, way: str, names: Any, out: Any, says: str
) -> None:
    before = {key: np.array(array) for key, array in out.items()} if isinstance(out, dict) else {}
    with pytest.raises((ShapeError, ModelError), match=says) as caught:
        if way == "run":
            session.run(names, {"x": X}, out=out)
        else:
            session.run_async(names, {"x": X}, out=out).result(60)
    assert isinstance(caught.value, GlnnError) and "\n" not in str(caught.value)
    for key, array in before.items():  # nothing was written
        np.testing.assert_array_equal(out[key], array)
    np.testing.assert_array_equal(session.run(["r"], {"x": X})[0], RIGHT)


WHOLE = np.zeros((4, 9), np.float32)
WINDOWS = np.lib.stride_tricks.as_strided(WHOLE, (2, 3), (8, 4), writeable=True)
WOVEN = np.lib.stride_tricks.as_strided(WHOLE, (2, 3), (12, 8), writeable=True)
"""Rows that are a window further each; rows each of which lies between another's elements."""


@pytest.mark.parametrize("way", ["run", "run_async"])
@pytest.mark.parametrize(
    ("out", "says"),
    [
        ({"r": WHOLE[:2, :3], "s": WHOLE[:2, :3]}, r"out\['r'\] and out\['s'\] overlap"),
        ({"r": WHOLE[:2, :3], "f": WHOLE[1:3, 2:5]}, r"out\['r'\] and out\['f'\] overlap"),
        ({"f": WHOLE[:2, :6:2], "s": WHOLE[:2, 4::2]}, r"out\['f'\] and out\['s'\] overlap"),
        ({"s": WINDOWS}, r"out\['s'\] overlaps itself"),
    ],
)
def test_arrays_that_overlap(session: InferenceSession, way: str, out: Any, says: str) -> None:
    WHOLE[:] = 7
    with pytest.raises(ShapeError, match=says):
        if way == "run":
            session.run(None, {"x": X}, out=out)
        else:
            session.run_async(None, {"x": X}, out=out).result(60)
    assert (WHOLE == 7).all()
    apart = {"r": WHOLE[:2, :6:2], "f": WHOLE[:2, 1:6:2], "s": WHOLE[2:].T[3:0:-1].T}
    for name, array in zip("rfs", session.run(None, {"x": X}, out=apart), strict=True):
        assert array is apart[name]
    np.testing.assert_array_equal(apart["r"], RIGHT)
    np.testing.assert_array_equal(apart["f"], RIGHT)
    np.testing.assert_array_equal(apart["s"], session.run(["s"], {"x": X})[0])
    assert session.run(["r"], {"x": X}, out={"r": WOVEN})[0] is WOVEN and (WOVEN == RIGHT).all()


def test_what_overlaps_itself_is_seen() -> None:
    """Against the bytes of each element, of views with any strides."""
    generator, memory = np.random.default_rng(0), np.zeros(4000, np.uint8)
    for _ in range(2000):
        shape = tuple(generator.integers(0, 5, generator.integers(1, 4)).tolist())
        strides = tuple(generator.integers(-20, 21, len(shape)).tolist())
        view = np.ndarray(shape, np.float32, memory, 2000, strides)
        bytes_of = [
            sum(i * step for i, step in zip(index, strides, strict=True)) + byte
            for index in np.ndindex(shape)
            for byte in range(4)
        ]
        assert overlaps_itself(view) == (len(set(bytes_of)) < len(bytes_of))


def doubled() -> Graph:
    """relu(x) as r; x, 2x, 4x, ... as long as their sum is below 20, how many only a run tells."""
    builder = Builder("late")
    x = builder.input("x", TensorType(("N", 3)))
    (relu,) = builder.add(Pointwise(call("relu", Arg(0))), x, name="r")
    inside = builder.body("body")
    inside.input("i", TensorType((), DType.int32))
    inside.input("going", TensorType((), DType.bool))
    state = inside.input("state", relu.type)
    (more,) = inside.add(Pointwise(call("mul", Arg(0), 2.0)), state, name="more")
    (total,) = inside.add(Reduce("sum", (0, 1), False), more, name="total")
    (below,) = inside.add(Pointwise(call("less", Arg(0), 20.0)), total, name="below")
    outputs, begin = (inside, [below, more, state]), constant(np.array(True), "begin")
    return builder.graph([relu, loop(builder, outputs, relu, condition=begin, name="d")[1]])


def test_sizes_that_only_a_run_tells(name: str) -> None:
    executor = Executor(doubled(), name)
    (r, d) = (value.name for value in executor.graph.outputs)
    for scale, count in ((2.0, 1), (0.5, 3), (2.0, 1)):
        x = np.full((2, 3), scale, np.float32)
        right = np.stack([x * 2**i for i in range(count)])
        out = {r: np.zeros((2, 3), np.float32), d: np.zeros((count, 2, 3), np.float32)}
        found = executor.run({"x": x}, [d, r], out)
        assert list(found) == [d, r] and found[d] is out[d] and found[r] is out[r]
        np.testing.assert_array_equal(out[d], right)
        np.testing.assert_array_equal(out[r], x)
        np.testing.assert_array_equal(executor.run({"x": x}, [d])[d], right)
        wrong = {r: np.zeros((2, 3), np.float32), d: np.zeros((count + 1, 2, 3), np.float32)}
        with pytest.raises(ShapeError, match=rf"float32 array of shape \({count}, 2, 3\), got"):
            executor.run({"x": x}, None, wrong)
        assert not wrong[r].any()


@pytest.mark.parametrize("way", ["run", "run_async"])
def test_an_input_may_be_where_a_result_goes(name: str, way: str, monkeypatch) -> None:
    """Another result is the input itself; or the input lies beside where it goes itself."""
    monkeypatch.setattr(transfer, "MIN_PART", 1024)
    model = Model((Node("relu", ReLU(), ("x",), "r"),), (TensorInfo("x", ("N", 3)),), ("r", "x"))
    session = InferenceSession(model, name)

    def run(names: list[str] | None, x: Any, out: dict[str, Any]) -> list[Any]:
        if way == "run":
            return session.run(names, {"x": x}, out=out)
        return session.run_async(names, {"x": x}, out=out).result(60)

    x = X.copy()
    positive, given = run(None, x, {"r": x})
    assert positive is x and (x == RIGHT).all() and (given == X).all()
    numbers = np.arange(3 * 1001, dtype=np.float32).reshape(-1, 3)
    right = numbers[:-1].copy()
    (moved,) = run(["x"], numbers[:-1], {"x": numbers[1:]})
    assert (moved == right).all()


def test_results_are_copied_once(name: str) -> None:
    """To a part of an array, too, as reshaped it is a view of the whole."""
    model = Model((Node("relu", ReLU(), ("x",), "r"),), (TensorInfo("x", ("N", 3)),), ("r",))
    session, whole = InferenceSession(model, name), np.zeros((4, 3), np.float32)
    session.run(None, {"x": X})
    plan = session.plan({"x": X.shape})

    class Once(np.ndarray):
        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("copied again")

    plan.run({"x": X}, out={"r": whole[1:3].view(Once)})
    assert (whole[1:3] == RIGHT).all() and not whole[[0, 3]].any()

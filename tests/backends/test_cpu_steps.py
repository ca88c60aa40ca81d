"""Steps of the cpu backend find what follows from types when they are planned, not in a run."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler.emit import CpuStep
from glnn.core.types import Array, TensorType
from glnn.graph import operators
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.expression_evaluation import BLOCK_SIZE
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Matmul,
    Pad,
    Pointwise,
    Pool2d,
    Recurrence,
    RecurrentStep,
    Reduce,
    Slice,
    Transpose,
)
from glnn.kernels.reference import Preparation, computed
from glnn.layers import GRU, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sigmoid
from glnn.model import Model
from glnn.ops import conv2d
from glnn.session import InferenceSession
from tests import oracle


def models() -> dict[str, tuple[Model, tuple[int, ...]]]:
    layers = [Conv2d(1, 4, 3, padding=1), ReLU(), MaxPool2d(2), Flatten(), Linear(64, 5), Sigmoid()]
    return {
        "cnn": (Model.sequential(layers, (1, 8, 8)), (2, 1, 8, 8)),
        "gru": (Model.sequential([GRU(3, 6), ReLU()], (2, 3)), (5, 2, 3)),
    }


@pytest.mark.parametrize("name", ["cnn", "gru"])
def test_a_run_asks_no_operator_about_types(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = models()[name]
    session = InferenceSession(model, "cpu")
    feeds = {session.get_inputs()[0].name: np.ones(shape, np.float32)}
    before = session.run(None, feeds)

    def asked(*_: object) -> None:
        raise AssertionError("a run asks about types")

    for method in ("named", "positional"):
        monkeypatch.setattr(Operator, method, asked)
    for one in (Recurrence, RecurrentStep, Pool2d):
        monkeypatch.setattr(one, "shape_of", asked)
    after = session.run(None, feeds)
    for one, other in zip(after, before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("counted", [True, False])
def test_few_windows_with_padding(mode: str, counted: bool) -> None:
    """Of a pool 3 x 2 with strides and padding, against loops over the windows."""
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 7)).astype(np.float32)
    x[0, 0, 2, 3] = np.nan
    pool = Pool2d(mode, (3, 2), (2, 3), (1, 0, 1, 1), count_include_pad=counted)
    (found,) = pool.specialize([TensorType(x.shape)])(x)
    padded = np.full((2, 3, 7, 8), -np.inf if mode == "max" else np.nan)
    padded[:, :, 1:6, :7] = np.where(np.isnan(x), 1e9, x)
    expected = np.empty((2, 3, 3, 3))
    for i, j in np.ndindex(3, 3):
        window = padded[:, :, 2 * i : 2 * i + 3, 3 * j : 3 * j + 2].reshape(2, 3, -1)
        if mode == "max":
            expected[:, :, i, j] = window.max(-1)
        else:
            inside = ~np.isnan(window)
            count = window.shape[-1] if counted else inside.sum(-1)
            expected[:, :, i, j] = np.where(inside, window, 0).sum(-1) / count
    spoiled = expected > 1e6
    assert np.isnan(found[spoiled]).all() and spoiled.any()
    np.testing.assert_allclose(found[~spoiled], expected[~spoiled], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fill", [0, 2.5, float("nan")])
def test_few_numbers_are_padded(fill: float) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    pad = Pad((1, -1), (0, 2), "constant", fill)
    work = pad.specialize([TensorType(x.shape)])
    expected = np.array([[fill] * 4, [1, 2, fill, fill], [4, 5, fill, fill]], np.float32)
    for factor in range(1, 12):
        (found,) = work(x * factor)
        inside = np.isin(expected, x[:, 1:]) & (np.arange(4) < 2) & (np.arange(3)[:, None] > 0)
        np.testing.assert_array_equal(found, np.where(inside, factor * expected, expected))


def test_a_choice_between_two_numbers_is_float32() -> None:
    alike = Pointwise(call("where", call("equal", Arg(0), Arg(1)), 1.0, 0.0))
    x, y = (np.array(one, np.float32) for one in ([1, 2, 3], [1, 5, 3]))
    (found,) = alike.specialize([TensorType((3,))] * 2)(x, y)
    assert found.dtype == np.float32 and found.tolist() == [1, 0, 1]


def correlation(x: Array, weight: Array, groups: int, stride: int, padding: int) -> Array:
    """The convolution by loops over its results."""
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    (o, share, high, wide), own = weight.shape, len(weight) // groups
    size = (padded.shape[2] - high) // stride + 1, (padded.shape[3] - wide) // stride + 1
    found = np.empty((len(x), o, *size))
    for n, k, i, j in np.ndindex(*found.shape):
        first = k // own * share
        rows, columns = (slice(p * stride, p * stride + q) for p, q in ((i, high), (j, wide)))
        found[n, k, i, j] = (padded[n, first : first + share, rows, columns] * weight[k]).sum()
    return found


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("samples", [1, 3])
def test_few_columns_of_a_convolution(groups: int, samples: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((samples, 4, 5, 6)).astype(np.float32)
    weight = rng.standard_normal((6, 4 // groups, 3, 2)).astype(np.float32)
    found = conv2d(x, weight, stride=2, padding=1, groups=groups, backend="cpu")
    np.testing.assert_allclose(found, correlation(x, weight, groups, 2, 1), rtol=1e-5, atol=1e-5)


def test_convolutions_are_alike_however_often_they_run(rng) -> None:
    """To the last bit, also where places were looked up."""
    draw = np.random.default_rng(3)
    for _ in range(60):
        n, groups, share, own, *sides = draw.integers(1, 4, 8)
        high, wide = draw.integers(max(*sides[:2]), 12, 2)
        kernel, padding = sides[:2], draw.integers(0, 2, 4)
        shapes = (n, groups * share, high, wide), (groups * own, share, *kernel)
        op = operators.Conv2d(
            tuple(map(int, sides[2:])), tuple(map(int, padding)), groups=int(groups)
        )
        work = op.specialize([TensorType(tuple(map(int, one))) for one in shapes])
        x, weight = map(rng, shapes)
        first, *others = (work(x, weight)[0] for _ in range(12))
        for one in others:
            assert np.array_equal(one, first), shapes


def test_convolutions_of_channels_innermost_are_alike_however_often_they_run() -> None:
    draw = np.random.default_rng(3)
    for _ in range(60):
        n, c, o, high, wide = map(int, draw.integers((1, 10, 1, 5, 5), (3, 60, 50, 30, 30)))
        x = draw.standard_normal((n, high, wide, c), np.float32).transpose(0, 3, 1, 2)
        weight = draw.standard_normal((o, c, 1, 1), np.float32)
        work = operators.Conv2d().specialize([TensorType(x.shape), TensorType(weight.shape)])
        first, *others = (work(x, weight)[0] for _ in range(12))
        for one in others:
            assert np.array_equal(one, first), (x.shape, o)


def test_moves_are_alike_however_often_they_run(rng) -> None:
    """Places are looked up once a move has run some times."""
    pad, turn = Pad((1, 0), (2, 1), "constant", 3), Slice((4, 0), (-9, 2), (0, 1), (-2, 1))
    for op in (pad, turn, Transpose((1, 0))):
        work = op.specialize([TensorType((5, 3))])
        for _ in range(12):
            x = rng((5, 3))
            assert np.array_equal(work(x)[0], op.move(x))


def test_only_steps_that_depend_on_sizes_are_bound_anew(monkeypatch, rng) -> None:
    """A product, its sum with a row, maxima and two views of one open size are for all of them."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[1, P, 8] x, float[8, 4] w, float[4] b) => (float[A, B] y, float[C, D, E, F] z)
    <int64[2] flat = {-1, 4}, int64[4] apart = {0, 0, 2, 2}> {
        p = MatMul (x, w)  a = Add (p, b)  r = Softmax (a)  y = Reshape (r, flat)
        s = Reshape (a, apart)  z = Transpose <perm = [0, 2, 1, 3]> (s) }"""
    session = InferenceSession(onnx.parser.parse_model(text).SerializeToString(), "cpu")
    bound: list[CpuStep] = []
    bind = CpuStep.bound
    monkeypatch.setattr(CpuStep, "bound", lambda s, own: bound.append(s) or bind(s, own))
    w, b = rng((8, 4)), rng(4)
    counts = []
    for length in (9, 13, 11, 30):
        bound.clear()
        x = rng((1, length, 8))
        y, z = session.run(None, {"x": x, "w": w, "b": b})
        a = x[0] @ w + b
        powers = np.exp(a - a.max(1, keepdims=True))
        np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=1e-4)
        turned = a.reshape(1, length, 2, 2).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(z, turned, rtol=1e-4, atol=1e-5)
        counts.append(len(bound))
    first, *others = counts
    assert first >= 3 and not any(others), counts


SUMMED = Pointwise(call("add", Arg(0), Arg(1)))


@pytest.mark.parametrize(
    ("op", "shapes", "others"),
    [
        (Matmul(), [(3, 4), (5, 4)], [(7, 2), (1, 2)]),
        (Matmul(), [(6, 4), (2, 5, 4)], [(9, 2), (3, 1, 2)]),
        (Matmul(), [(6, 4), (2, 5, 4)], [(0, 2), (0, 1, 2)]),
        (Concat(1), [(2, 3), (2, 1)], [(4, 1), (4, 6)]),
        (SUMMED, [(2, 1), (3,)], [(4, 6), (6,)]),
        (SUMMED, [(2, 1), (3,)], [(300, 1), (500,)]),
        (Reduce("mean", (1,)), [(2, 3, 2)], [(4, 5, 1)]),
        (Reduce("sum", (0, 2), keepdims=False), [(2, 3, 2)], [(4, 0, 1)]),
        (Slice((0, 1), (9, 9), (0, 1), (1, 2)), [(3, 4)], [(5, 9)]),
        (Transpose((1, 0)), [(3, 4)], [(2, 7)]),
        (operators.Conv2d(), [(1, 3, 5, 4), (2, 3, 3, 2)], [(2, 3, 40, 50), (4, 3, 1, 1)]),
        (operators.Conv2d((2, 1), (1, 0, 1, 1), groups=3), [(2, 3, 5, 4), (6, 1, 3, 2)],
         [(1, 3, 9, 7), (6, 1, 3, 2)]),
        (Pool2d("average", (3, 2), (2, 1), (1, 0, 1, 1)), [(1, 3, 5, 4)], [(2, 1, 70, 60)]),
        (Pool2d("max", None), [(1, 3, 5, 4)], [(2, 1, 9, 6)]),
    ],
)  # fmt: skip
def test_what_is_made_for_some_sizes_is_for_others(op, shapes, others, rng) -> None:
    """Also once it has run often, and back at the sizes it was made for."""
    assert op.any_sizes
    work = op.specialize([TensorType(shape) for shape in shapes])
    for some in [*[shapes] * 9, *[others] * 9, shapes]:
        arrays = [rng(shape) for shape in some]
        (found,), (expected,) = work(*arrays), op.reference(*arrays)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5, BLOCK_SIZE])
def test_an_epilogue_is_for_all_sizes(rows: int, rng) -> None:
    op, done = Matmul(), Epilogue(call("add", call("relu", Arg(0)), Arg(1)), ("channel",))
    (name,) = done.names
    types = {"x": TensorType((3, 4)), "weight": TensorType((2, 4)), name: TensorType((2,))}
    make = Preparation(op, types, TensorType((3, 2)), done)
    assert make.any_sizes
    arrays = [rng((rows, 4)), rng((2, 4)), rng(2)]
    found = make(op, make.types, done)(arrays)
    expected, *_ = computed(op, dict(zip(types, arrays, strict=True)), done)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("last", ["depthwise", "pointwise"])
def test_outputs_are_row_major_where_channels_lie_innermost(stride: int, last: str, rng) -> None:
    layers = [Conv2d(20, 20, 3, stride, padding=1, groups=20), ReLU(), Conv2d(20, 6, 1), ReLU()]
    layers = layers[:2] if last == "depthwise" else layers
    session = InferenceSession(Model.sequential(layers, (20, 31, 37)), "cpu")
    x = rng((2, 20, 31, 37))
    feeds = {session.get_inputs()[0].name: x}
    first, *others = (session.run(None, feeds)[0] for _ in range(10))
    expected = x.astype(np.float64)
    for layer in layers:
        if isinstance(layer, ReLU):
            expected = np.maximum(expected, 0)
            continue
        weight, bias = (layer.parameters[name].astype(np.float64) for name in ("weight", "bias"))
        groups = layer.groups
        how = {"stride": (stride, stride), "padding": (1, 1, 1, 1)} if groups > 1 else {}
        expected = oracle.conv2d(expected, weight, bias, groups=groups, **how)
    assert oracle.error(first, expected) <= 1e-6
    for one in (first, *others):
        assert one.flags.c_contiguous and np.array_equal(one, first)

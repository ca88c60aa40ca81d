"""Operators that NumPy computes on the host, beside their definitions and ONNX Runtime."""

from __future__ import annotations

import io
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import glnn
from glnn.errors import GlnnError, ShapeError
from glnn.onnx.delegate import Delegate
from tests.onnx.runtime import node_model, runtime

Array = np.ndarray[Any, Any]


def run(model: Any, operands: list[Any]) -> list[Any]:
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    feeds = {f"x{i}": one for i, one in enumerate(operands) if one is not None}
    return list(session.run(None, feeds))


def transformed(x: Array, n: int, inverse: bool = False) -> Array:
    """The transform along the last axis by its definition, of n numbers."""
    given = np.zeros((*x.shape[:-1], n), complex)
    count = min(n, x.shape[-1])
    given[..., :count] = x[..., :count]
    sign = 2j if inverse else -2j
    turns = np.exp(sign * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    return given @ turns / (n if inverse else 1)


@pytest.mark.parametrize("axis_shape", [(), (1,)])
@pytest.mark.parametrize("version", [17, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dft(dtype: Any, version: int, axis_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for axis, parts, length, half, inverse in itertools.product(
        (0, 1, 2, -2), (1, 2), (None, 5, 8), (0, 1), (0, 1)
    ):
        if half and (parts == 1) == bool(inverse):
            continue
        x = rng.normal(size=(3, 4, 6, parts)).astype(dtype)
        size = None if length is None else np.array(length, np.int64)
        place = np.array(axis, np.int64).reshape(axis_shape)
        more: dict[str, Any] = {"onesided": half, "inverse": inverse}
        operands = [x, size, place] if version == 20 else [x, size]
        known = (1, 2)
        if version == 17:
            more["axis"] = axis % 4
        model = node_model("DFT", operands, opset=version, kinds=[dtype], known=known, **more)
        (found,) = run(model, [x])
        wide = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        rows = np.moveaxis(wide.astype(complex), axis if axis >= 0 else axis + 1, -1)
        given = rows.shape[-1]
        n = length or (2 * (given - 1) if half and inverse else given)
        if half and inverse:
            full = np.zeros((*rows.shape[:-1], n), complex)
            for k in range(n // 2 + 1):
                value = rows[..., k] if k < given else 0
                full[..., k] = value
                if 0 < k < n - k:
                    full[..., n - k] = np.conj(value)
            full[..., 0] = full[..., 0].real
            if n % 2 == 0:
                full[..., n // 2] = full[..., n // 2].real
            right = transformed(full, n, True).real[..., None]
            right = np.moveaxis(right, -2, axis if axis >= 0 else -2)
        else:
            right = transformed(rows, n, bool(inverse))[..., : n // 2 + 1 if half else n]
            right = np.moveaxis(right, -1, axis if axis >= 0 else axis + 1)
            right = np.stack([right.real, right.imag], -1)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        assert found.dtype == dtype
        np.testing.assert_allclose(found, right, tolerance, tolerance * 10)


@pytest.mark.parametrize("window", [True, False])
@pytest.mark.parametrize("half", [0, 1])
def test_stft(half: int, window: bool) -> None:
    rng = np.random.default_rng(1)
    for parts, size, step in itertools.product((1, 2), (5, 8), (2, 3)):
        if half and parts == 2:
            continue
        x = rng.normal(size=(2, 20, parts))
        given = rng.uniform(0.5, 1, size) if window else None
        operands = [x, np.array(step, np.int64), given, np.array(size, np.int64)]
        model = node_model(
            "STFT", operands, opset=17, kinds=[np.float64], known=(1, 2, 3), onesided=half
        )
        (found,) = run(model, [x])
        wide = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        frames = np.stack([wide[:, i : i + size] for i in range(0, 20 - size + 1, step)], 1)
        right = transformed(frames * (1 if given is None else given), size)
        right = right[..., : size // 2 + 1 if half else size]
        right = np.stack([right.real, right.imag], -1)
        np.testing.assert_allclose(found, right, 1e-12, 1e-12)


def test_spectra_that_do_not_fit() -> None:
    x = np.ones((2, 4, 2), np.float32)
    model = node_model("DFT", [x], opset=20, onesided=1)
    with pytest.raises(GlnnError, match="DFT"):
        run(model, [x])


UNIQUE = [np.float32, np.int64, np.int8, np.float64, object]


@pytest.mark.parametrize("dtype", [*UNIQUE, np.uint16, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("ascending", [0, 1])
def test_unique(dtype: Any, axis: int | None, ascending: int) -> None:
    numbers = np.array([[2, 1, 1, 3, 2], [2, 1, 1, 0, 2], [2, 1, 1, 3, 2], [0, 1, 1, 2, 0]])
    x = numbers.astype(str).astype(object) if dtype is object else numbers.astype(dtype)
    more = {"sorted": ascending} | ({} if axis is None else {"axis": axis})
    kinds = [dtype, np.int64, np.int64, np.int64]
    version = 28 if dtype == ml_dtypes.bfloat16 else 11
    for outputs in (1, 2, 4):
        model = node_model("Unique", [x], outputs, opset=version, kinds=kinds[:outputs], **more)
        found = run(model, [x])
        if dtype in UNIQUE[:3]:  # ONNX Runtime has a kernel
            for got, right in zip(found, runtime(model, [x]), strict=True):
                np.testing.assert_array_equal(got, right)
    items = [x.reshape(-1)[i : i + 1] for i in range(x.size)]
    if axis is not None:
        items = list(np.moveaxis(x, axis, 0))
    keys = [tuple(one.reshape(-1).tolist()) for one in items]
    order = list(dict.fromkeys(keys))
    order = sorted(order) if ascending else order
    first = [keys.index(one) for one in order]
    right = np.concatenate([items[i] for i in first])
    if axis is not None:
        right = np.moveaxis(np.stack([items[i] for i in first]), 0, axis)
    assert found[0].dtype == x.dtype and found[0].tolist() == right.tolist()
    assert found[1].tolist() == first
    assert found[2].tolist() == [order.index(one) for one in keys]
    assert found[3].tolist() == [keys.count(one) for one in order]


def test_unique_of_nothing() -> None:
    x = np.zeros((0, 3), np.float32)
    model = node_model("Unique", [x], 4, opset=11, kinds=[np.float32, *[np.int64] * 3])
    assert [one.shape for one in run(model, [x])] == [(0,)] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("step", [0, 3])
def test_optimizers_of_several_weights(dtype: Any, step: int) -> None:
    """ONNX's formulas, number by number, in 64 bits; each result is of its weight's type."""
    rng = np.random.default_rng(2)
    shapes = [(2,), (2, 3)]
    rate, count = np.array(0.1, dtype), np.array(step, np.int64)
    for op, states, more in (
        ("Adagrad", 1, {"norm_coefficient": 0.5, "epsilon": 0.25, "decay_factor": 0.5}),
        ("Momentum", 1, {"norm_coefficient": 0.5, "alpha": 0.75, "beta": 0.25, "mode": "standard"}),
        ("Momentum", 1, {"norm_coefficient": 0.5, "alpha": 0.75, "beta": 0.25, "mode": "nesterov"}),
        (
            "Adam",
            2,
            {"norm_coefficient": 0.5, "norm_coefficient_post": 0.125, "alpha": 0.75, "beta": 0.25},
        ),
    ):
        arrays = [
            rng.uniform(0.1, 1, shape).astype(dtype) for _ in range(states + 2) for shape in shapes
        ]
        model = node_model(
            op,
            [rate, count, *arrays],
            2 * (states + 1),
            opset=1,
            domain="ai.onnx.preview.training",
            kinds=[dtype] * 2 * (states + 1),
            **more,
        )
        found = run(model, [rate, count, *arrays])
        for i in range(2):
            x, g, *state = (one.astype(np.float64) for one in arrays[i::2])
            g = 0.5 * x + g
            r = float(rate)
            if op == "Adagrad":
                h = state[0] + g**2
                right = [x - r / (1 + step * 0.5) * g / (np.sqrt(h) + 0.25), h]
            elif op == "Momentum":
                v = 0.75 * state[0] + (0.25 if step else 1.0) * g
                move = v if more["mode"] == "standard" else g + 0.75 * v
                right = [x - r * move, v]
            else:
                v, h = 0.75 * state[0] + 0.25 * g, 0.25 * state[1] + 0.75 * g**2
                if step:
                    r = r * np.sqrt(1 - 0.25**step) / (1 - 0.75**step)
                right = [(1 - 0.125) * (x - r * v / (np.sqrt(h) + 1e-6)), v, h]
            for got, one in zip(found[i::2], right, strict=True):
                assert got.dtype == dtype
                tolerance = 1e-12 if dtype == np.float64 else 1e-6
                np.testing.assert_allclose(got, one, tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_dropout_and_random_numbers(dtype: Any) -> None:
    x = np.arange(1, 20001).reshape(100, 200).astype(dtype)
    x = (x % 7 + 1).astype(dtype)
    operands = [x, np.array(0.25, dtype), np.array(True)]
    model = node_model(
        "Dropout", operands, 2, opset=22, kinds=[dtype, np.bool_], known=(1, 2), seed=3
    )
    y, kept = run(model, [x])
    assert y.dtype == dtype and abs(kept.mean() - 0.75) < 0.02
    right = np.where(kept, x / np.float64(0.75), 0)
    np.testing.assert_allclose(y.astype(np.float64), right, np.finfo(dtype).eps)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for op, more, mean, spread in (
        ("RandomUniformLike", {"low": -1.0, "high": 3.0}, 1.0, 4 / np.sqrt(12)),
        ("RandomNormalLike", {"mean": 2.0, "scale": 0.5}, 2.0, 0.5),
    ):
        like = node_model(op, [x], opset=22, kinds=[dtype], dtype=code, seed=1.0, **more)
        (found,) = run(like, [x])
        assert found.dtype == dtype and found.shape == x.shape
        assert abs(found.astype(np.float64).mean() - mean) < 0.05
        assert abs(found.astype(np.float64).std() - spread) < 0.05
        np.testing.assert_array_equal(run(like, [x])[0], found)  # seeded


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_images_have_the_channels_that_are_asked_for(mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    image = image_module.fromarray(pixels).convert(mode)
    content = io.BytesIO()
    image.save(content, "png")
    encoded = np.frombuffer(content.getvalue(), np.uint8)
    right = np.array(image.convert("RGB"))
    for order, expected in (
        ("RGB", right),
        ("BGR", right[..., ::-1]),
        ("Grayscale", np.array(image.convert("L"))[..., None]),
    ):
        model = node_model(
            "ImageDecoder", [encoded], opset=20, kinds=[np.uint8], pixel_format=order
        )
        np.testing.assert_array_equal(run(model, [encoded])[0], expected)


def test_a_corrupt_image_is_said_to_be_one() -> None:
    image_module = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    image_module.fromarray(np.zeros((40, 40, 3), np.uint8)).save(content, "png")
    for broken in (content.getvalue()[:60], b"no image", b""):
        encoded = np.frombuffer(broken, np.uint8)
        model = node_model("ImageDecoder", [encoded], opset=20, kinds=[np.uint8])
        says = f"ImageDecoder: the {len(broken)} bytes of its operand are no image .*: "
        with pytest.raises(GlnnError, match=says):
            run(model, [encoded])


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.complex64])
@pytest.mark.parametrize("name", ["keys", "values"])
def test_labels_of_other_types_are_refused(name: str, dtype: Any) -> None:
    """They had been taken for texts."""
    ml = "ai.onnx.ml"
    tensors = {one: numpy_helper.from_array(np.array([1, 2])) for one in ("keys", "values")}
    tensors[name] = numpy_helper.from_array(np.array([0, 1]).astype(dtype))
    attributes = {f"{one}_tensor": tensor for one, tensor in tensors.items()}
    node = helper.make_node("LabelEncoder", ["x0"], ["y0"], domain=ml, **attributes)
    with pytest.raises(
        ShapeError, match=f"{name}_tensor must be floats, .*, got {np.dtype(dtype)}"
    ):
        Delegate(node, {"": 21, ml: 4}, 10).reference(np.array([1, 2]))

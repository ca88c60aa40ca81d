"""Arguments of other types: subclasses of arrays, NumPy's numbers, and what is none of these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn import ops
from glnn.backends import open_backend
from glnn.errors import DeviceError, GlnnError, ModelError, ShapeError
from glnn.gl import Device
from glnn.layers import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Bias,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    ReLU,
    Softmax,
    Subsample2d,
)
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession

X = np.array([[1, 2, 3], [5, 0, 1]], np.float32)
MASKED = np.ma.masked_array(X, [[False, True, False]] * 2)


def matrix(array: Any) -> Any:
    """`array` as a subclass whose `*` and reductions compute something else."""
    return array.view(np.matrix)


def square(layer: Callable[[], Layer] = lambda: Linear(2, 2)) -> Model:
    model = Model.sequential([layer(), ReLU(), Softmax()], (2,))
    return model


SQUARE = np.array([[1, -2], [3, 4]], np.float32)


@pytest.mark.parametrize("kind", [matrix, np.ma.masked_array, lambda a: a.view(np.recarray)])
def test_subclasses_compute_as_plain_arrays(kind: Callable[[Any], Any]) -> None:
    """`np.matrix` multiplies where an activation or a normalisation means each element."""
    for layer in (ReLU(), Softmax(), LocalResponseNorm(2), Bias(2), Linear(2, 2)):
        expected = layer(SQUARE, backend="cpu")
        got = layer(kind(SQUARE), backend="cpu")
        assert type(got) is np.ndarray
        assert np.array_equal(got, expected), layer
    model = Model.sequential([Linear(2, 2), LocalResponseNorm(2), Softmax()], (2,))
    expected = model(SQUARE, backend="cpu")
    got = model(kind(SQUARE), backend="cpu")
    assert type(got) is np.ndarray and np.array_equal(got, expected)
    (ran,) = InferenceSession(model, "cpu").run(None, {"input": kind(SQUARE)})
    assert type(ran) is np.ndarray and np.array_equal(ran, expected)


def test_subclasses_in_functions_and_parameters() -> None:
    a = matrix(SQUARE)
    expected = ops.matmul(SQUARE, SQUARE, SQUARE, 2.0, 3.0, backend="cpu")
    got = ops.matmul(a, a, a, 2.0, 3.0, backend="cpu")
    assert type(got) is np.ndarray and np.array_equal(got, expected)
    unread = ops.matmul(a, a, a, 0.0, 3.0, backend="cpu")  # no product: c alone
    assert type(unread) is np.ndarray and np.array_equal(unread, 3 * SQUARE)
    layer = Linear(2, 2)
    layer.weight = a
    assert type(layer.weight) is np.ndarray and np.array_equal(layer.weight, SQUARE)
    masked = np.ma.masked_array(np.ones((1, 1, 3, 3), np.float32))
    found = ops.conv2d(masked, np.ones((1, 1, 2, 2), np.float32), backend="cpu")
    assert type(found) is np.ndarray and found.tolist() == [[[[4, 4], [4, 4]]]]


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
def test_bytes_in_the_other_order(backend) -> None:
    try:
        session = InferenceSession(Model.sequential([ReLU()], (3,)), backend)
    except DeviceError as closed:
        pytest.skip(str(closed))
    x = np.array([[1, -2, 3]], np.float32)
    for given in (x, x.astype(x.dtype.newbyteorder()), x):
        (found,) = session.run(None, {"input": given})
        np.testing.assert_array_equal(found, [[1, 0, 3]])


def test_masked_values_are_refused() -> None:
    says = "has masked values, which are no numbers: fill them first"
    model = Model.sequential([Linear(3, 2)], (3,))
    layer = Linear(3, 2)
    for call in (
        lambda: model(MASKED, backend="cpu"),
        lambda: InferenceSession(model, "cpu").run(None, {"input": MASKED}),
        lambda: ReLU()(MASKED, backend="cpu"),
        lambda: ops.matmul(X, MASKED, transpose_b=True, backend="cpu"),
        lambda: setattr(layer, "weight", MASKED),
        lambda: setattr(layer, "weight", MASKED.astype(np.float64)),
    ):
        with pytest.raises(ShapeError, match=says):
            call()


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.longdouble, np.int8, np.uint64])
def test_parameters_of_other_real_numbers_are_converted(dtype: Any) -> None:
    layer = Linear(2, 2)
    layer.weight = np.array([[1, 2], [3, 4]], dtype)
    assert layer.weight.dtype == np.float32 and layer.weight.tolist() == [[1, 2], [3, 4]]
    given = np.array([0.1, np.inf])
    layer.bias = given
    given[0] = 7  # what was assigned is a copy
    assert layer.bias.tolist() == [np.float32(0.1), np.inf]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([1e39, 0]), "has numbers that float32 does not hold, got float64"),
        (np.array([1j, 0]), "must be a float32 NumPy array, got complex128 array"),
        (np.array([1, None]), "must be a float32 NumPy array, got object array"),
        (np.array(["a", "b"]), "must be a float32 NumPy array, got <U1 array"),
        (np.array([True, False]), "must be a float32 NumPy array, got bool array"),
        ([1.0, 2.0], "must be a float32 NumPy array, got list"),
        (3.0, "must be a float32 NumPy array, got float"),
    ],
)
def test_parameters_that_are_no_real_numbers(value: Any, says: str) -> None:
    with pytest.raises(ShapeError, match=f"Linear bias {says}"):
        Linear(2, 2).bias = value


def test_numbers_of_numpy_are_numbers() -> None:
    two, half, yes = np.int64(2), np.float32(0.5), np.bool_(True)
    for made, plain in [
        (Linear(two, np.uint8(3), yes), Linear(2, 3)),
        (
            Conv2d(two, two, np.int32(3), (two, two), [two, 1], two, two, yes),
            Conv2d(2, 2, 3, 2, (2, 1), 2, 2),
        ),
        (MaxPool2d(two, two, np.int8(1), ceil_mode=yes), MaxPool2d(2, 2, 1, ceil_mode=True)),
        (AvgPool2d(two, count_include_pad=np.bool_(False)), AvgPool2d(2, count_include_pad=False)),
        (AdaptiveAvgPool2d(np.array([2, 3])), AdaptiveAvgPool2d((2, 3))),
        (AvgPool2d(two, divisor_override=two), AvgPool2d(2, divisor_override=2)),
        (BatchNorm2d(two, half, half, yes, yes), BatchNorm2d(2, 0.5, 0.5)),
        (Flatten(two, np.int8(-1)), Flatten(2)),
        (ReLU(yes), ReLU(True)),
        (Bias(two), Bias(2)),
        (Concat(two), Concat(2)),
        (Dropout(half), Dropout(0.5)),
        (LocalResponseNorm(two, half, np.float64(1), two), LocalResponseNorm(2, 0.5, 1.0, 2)),
        (Softmax(np.int16(1)), Softmax(1)),
        (Subsample2d(two, two), Subsample2d(2, 2)),
    ]:
        assert made.op == plain.op and made.shapes == plain.shapes
        assert json.loads(json.dumps(made.config())) == json.loads(json.dumps(plain.config()))
    model = Model.sequential([Linear(16, 2)], np.array([16]))
    assert model.inputs[0].shape == ("N", 16) and type(model.inputs[0].shape[1]) is int
    x = np.ones((1, 1, 4, 4), np.float32)
    got = ops.conv2d(x, x[:, :, :2, :2], None, two, np.int64(1), [1, 1], np.int64(1), "cpu")
    assert got.tolist() == [[[[1, 2, 1], [2, 4, 2], [1, 2, 1]]]]
    assert ops.matmul(x[0, 0], x[0, 0], alpha=half, backend="cpu")[0, 0] == 2


HUGE = 10**400
BEYOND = 10**5000  # of more digits than Python prints
MODEL = Model.sequential([Linear(3, 2)], (3,))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Linear(2**31, 1), "in_features must be an integer of at most 2147483647"),
        (lambda: Conv2d(1, 1, 3, stride=2**40), "stride must be an integer of at most 2147483647"),
        (lambda: MaxPool2d(2**40), "kernel_size must be an integer of at most 2147483647"),
        (lambda: LocalResponseNorm(2**40), "size must be an integer of at most 2147483647"),
        (lambda: LocalResponseNorm(BEYOND), "size must be an integer of at most 2147483647"),
        (lambda: LocalResponseNorm(3, HUGE), "alpha must be a number that float32 holds, got 1"),
        (lambda: LocalResponseNorm(3, 1e39), "alpha must be a number that float32 holds, got 1e"),
        (lambda: BatchNorm2d(3, BEYOND), "eps must be a number that float32 holds"),
        (lambda: Dropout(HUGE), "p must be a number from 0 to 1"),
        (lambda: Linear(2, 2, seed="x"), "seed must be an integer of at least 0, got 'x'"),
        (lambda: Linear(2, 2, seed=-1), "seed must be an integer of at least 0, got -1"),
        (lambda: ops.matmul(X, X, alpha="x", transpose_b=True), "alpha must be a number"),
        (lambda: ops.matmul(X, X, alpha=HUGE, transpose_b=True), "alpha must be a number"),
        (lambda: ops.matmul(X, X, X, beta=1j), "beta must be a number"),
        (lambda: ops.conv2d(*[X[None, None]] * 2, padding=np.ones(2)), "padding must be an int"),
        (lambda: Model.sequential([ReLU()], 4), "input_shape must be a list of sizes"),
        (lambda: Model.sequential([ReLU()], None), "input_shape must be a list of sizes"),
        (lambda: Model.sequential([ReLU()], (2.0,)), "a shape must be positive integers"),
        (lambda: Model.sequential([ReLU()], (2**40,)), "more than 2147483647 numbers"),
        (lambda: Model.sequential([ReLU()], "12"), "a shape must be positive integers"),
        (lambda: Model.sequential(ReLU(), (4,)), "layers must be a list of layers"),
        (lambda: Model.sequential([ReLU], (4,)), "layer 1 must be a layer, got the class ReLU: "),
        (lambda: Model.sequential([ReLU(), 5], (4,)), "layer 2 must be a layer, got 5"),
        (lambda: Model.sequential([ReLU()], (4,), names=5), "names must be a list of names, got 5"),
        (lambda: Model.sequential([ReLU()], (4,), name=5), "a model's name must be a text, got 5"),
        (lambda: Model(5, MODEL.inputs, ("a",)), "nodes must be a tuple of Nodes"),
        (lambda: Model(("a",), MODEL.inputs, ("a",)), "nodes must be a tuple of Nodes"),
        (lambda: Model(MODEL.nodes, ("x",), ("a",)), "inputs must be a tuple of TensorInfos"),
        (
            lambda: Model((Node("a", ReLU, ("input",), "a"),), MODEL.inputs, ("a",)),  # type: ignore
            "layer 'a' must be a layer, got the class ReLU",
        ),
        (lambda: Model(MODEL.nodes, MODEL.inputs, 1), "outputs must be a tuple of names"),
        (lambda: Model((Node("a", ReLU(), 0, "a"),), MODEL.inputs, ("a",)), "inputs must be a tup"),
        (lambda: Model((Node("a", ReLU(), ("input",), []),), MODEL.inputs, ("a",)), "output a n"),
        (lambda: MODEL(X, []), "backend must be a name, got []"),
        (lambda: ReLU()(X, backend=X), "a backend must be a name, got array([[1., 2., 3.],"),
        (lambda: ops.matmul(X, X, transpose_a=X), "transpose_a must be true or false, got array"),
        (lambda: ops.matmul(X, X.T, backend="cpu", kernel=HUGE), "a kernel must be a name, got 1"),
        (lambda: InferenceSession(MODEL, "cpu").plan(None), "shapes must map inputs to shapes"),
        (lambda: InferenceSession(MODEL, "cpu").plan({"input": 3}), "a shape is integers, got 3"),
        (lambda: InferenceSession(MODEL, limits=X), "limits must be 'es31-minimum' or None, got"),
        (lambda: TensorInfo("x", 4), "a shape is a tuple, got 4"),
        (lambda: MODEL.save(5), "a model is saved to a path, got 5"),
        (lambda: InferenceSession(MODEL, device=0), "device must be a glnn.Device, got 0; gpu="),
        (lambda: InferenceSession(MODEL, gpu=1.5), "gpu must be an index or a part of a name, got"),
        (lambda: InferenceSession(MODEL, gpu=[0]), "gpu must be an index or a part of a name, got"),
        (lambda: InferenceSession(MODEL, limits=["x"]), "limits must be 'es31-minimum' or None"),
        (lambda: InferenceSession(MODEL, ["cpu"]), "a backend must be a name, got ['cpu']"),
        (lambda: InferenceSession(MODEL, None), "a backend must be a name, got None"),
        (lambda: InferenceSession(MODEL, "cpu", kernels=["a"]), "kernels must map ops to kernels'"),
        (lambda: InferenceSession(MODEL, "cpu", kernels={"a": 5}), "kernels must map ops to kern"),
        (lambda: InferenceSession(MODEL, "cpu", kernels=5), "kernels must map ops to kernels' nam"),
        (lambda: InferenceSession(5), "a model must be a name or a path, got int"),
        (lambda: InferenceSession(MODEL, "cpu").run(5, {"input": X}), "list of names, got 5"),
        (lambda: InferenceSession(MODEL, "cpu").run([5], {"input": X}), "unknown output 5"),
        (lambda: InferenceSession(MODEL, "cpu").run([["a"]], {"input": X}), "unknown output ['a']"),
        (lambda: InferenceSession(MODEL, "cpu").run(None, X), "feeds must map names to arrays"),
        (lambda: InferenceSession(MODEL, "cpu").run(None, {5: X}), "missing input 'input'"),
        (lambda: open_backend("cpu", gpu=99), "the cpu backend uses no GPU, but gpu 99 was asked"),
        (lambda: Device(gpu=1.5), "gpu must be an index or a part of a name, got 1.5"),
    ],
)  # fmt: skip
def test_what_fits_no_type_is_an_error_of_ours(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(GlnnError, match=re.escape(says)) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_arguments_of_other_libraries_are_named() -> None:
    for name in ("providers", "sess_options"):
        with pytest.raises(TypeError, match=rf"'{name}', which is ONNX Runtime's: glnn\.onnxrun"):
            InferenceSession("lenet", **{name: None})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'kernel'"):
        InferenceSession("lenet", kernel={})  # type: ignore[call-arg]
    module = type("Module", (), {"__module__": "torch.nn.modules.module"})
    net = type("Net", (module,), {})()
    with pytest.raises(ModelError, match=r"got Net: a PyTorch module .*Model\.from_torch\(module"):
        InferenceSession(net)


def test_a_forgotten_flatten_is_named() -> None:
    says = r"layer 'linear1': Linear: x must have shape \(\.\.\., 196\), got \(N, 1, 14, 14\)"
    with pytest.raises(ShapeError, match=says + ": put a Flatten before it$"):
        Model.sequential([MaxPool2d(2), Linear(196, 10)], (1, 28, 28))
    with pytest.raises(ShapeError, match=r"Flatten before it, and in_features must be 784$"):
        Linear(196, 10)(np.zeros((1, 1, 28, 28), np.float32), backend="cpu")
    assert Model.sequential([MaxPool2d(2), Flatten(), Linear(196, 10)], (1, 28, 28))


def test_channels_that_come_last_are_named(tmp_path: Path) -> None:
    model = Model.sequential([Conv2d(3, 2, 3)], (3, 8, 9))
    session = InferenceSession(model, "cpu")
    for shape in ((2, 8, 9, 3), (8, 9, 3)):
        with pytest.raises(ShapeError, match=r"\): channels come first here, \(n, c, h, w\)"):
            session.run(None, {"input": np.zeros(shape, np.float32)})
    with pytest.raises(ShapeError, match=r"a batch of samples is taken, x\[None\] makes one"):
        session.run(None, {"input": np.zeros((3, 8, 9), np.float32)})
    with pytest.raises(ShapeError, match=r"got \(N, 8, 9, 3\): channels come first here, where"):
        Model.sequential([Conv2d(3, 2, 3)], (8, 9, 3))

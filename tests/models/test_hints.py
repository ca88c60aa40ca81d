"""What errors advise those who come from PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.layers import Conv2d, Layer, Linear, ReLU
from glnn.model import Model


class Tensor:
    """A stand-in for one of PyTorch's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, f"torch.{array.dtype}"

    def _itself(self) -> Tensor:
        return self

    detach = cpu = resolve_conj = resolve_neg = _itself

    def numpy(self) -> np.ndarray:
        return self.array


def test_tensors_are_taken_by_calls_of_models_and_layers() -> None:
    layer = Linear(3, 2)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = x.astype(float) @ layer.weight.T.astype(float) + layer.bias
    model = Model.sequential([layer], (3,))
    for found in (layer(Tensor(x), backend="cpu"), model(Tensor(x), backend="cpu")):  # type: ignore[arg-type]
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    says = r"float32 NumPy array, got float64 array: \.astype\(np\.float32\) makes one$"
    for wrong in (Tensor(x.astype(np.float64)), x.astype(np.float64)):
        with pytest.raises(ShapeError, match=says):
            model(wrong, backend="cpu")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"got Tensor: \.numpy\(\) makes one of a tensor"):
        glnn.InferenceSession(model, "cpu").run(None, {"input": Tensor(x)})


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 1, 28, 28), r"got \(N, 1, 1, 28, 28\); input_shape is without .* \(1, 28, 28\) would"),
        (("N", 1, 28, 28), r"of one sample, without the batch, .* got \('N', 1, 28, 28\)"),
        ((None, 1, 28, 28), r"of one sample, without the batch, .* got \(None, 1, 28, 28\)"),
        ((2, 28, 28), r"Conv2d: x must have shape \(n, 1, h, w\), got \(N, 2, 28, 28\)$"),
    ],
)
def test_input_shape_is_that_of_one_sample(shape: Any, says: str) -> None:
    with pytest.raises(GlnnError, match=says):
        Model.sequential([Conv2d(1, 8, 3)], shape)


def test_modules_of_pytorch_are_no_layers() -> None:
    module = type("Conv2d", (), {"__module__": "torch.nn.modules.conv"})()
    says = r"layer of glnn\.layers, got torch\.nn's Conv2d: Model\.from_torch takes modules"
    with pytest.raises(ModelError, match=says):
        Model.sequential({"c": module}, (1, 28, 28))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: Conv2d(1, 8, 3, pading=1),
            r"^Conv2d has no argument 'pading': did you .*'padding'",
        ),
        (lambda: ReLU(inplce=True), r"^ReLU has no argument 'inplce': did you mean 'inplace'"),
        (lambda: Linear(1, 2, zzz=3), r"^Linear has no argument 'zzz': it has in_features, out"),
        (lambda: Linear(1), r"missing 1 required positional argument: 'out_features'"),
    ],
)
def test_arguments_that_no_layer_has(make: Callable[[], Layer], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


def test_layers_that_there_are_not() -> None:
    wrong = "LeakyRelu"
    says = r"'glnn\.layers' has no attribute 'LeakyRelu': did you mean 'LeakyReLU'\?$"
    with pytest.raises(AttributeError, match=says):
        getattr(glnn.layers, wrong)
    assert not hasattr(glnn.layers, "__nothing__")

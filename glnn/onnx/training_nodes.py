"""ONNX's optimizers, random numbers, and Dropout in training, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.core.types import Array
from glnn.errors import ShapeError
from glnn.onnx.operators.dtypes import dtype_of


def generator_of(attributes: Mapping[str, Any]) -> np.random.RandomState:
    """Return NumPy's random generator, seeded by the low 32 bits of the attribute `seed`, if any.

    A seed may be negative.
    """
    seed = attributes.get("seed")
    return np.random.RandomState(None if seed is None else int(seed) % 2**32)


def dropout(
    attributes: Mapping[str, Any],
    version: int,
    x: Array,
    ratio: Array | None = None,
    training: Array | None = None,
) -> list[Array]:
    """Return x with a share `ratio` of its numbers dropped to 0 and the others scaled by
    1 / (1 - ratio), and the mask of these; x itself unless `training` is true. Default ratio: 0.5.

    Source: ONNX's operator sets from 12 on. The numbers are those of `numpy.random.RandomState`
    with the attribute `seed`, as in the `onnx` package's reference. Raises ShapeError for a ratio
    that is not from 0 to less than 1.
    """
    share = 0.5 if ratio is None else float(ratio.item())
    if not 0 <= share < 1:
        raise ShapeError(f"Dropout: ratio must be from 0 to less than 1, got {share}")
    if training is None or not training.item() or share == 0:
        return [x, np.ones(x.shape, bool)]
    mask = generator_of(attributes).uniform(size=x.shape) >= share
    numbers = x if x.dtype.itemsize > 2 else x.astype(np.float32)
    return [(mask * numbers * numbers.dtype.type(1 / (1 - share))).astype(x.dtype), mask]


Attributes = Mapping[str, Any]
Update = Callable[[Attributes, float, int, Array, Array, Sequence[Array]], Sequence[Array]]
"""Function of attributes, learning rate, step number, weights, gradients and state, which returns
new weights and state.
"""


def _adagrad(
    attributes: Attributes,
    rate: float,
    step: int,
    x: Array,
    gradient: Array,
    state: Sequence[Array],
) -> Sequence[Array]:
    gradient = attributes.get("norm_coefficient", 0.0) * x + gradient
    squares = state[0] + gradient * gradient
    rate /= 1 + step * attributes.get("decay_factor", 0.0)
    return x - rate * gradient / (np.sqrt(squares) + attributes.get("epsilon", 1e-6)), squares


def _adam(
    attributes: Attributes,
    rate: float,
    step: int,
    x: Array,
    gradient: Array,
    state: Sequence[Array],
) -> Sequence[Array]:
    alpha, beta = attributes.get("alpha", 0.9), attributes.get("beta", 0.999)
    gradient = attributes.get("norm_coefficient", 0.0) * x + gradient
    mean = alpha * state[0] + (1 - alpha) * gradient
    squares = beta * state[1] + (1 - beta) * gradient * gradient
    if step > 0:
        rate = rate * np.sqrt(1 - beta**step) / (1 - alpha**step)
    x = x - rate * mean / (np.sqrt(squares) + attributes.get("epsilon", 1e-6))
    return (1 - attributes.get("norm_coefficient_post", 0.0)) * x, mean, squares


def _momentum(
    attributes: Attributes,
    rate: float,
    step: int,
    x: Array,
    gradient: Array,
    state: Sequence[Array],
) -> Sequence[Array]:
    alpha, beta = attributes["alpha"], attributes["beta"]
    gradient = attributes["norm_coefficient"] * x + gradient
    velocity = alpha * state[0] + (beta if step > 0 else 1) * gradient
    if attributes["mode"] == b"nesterov":
        return x - rate * (gradient + alpha * velocity), velocity
    return x - rate * velocity, velocity


def _optimizer(name: str, update: Update, states: int) -> Callable[..., list[Array]]:
    """Return the NumPy function of an optimizer, which computes in 64 bits and rounds once.

    Its operands are the learning rate, the step number, all weights, all gradients and all states.
    states: the number of state arrays for each weight.
    """

    def apply(
        attributes: Attributes, version: int, rate: Array, step: Array, *arrays: Array
    ) -> list[Array]:
        count, remainder = divmod(len(arrays), states + 2)
        if remainder:
            why = "needs the same number of weights, gradients and of each state"
            raise ShapeError(f"{name}: {why}")
        result: list[Sequence[Array]] = []
        for i in range(count):
            operands = arrays[i::count]
            if len({one.shape for one in operands}) > 1:
                raise ShapeError(f"{name}: a weight, its gradient and its states differ in shape")
            x, gradient, *state = (one.astype(np.float64) for one in operands)
            updated = update(attributes, float(rate.item()), int(step.item()), x, gradient, state)
            result.append([one.astype(operands[0].dtype) for one in updated])
        return [one[kind] for kind in range(states + 1) for one in result]

    return apply


def _random(attributes: Attributes, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return uniform numbers from `low` to `high`, or normal ones where there is a `scale`."""
    generator = generator_of(attributes)
    if "scale" in attributes:
        result = generator.normal(attributes.get("mean", 0.0), attributes["scale"], shape)
    else:
        result = generator.uniform(attributes.get("low", 0.0), attributes.get("high", 1.0), shape)
    return np.asarray(result).astype(dtype)


def _result_dtype(attributes: Attributes, x: Array | None, name: str) -> np.dtype[Any]:
    code = attributes.get("dtype", 0)
    if not code:
        return np.dtype(np.float32) if x is None else x.dtype
    return dtype_of(code, name).numpy


def random_uniform(attributes: Attributes, version: int) -> list[Array]:
    """Return uniform numbers of `shape`."""
    dtype = _result_dtype(attributes, None, "RandomUniform")
    return [_random(attributes, attributes["shape"], dtype)]


def random_uniform_like(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return uniform numbers of the shape of x."""
    return [_random(attributes, x.shape, _result_dtype(attributes, x, "RandomUniformLike"))]


def random_normal(attributes: Attributes, version: int) -> list[Array]:
    """Return normal numbers of `shape`."""
    dtype = _result_dtype(attributes, None, "RandomNormal")
    return [_random({"scale": 1.0, **attributes}, attributes["shape"], dtype)]


def random_normal_like(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return normal numbers of the shape of x."""
    dtype = _result_dtype(attributes, x, "RandomNormalLike")
    return [_random({"scale": 1.0, **attributes}, x.shape, dtype)]


TRAINING = "ai.onnx.preview.training"
RANDOM = frozenset(
    {"Dropout", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""ONNX operators that draw new random numbers in each run."""
NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "Dropout"): dropout,
    ("", "RandomNormal"): random_normal,
    ("", "RandomNormalLike"): random_normal_like,
    ("", "RandomUniform"): random_uniform,
    ("", "RandomUniformLike"): random_uniform_like,
    (TRAINING, "Adagrad"): _optimizer("Adagrad", _adagrad, 1),
    (TRAINING, "Adam"): _optimizer("Adam", _adam, 2),
    (TRAINING, "Momentum"): _optimizer("Momentum", _momentum, 1),
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""

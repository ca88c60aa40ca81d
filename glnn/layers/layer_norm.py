"""Normalisation over the last dimensions: layer and RMS normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from glnn.errors import ShapeError, shown
from glnn.graph.graph import Value
from glnn.graph.operators import Normalize
from glnn.layers.arguments import flag, integer, number, plain, with_unusual
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.layers.scope import Scope
from glnn.types import Shape


class _Norm(Layer):
    """Normalisation over the last dimensions of x, those of `normalized_shape`."""

    weight = Parameter["Array | None"]()

    def __init__(self, shape: object, names: tuple[str, ...], centred: bool, eps: float) -> None:
        self.normalized_shape = _shape(f"{type(self).__name__} normalized_shape", shape)
        op = Normalize(dims=len(self.normalized_shape), centred=centred, eps=eps)
        super().__init__(op, dict.fromkeys(names, self.normalized_shape))

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name == "weight", np.float32)

    def express(self, scope: Scope, *inputs: Value) -> Value:
        dims, last = inputs[0].type.dims, self.normalized_shape
        if dims[-len(last) :] != last:
            expected = f"(..., {', '.join(map(str, last))})"
            raise ShapeError(f"{type(self).__name__}: x must have shape {expected}, got {dims}")
        return super().express(scope, *inputs)


class LayerNorm(_Norm):
    """weight (x - mean) / sqrt(variance + eps) + bias, for x of shape (..., *normalized_shape).

    mean, variance: over the dimensions of normalized_shape, an integer or several, of which shape
    weight, initially 1, and bias, initially 0, are. Without `elementwise_affine` there is neither,
    without `bias` no bias. device, dtype: None and None or float32; parameters are float32.
    """

    bias = Parameter["Array | None"]()

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("LayerNorm", device, dtype)
        self.eps = number("LayerNorm eps", eps, 0)
        self.elementwise_affine = flag("LayerNorm elementwise_affine", elementwise_affine)
        self._biased = flag("LayerNorm bias", bias)
        names = ("weight", "bias")[: 1 + self._biased] if self.elementwise_affine else ()
        super().__init__(normalized_shape, names, True, self.eps)

    def config(self) -> dict[str, Any]:
        found = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        affine = (self.elementwise_affine, True)
        return with_unusual(found, elementwise_affine=affine, bias=(self._biased, True))


class RMSNorm(_Norm):
    """weight x / sqrt(the mean of x^2 + eps), for x of shape (..., *normalized_shape).

    The mean: over the dimensions of normalized_shape, an integer or several, of which shape weight,
    initially 1, is; without `elementwise_affine` there is none. eps: None is float32's, 2^-23.
    device, dtype: None and None or float32; parameters are float32.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        plain("RMSNorm", device, dtype)
        self.eps = None if eps is None else number("RMSNorm eps", eps, 0)
        self.elementwise_affine = flag("RMSNorm elementwise_affine", elementwise_affine)
        least = float(np.finfo(np.float32).eps) if self.eps is None else self.eps
        names = ("weight",) if self.elementwise_affine else ()
        super().__init__(normalized_shape, names, False, least)

    def config(self) -> dict[str, Any]:
        found = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        return with_unusual(found, elementwise_affine=(self.elementwise_affine, True))


def _shape(what: str, value: object) -> Shape:
    """`value`, an integer or several, as a shape."""
    if not isinstance(value, (list, tuple)):
        return (integer(what, value),)
    if not value:
        raise ShapeError(f"{what} must be an integer or several, got {shown(value)}")
    return tuple(integer(what, size) for size in value)

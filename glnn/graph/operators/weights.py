"""Weights of a convolution in the form that a decomposition takes: computed by the host, once."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.graph.operator import Constants, Cost, Operator, Types
from glnn.graph.operators.winograd import winograd
from glnn.types import Array, Shape, TensorType


class _Weights(Operator):
    """Base class of transformations of weights (o, c, kh, kw)."""

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x = self.named(types)["x"]
        return (TensorType(self.transformed(x.shape), x.dtype),)

    @abstractmethod
    def transformed(self, weight: Shape) -> Shape:
        """The result's shape."""

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


@dataclass(frozen=True)
class KernelRows(_Weights):
    """A row for each output channel, in the order of Im2row's columns: (o, kh kw c)."""

    name: ClassVar[str] = "kernel_rows"
    moves: ClassVar[bool] = True

    def transformed(self, weight: Shape) -> Shape:
        o, c, kh, kw = weight
        return o, kh * kw * c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        return (np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(self.transformed(x.shape)),)


@dataclass(frozen=True)
class TapRows(_Weights):
    """A row for each tap and output channel, these innermost: (kh kw o, c), as kn2row has them."""

    name: ClassVar[str] = "tap_rows"
    moves: ClassVar[bool] = True

    def transformed(self, weight: Shape) -> Shape:
        o, c, kh, kw = weight
        return kh * kw * o, c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        x = self.named(arrays)["x"]
        return (np.ascontiguousarray(x.transpose(2, 3, 0, 1)).reshape(self.transformed(x.shape)),)


@dataclass(frozen=True)
class WinogradWeights(_Weights):
    """G g G^T of every 3 x 3 kernel g: ((tile + 2)^2, o, c). Lavin and Gray 2016, section 4."""

    name: ClassVar[str] = "winograd_weights"
    tile: int

    def __post_init__(self) -> None:
        winograd(self.tile)

    def transformed(self, weight: Shape) -> Shape:
        o, c, _, _ = weight
        return winograd(self.tile).window ** 2, o, c

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (winograd(self.tile).weights(self.named(arrays)["x"]),)

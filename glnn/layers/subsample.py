"""Subsampling layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.graph.operators import Subsample
from glnn.layers.arguments import Ints, integer, sizes
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter


class Subsample2d(Layer):
    """The mean of each window of x of shape (n, channels, h, w), times `weight`, plus `bias`.

    Windows lie side by side. weight: (channels,), initially 1. bias: (channels,), initially 0.
    """

    weight = Parameter[Array]()
    bias = Parameter[Array]()

    def __init__(self, channels: int, kernel_size: Ints) -> None:
        self.channels = integer("Subsample2d channels", channels)
        self.kernel_size = sizes("Subsample2d kernel_size", kernel_size, 2)
        shapes = dict.fromkeys(("weight", "bias"), (self.channels,))
        super().__init__(Subsample(self.kernel_size), shapes)  # type: ignore[arg-type]

    def initial(self, name: str) -> Array:
        return np.full(self.shapes[name], name == "weight", np.float32)

    def config(self) -> dict[str, Any]:
        return {"channels": self.channels, "kernel_size": self.kernel_size}

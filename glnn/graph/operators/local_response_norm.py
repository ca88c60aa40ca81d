"""Local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes
from glnn.graph.operators import windows
from glnn.types import Array, Shape


@dataclass(frozen=True)
class LocalResponseNorm(Contraction):
    """x / (k + alpha / size s) ** beta, s being the sum of the squares of `size` channels.

    They are size // 2 channels before x's own, itself, and (size - 1) // 2 behind it, as far as
    there are such. x: (n, c, ...). Krizhevsky et al. 2012, ImageNet Classification with Deep
    Convolutional Neural Networks, section 3.3, with alpha as PyTorch takes it.
    """

    name: ClassVar[str] = "local_response_norm"
    samples: ClassVar[bool] = True
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __post_init__(self) -> None:
        windows.check(self.name, size=((self.size,), 1, 1))
        for name in ("alpha", "beta", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ShapeError(
                    f"local_response_norm: {name} must be a number of at least 0, got {value!r}"
                )

    def shape_of(self, shapes: Shapes) -> Shape:
        if len(shapes["x"]) < 2:
            raise ShapeError(
                f"local_response_norm: x must have shape (n, c, ...), got {shapes['x']}"
            )
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        channels = self.shape_of({"x": x.shape})[1]
        sums = np.zeros_like(x)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            squares = x * x
            size = self._reach(channels)
            for offset in range(-(size // 2), (size - 1) // 2 + 1):
                first, last = max(0, -offset), min(channels, channels - offset)
                if first < last:
                    sums[:, first:last] += squares[:, first + offset : last + offset]
            return np.asarray(x / (self.k + self.alpha / self.size * sums) ** self.beta)

    def _reach(self, channels: int) -> int:
        """A size of the same result, in which there are no neighbours that x never has."""
        return min(self.size, max(1, 2 * channels - 1))

    def flops(self, shapes: Shapes) -> int:
        size = self._reach(shapes["x"][1])
        return prod(shapes["x"]) * (2 * size + 4)  # and scaled, added to, its power, divided

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *inner = self.shape_of(shapes)
        return {"n": n, "c": c, "inner": prod(inner)}

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha / self.size, "beta": float(self.beta), "k": float(self.k)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"SIZE": self._reach(shapes["x"][1])}

"""Local response normalisation layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.arguments import integer, number
from glnn.layers.layer import Layer


class LocalResponseNorm(Layer):
    """x / (k + alpha / size s) ** beta, for x of shape (n, c, ...).

    s: the sum of the squares of `size` channels, x's own in their middle.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = integer("LocalResponseNorm size", size)
        self.alpha = number("LocalResponseNorm alpha", alpha, 0)
        self.beta = number("LocalResponseNorm beta", beta, 0)
        self.k = number("LocalResponseNorm k", k, 0)
        super().__init__(operators.LocalResponseNorm(self.size, self.alpha, self.beta, self.k))

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "alpha": self.alpha, "beta": self.beta, "k": self.k}

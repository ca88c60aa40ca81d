"""Rectified linear layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Activation
from glnn.layers.layer import Layer


class ReLU(Layer):
    """max(x, 0) of every element; NaN stays NaN."""

    def __init__(self) -> None:
        super().__init__(Activation("relu"))

    def config(self) -> dict[str, Any]:
        return {}

"""Flatten layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.layer import Layer


class Flatten(Layer):
    """x of shape (n, ...) as a matrix of n rows."""

    def __init__(self) -> None:
        super().__init__(operators.Flatten())

    def config(self) -> dict[str, Any]:
        return {}

"""Flatten layer."""

from __future__ import annotations

from typing import Any

from glnn import ops
from glnn.layers.layer import Layer


class Flatten(Layer):
    """x of shape (n, ...) as a matrix of n rows."""

    def __init__(self) -> None:
        super().__init__(ops.Flatten())

    def config(self) -> dict[str, Any]:
        return {}

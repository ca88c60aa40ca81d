"""Addition layer, as at the end of a residual block."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.layer import Layer


class Add(Layer):
    """x + y, two inputs of one shape, whatever it is."""

    def __init__(self) -> None:
        super().__init__(operators.Add())

    def config(self) -> dict[str, Any]:
        return {}

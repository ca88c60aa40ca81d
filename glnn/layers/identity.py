"""Identity layer."""

from __future__ import annotations

from typing import Any

from glnn.graph import operators
from glnn.layers.layer import ANY, Layer


class Identity(Layer):
    """x of any shape, unchanged. Arguments are taken and not used, as in PyTorch."""

    takes = ANY

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(operators.Identity())

    def config(self) -> dict[str, Any]:
        return {}

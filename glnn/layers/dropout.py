"""Dropout layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Identity
from glnn.layers.arguments import flag, number, with_unusual
from glnn.layers.layer import Layer


class Dropout(Layer):
    """x of any shape, unchanged: elements are dropped, with probability `p`, in training only.

    inplace: changes nothing here, where memory is planned.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        self.p = number("Dropout p", p, 0, 1)
        self.inplace = flag("Dropout inplace", inplace)
        super().__init__(Identity())

    def config(self) -> dict[str, Any]:
        return with_unusual({"p": self.p}, inplace=(self.inplace, False))

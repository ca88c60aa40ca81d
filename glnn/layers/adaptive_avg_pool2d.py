"""Global average pooling layer."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Pool2d
from glnn.layers.arguments import IntOrPair, single
from glnn.layers.layer import Layer


class AdaptiveAvgPool2d(Layer):
    """The mean of each channel of x of shape (n, c, h, w), as (n, c, 1, 1).

    output_size: 1 or (1, 1), one window that spans the image; ShapeError for others.
    """

    def __init__(self, output_size: IntOrPair) -> None:
        self.output_size = single("AdaptiveAvgPool2d output_size", output_size)
        super().__init__(Pool2d(mode="average", kernel=None))

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size}

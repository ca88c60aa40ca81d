"""Average pooling to a given size."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Pool2d
from glnn.layers.arguments import IntOrNone, sizes_or_none
from glnn.layers.layer import Layer


class AdaptiveAvgPool2d(Layer):
    """The mean of each of oh x ow windows that share an image among them: (n, c, oh, ow).

    x: (n, c, h, w). Window (i, j) has the rows from floor(i h / oh) up to ceil((i + 1) h / oh), and
    columns likewise. output_size: (oh, ow), or one number for both; None is x's own size.
    """

    def __init__(self, output_size: IntOrNone) -> None:
        self.output_size = sizes_or_none("AdaptiveAvgPool2d output_size", output_size)
        super().__init__(Pool2d(mode="average", kernel=None, output=self.output_size))

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size}

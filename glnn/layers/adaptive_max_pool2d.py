"""Maximum pooling to a given size."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Pool2d
from glnn.layers.arguments import IntOrNone, only, sizes_or_none
from glnn.layers.layer import Layer


class AdaptiveMaxPool2d(Layer):
    """The largest value of each of oh x ow windows that share an image among them: (n, c, oh, ow).

    x: (n, c, h, w). Window (i, j) has the rows from floor(i h / oh) up to ceil((i + 1) h / oh), and
    columns likewise. output_size: (oh, ow), or one number for both; None is x's own size.
    return_indices: False, as a layer has one result.
    """

    def __init__(self, output_size: IntOrNone, return_indices: bool = False) -> None:
        self.output_size = sizes_or_none("AdaptiveMaxPool2d output_size", output_size)
        only("AdaptiveMaxPool2d return_indices", return_indices, False, "a layer has one result")
        super().__init__(Pool2d(mode="max", kernel=None, output=self.output_size))

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size}

"""A convolution whose result is pooled before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Shapes
from glnn.graph.operators.conv2d import Conv2d
from glnn.graph.operators.pool2d import MODES, Pool2d
from glnn.types import Array, Shape

SIDE = 2  # of the windows, which lie side by side


@dataclass(frozen=True)
class PooledConv2d(Conv2d):
    """The maximum or average over windows of 2 x 2 of a convolution, `Conv2d`'s in all else.

    An epilogue is done before: on each number of the convolution. Result: (n, o, oh // 2, ow // 2).
    """

    name: ClassVar[str] = "pooled_conv2d"
    mode: str = "max"
    """Kind of pooling: "max" or "average"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ShapeError(f"pooled_conv2d: mode must be max or average, got {self.mode!r}")

    @classmethod
    def of(cls, convolution: Conv2d, mode: str) -> PooledConv2d:
        """Return `convolution` with the pool behind it."""
        return cls(**_attributes(convolution), mode=mode)

    @property
    def convolution(self) -> Conv2d:
        """The convolution before the pooling."""
        return Conv2d(**_attributes(self))

    @property
    def pool(self) -> Pool2d:
        """The pooling after the convolution."""
        return Pool2d(self.mode, (SIDE, SIDE), (SIDE, SIDE))

    def shape_of(self, shapes: Shapes) -> Shape:
        return self.pool.shape_of({"x": self.convolved(shapes)})

    def compute(self, operands: Mapping[str, Array]) -> Array:
        return self.pool.compute({"x": super().compute(operands)})

    def reference_with_epilogue(
        self, finish: Callable[[Array], Array], *arrays: Array | None
    ) -> tuple[Array, ...]:
        convolved = super().compute(self.float_operands(arrays))
        return (self.pool.compute({"x": finish(convolved)}),)

    def flops(self, shapes: Shapes) -> int:
        return super().flops(shapes) + self.pool.flops({"x": self.convolved(shapes)})

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {**super().defines(shapes), "POOL": 1 + MODES.index(self.mode)}


def _attributes(convolution: Conv2d) -> dict[str, Any]:
    """Return the attributes that a convolution has, whether pooled or not."""
    return {one.name: getattr(convolution, one.name) for one in fields(Conv2d)}

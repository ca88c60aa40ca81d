"""Channels of several arrays behind one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Contraction, Shapes
from glnn.graph.operators import windows
from glnn.types import Array, Shape

MOST = 3  # inputs that kernels take: with the result, four storage blocks
MOST_INPUTS = 1024  # that any may have: each gets a name, and joins those before it


@dataclass(frozen=True)
class Concat(Contraction):
    """x0, x1, ... of shape (n, c, ...) side by side along axis 1; only c may differ.

    `inputs` names as many as `count` says.
    """

    name: ClassVar[str] = "concat"
    samples: ClassVar[bool] = True
    spoiled: ClassVar[tuple[str, ...]] = ("x0",)
    count: int = 2

    def __post_init__(self) -> None:
        windows.check(self.name, count=((self.count,), 1, 2))
        if self.count > MOST_INPUTS:
            raise ShapeError(f"concat: count must be at most {MOST_INPUTS}, got {self.count}")
        # An op's inputs belong to its class; this one's depend on how many there are.
        object.__setattr__(self, "inputs", tuple(f"x{i}" for i in range(self.count)))

    def shape_of(self, shapes: Shapes) -> Shape:
        first = shapes["x0"]
        if len(first) < 2:
            raise ShapeError(f"concat: x0 must have shape (n, c, ...), got {first}")
        for name in self.inputs[1:]:
            shape = shapes[name]
            if len(shape) != len(first) or (shape[0], *shape[2:]) != (first[0], *first[2:]):
                expected = ", ".join(str(size) for size in (first[0], "c", *first[2:]))
                raise ShapeError(f"concat: {name} must have shape ({expected}), got {shape}")
        return first[0], sum(shapes[name][1] for name in self.inputs), *first[2:]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        self.shape_of({name: array.shape for name, array in operands.items()})
        return np.concatenate([operands[name] for name in self.inputs], axis=1)

    def flops(self, shapes: Shapes) -> int:
        return 0

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *inner = self.shape_of(shapes)
        channels = {f"c{i}": shapes[name][1] for i, name in enumerate(self.inputs)}
        return {"n": n, "c": c, "inner": prod(inner), **channels}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        channels = [shapes[name][1] for name in self.inputs]
        inner = prod(shapes["x0"][2:])
        return {
            "COUNT": self.count,
            # Whether every input begins at a vec4 of the result: in its rows, in its pixels.
            "ROWS_ALIGNED": int(all(c * inner % 4 == 0 for c in channels)),
            "PIXELS_ALIGNED": int(all(c % 4 == 0 for c in channels)),
        }

"""Prologues: pointwise work on a contraction's x before it is multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.blockwise import evaluated
from glnn.graph.expression import Expr
from glnn.types import Array, Shape

Spread = Literal["channel", "image", "one"]
"""Shape of an operand relative to x: one number for each place along axis 1, a matrix's column or
an image's channel; as many for each image, or for each of equal runs of a matrix's rows; or a
single number.
"""


@dataclass(frozen=True)
class Prologue:
    """The expression `expr` of a number of x, Arg(0), and of further operands, Arg(1), Arg(2), ...

    extents: of these operands, in order. What pads an image is zero behind it: only numbers that
    are there go through it.
    """

    expr: Expr
    extents: tuple[Spread, ...] = ()

    def __post_init__(self) -> None:
        if self.expr.arity > 1 + len(self.extents):
            raise ShapeError(
                f"a prologue of {self.expr.text()} needs {self.expr.arity - 1} operands"
            )

    @property
    def structure(self) -> str:
        """Text that tells programs apart: the same for prologues that share a program."""
        return " ".join((self.expr.structure, *self.extents))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the further operands in kernels: p1, p2, ..."""
        return tuple(f"p{i}" for i in range(1, len(self.extents) + 1))

    @property
    def named_extents(self) -> dict[str, Spread]:
        """Extent of each further operand relative to x, by its name."""
        return dict(zip(self.names, self.extents, strict=True))

    def shapes(self, x: Shape, images: int) -> dict[str, Shape]:
        """The shape of each operand, by its name, beside an x of that shape, of `images`."""
        by_image = (images, x[1], *(1,) * (len(x) - 2))
        known = {"channel": (x[1],), "image": by_image, "one": (1,)}
        return {name: known[extent] for name, extent in self.named_extents.items()}

    def images(self, shapes: Mapping[str, Shape]) -> int:
        """Return the number of images of x: for a matrix, the rows of an operand that has some for
        each image.
        """
        x = shapes["x"]
        if len(x) == 4:
            return x[0]
        own = (
            shapes.get(n, ())[:1] for n, extent in self.named_extents.items() if extent == "image"
        )
        return next((rows for first in own for rows in first), 1)

    def check(self, name: str, shapes: Mapping[str, Shape]) -> None:
        """Raise ShapeError unless `shapes` has every operand as it must be beside x, which the
        operator called `name` has.
        """
        x, images = shapes["x"], self.images(shapes)
        if x[0] % max(images, 1):
            raise ShapeError(f"{name}: the {x[0]} rows of x are no {images} equal runs")
        for operand, shape in self.shapes(x, images).items():
            if shapes.get(operand) != shape:
                found = shapes.get(operand, "nothing")
                raise ShapeError(f"{name}: {operand} must have shape {shape}, got {found}")

    def evaluate(self, x: Array, *operands: Array) -> Array:
        """Apply the prologue to x by NumPy, with operands of the shapes that `shapes` gives."""
        spread = []
        for extent, operand in zip(self.extents, operands, strict=True):
            if extent == "channel":
                operand = operand.reshape(-1, *(1,) * (x.ndim - 2))
            elif extent == "image":
                operand = np.repeat(operand, len(x) // max(len(operand), 1), axis=0)
            spread.append(operand)
        return evaluated(self.expr, (x, *spread), x.shape, x.dtype)

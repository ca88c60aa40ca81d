"""Contractions on whose x pointwise work may be done as it is read."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from glnn.graph.contraction import Contraction
from glnn.graph.operator import Operator, Shapes
from glnn.graph.prologue import Prologue
from glnn.types import Array, Shape


class Prologued(Contraction):
    """A contraction of `prologue`(x): its operands p1, p2, ... are the operator's last.

    Those are no parameters: they may be fixed, or computed in each run.
    """

    prologue: Prologue | None

    @property
    def operands(self) -> tuple[str, ...]:
        return (*super().operands, *self.beside)

    @property
    def beside(self) -> tuple[str, ...]:
        """The names of the prologue's operands."""
        return () if self.prologue is None else self.prologue.names

    def check_operands(self, shapes: Mapping[str, object]) -> None:
        super().check_operands({n: one for n, one in shapes.items() if n not in self.beside})

    def check_prologue(self, shapes: Shapes) -> None:
        """Raise ShapeError unless the prologue's operands fit x."""
        if self.prologue is not None:
            self.prologue.check(self.name, shapes)

    def prepared(self, operands: Mapping[str, Array]) -> Array:
        """Return x after the prologue, which is what is multiplied, in the dtype of x."""
        x = operands["x"]
        if self.prologue is None:
            return x
        return self.prologue.evaluate(x, *(operands[name] for name in self.beside))

    def prologue_flops(self, shapes: Shapes) -> int:
        """The operations of the prologue, done once for each number of x."""
        return 0 if self.prologue is None else self.prologue.expr.flops * prod(shapes["x"])

    def with_x(self, shapes: Shapes, x: Shape) -> dict[str, Shape]:
        """Return `shapes` with another x of as many images, and prologue's operands that fit it."""
        if self.prologue is None:
            return {**shapes, "x": x}
        images = self.prologue.images(shapes)
        return {**shapes, "x": x, **self.prologue.shapes(x, images)}

    def by_image(self) -> tuple[str, ...]:
        """The prologue's operands that have numbers for each image."""
        extents = {} if self.prologue is None else self.prologue.named_extents
        return tuple(name for name, extent in extents.items() if extent == "image")

    def layouts_of(self, by_image: str) -> dict[str, str]:
        """Return the layouts of the prologue's operands; operands with numbers for each image lie
        in `by_image`.
        """
        return {n: by_image if n in self.by_image() else "R" for n in self.beside}


def prologue_of(op: Operator) -> Prologue | None:
    """Return the prologue of `op`; None where it has none."""
    return op.prologue if isinstance(op, Prologued) else None

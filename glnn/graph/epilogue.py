"""Epilogues: pointwise work on a kernel's result before it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from glnn.errors import ShapeError
from glnn.graph.blockwise import evaluated
from glnn.graph.expression import Arg, Expr, call
from glnn.types import Array, Shape

Extent = Literal["full", "channel", "one"]
"""Shape of an operand relative to the result: the same; one number for each place along axis 1, a
matrix's column or an image's channel; or a single number.
"""


@dataclass(frozen=True)
class Epilogue:
    """The expression `expr` of a result, Arg(0), and of further operands, Arg(1), Arg(2), ...

    extents: of these operands, in order.
    """

    expr: Expr
    extents: tuple[Extent, ...] = ()

    def __post_init__(self) -> None:
        if self.expr.arity > 1 + len(self.extents):
            raise ShapeError(
                f"an epilogue of {self.expr.text()} needs {self.expr.arity - 1} operands"
            )

    @property
    def structure(self) -> str:
        """Text that tells programs apart: the same for epilogues that share a program."""
        return " ".join((self.expr.structure, *self.extents))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the further operands in kernels: e1, e2, ..."""
        return tuple(f"e{i}" for i in range(1, len(self.extents) + 1))

    @property
    def named_extents(self) -> dict[str, Extent]:
        """Extent of each further operand relative to the result, by its name."""
        return dict(zip(self.names, self.extents, strict=True))

    def then(self, other: Epilogue) -> Epilogue:
        """Return the epilogue that applies this one and then `other`; the operands of `other` come
        last.
        """
        first = len(self.extents)
        rest = (Arg(first + i) for i in range(1, len(other.extents) + 1))
        return Epilogue(other.expr(self.expr, *rest), (*self.extents, *other.extents))

    def shapes(self, result: Shape) -> dict[str, Shape]:
        """The shape of each operand, by its name, beside a result of that shape."""
        named = zip(self.names, self.extents, strict=True)
        return {name: self.shape(extent, result) for name, extent in named}

    def shape(self, extent: Extent, result: Shape) -> Shape:
        """The shape of an operand of this `extent` beside a result of that shape."""
        if extent == "full":
            return result
        return (result[1],) if extent == "channel" else (1,)

    def check(self, name: str, shapes: Mapping[str, Shape], result: Shape) -> None:
        """Raise ShapeError unless `shapes` has every operand as it must be beside a result of that
        shape, which the operator called `name` has.
        """
        if "channel" in self.extents and len(result) < 2:
            raise ShapeError(f"{name}: a result of shape {result} has no channels")
        for operand, shape in self.shapes(result).items():
            if shapes.get(operand) != shape:
                found = shapes.get(operand, "nothing")
                raise ShapeError(f"{name}: {operand} must have shape {shape}, got {found}")

    def evaluate(self, result: Array, *operands: Array, in_place: bool = False) -> Array:
        """The result's numbers by NumPy, operands being of the shapes that `shapes` says.

        in_place: whether they take the place of `result`, which nobody else has.
        """
        spread = []
        for extent, operand in zip(self.extents, operands, strict=True):
            if extent == "channel":
                operand = operand.reshape(-1, *(1,) * (result.ndim - 2))
            spread.append(operand)
        out = result if in_place else None
        return evaluated(self.expr, (result, *spread), result.shape, result.dtype, out)


def gemm(alpha: float, beta: float | None = None) -> Epilogue | None:
    """alpha result + beta e1, with an operand e1 unless beta is None: BLAS's GEMM."""
    scaled: Expr = Arg(0) if alpha == 1.0 else call("mul", alpha, Arg(0))
    if beta is None:
        return None if alpha == 1.0 else Epilogue(scaled)
    return Epilogue(call("add", scaled, call("mul", beta, Arg(1))), ("full",))


BIASED = Epilogue(call("add", Arg(0), Arg(1)), ("channel",))
"""A bias: one number for each channel is added."""

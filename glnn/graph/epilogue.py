"""Pointwise work fused into a kernel: epilogues of its result, and prologues of its x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.expression import Arg, Expr, Scalar, call, replace_part
from glnn.graph.expression_evaluation import compile_expression, evaluate_blockwise

Extent = Literal["full", "padded", "channel", "one", "row", "column"]
"""Shape of an operand relative to the result.

"full": the result's shape and layout. "padded": the result's shape, a matrix, in rows that may be
padded. "channel": one number for each index along axis 1, a matrix's column or an image's channel.
"one": a single number. "row": one number for each row along the last axis. "column": one number for
each index along the last axis.
"""
ROWWISE: tuple[Extent, ...] = ("padded", "row", "column")
"""Extents of operands that are read by the row of a result's number, and the index in that row."""


@dataclass(frozen=True)
class Epilogue:
    """The expression `expr` of a result, Arg(0), and of further operands, Arg(1), Arg(2), ...

    extents: of the further operands, in order. updates: new content of operands of the result's
    shape, as pairs of the operand's index in `extents` and an expression; each number of such an
    operand is read, then replaced in place.
    """

    expr: Expr
    extents: tuple[Extent, ...] = ()
    updates: tuple[tuple[int, Expr], ...] = ()

    def __post_init__(self) -> None:
        for expr in self.exprs:
            if expr.arity > 1 + len(self.extents):
                raise ShapeError(f"an epilogue of {expr.text()} needs {expr.arity - 1} operands")
        for place, _ in self.updates:
            if self.extents[place] not in ("full", "padded"):
                raise ShapeError(f"an epilogue updates no operand of extent {self.extents[place]}")

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All expressions: the result's, then those of `updates`."""
        return self.expr, *(expr for _, expr in self.updates)

    @property
    def updated(self) -> dict[str, Expr]:
        """The expressions of the new content of updated operands, by the operands' names."""
        return {self.names[place]: expr for place, expr in self.updates}

    @property
    def structure(self) -> str:
        """Text that tells programs apart: the same for epilogues that share a program."""
        updates = (f"{name}={expr.structure}" for name, expr in self.updated.items())
        return " ".join((self.expr.structure, *self.extents, *updates))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the further operands in kernels: e1, e2, ..."""
        return tuple(f"e{i}" for i in range(1, len(self.extents) + 1))

    @property
    def named_extents(self) -> dict[str, Extent]:
        """Extent of each further operand relative to the result, by its name."""
        return dict(zip(self.names, self.extents, strict=True))

    def named(self, extent: Extent) -> tuple[str, ...]:
        """Names of the further operands of that extent."""
        return tuple(name for name, one in self.named_extents.items() if one == extent)

    def then(self, following: Epilogue) -> Epilogue:
        """Return the epilogue that applies this one and then `following`; the operands of
        `following` come last.
        """
        first = len(self.extents)
        operands = [Arg(first + i) for i in range(1, len(following.extents) + 1)]
        updates = ((first + i, expr(self.expr, *operands)) for i, expr in following.updates)
        extents = (*self.extents, *following.extents)
        return Epilogue(following.expr(self.expr, *operands), extents, (*self.updates, *updates))

    def of_update(self, name: str) -> Epilogue:
        """Return the epilogue whose result is the new content of the operand `name`."""
        return Epilogue(self.updated[name], self.extents)

    def split_bias(self) -> tuple[int, Epilogue | None] | None:
        """Return the index of the bias in `extents` and the epilogue without it, None where nothing
        is left; None where there is no bias.

        A bias is an operand of a number for each channel that is added to the result first.
        """
        if self.updates:
            return None
        for index, extent in enumerate(self.extents, 1):
            for operands in ((Arg(0), Arg(index)), (Arg(index), Arg(0))):
                biased = call("add", *operands)
                expr = replace_part(self.expr, biased, Arg(0))
                other_parts = replace_part(self.expr, biased, Scalar(0.0)).parts()
                if extent == "channel" and expr != self.expr and not {*operands} & {*other_parts}:
                    if expr == Arg(0):
                        return index - 1, None
                    for behind in range(index + 1, len(self.extents) + 1):
                        expr = replace_part(expr, Arg(behind), Arg(behind - 1))
                    extents = self.extents[: index - 1] + self.extents[index:]
                    return index - 1, Epilogue(expr, extents)
        return None

    def shapes(self, result: Shape) -> dict[str, Shape]:
        """Return the shape of each operand by its name, for a result of shape `result`."""
        return {name: self.shape(extent, result) for name, extent in self.named_extents.items()}

    def shape(self, extent: Extent, result: Shape) -> Shape:
        """Return the shape of an operand of `extent`, for a result of shape `result`."""
        if extent == "row":
            return (prod(result[:-1]),)
        shapes = {"channel": result[1:2], "one": (1,), "column": result[-1:]}
        return shapes.get(extent, result)

    def check(self, name: str, shapes: Mapping[str, Shape], result: Shape) -> None:
        """Raise ShapeError unless `shapes` has the shape of every operand for a result of shape
        `result`. name: of the operator, for messages.
        """
        if "channel" in self.extents and len(result) < 2:
            raise ShapeError(f"{name}: a result of shape {result} has no channels")
        if "padded" in self.extents and len(result) != 2:
            raise ShapeError(f"{name}: a result of shape {result} is no matrix")
        for operand, shape in self.shapes(result).items():
            if shapes.get(operand) != shape:
                got = shapes.get(operand, "nothing")
                raise ShapeError(f"{name}: {operand} must have shape {shape}, got {got}")

    def evaluate(self, result: Array, *operands: Array, in_place: bool = False) -> Array:
        """Apply the epilogue to `result` by NumPy, with operands of the shapes that `shapes` gives.

        in_place: whether to overwrite `result`, which nothing else may read then.
        """
        spread = []
        for extent, operand in zip(self.extents, operands, strict=True):
            if extent == "channel":
                operand = operand.reshape(-1, *(1,) * (result.ndim - 2))
            if extent == "row":
                operand = operand.reshape(*result.shape[:-1], 1)
            spread.append(operand)
        out = result if in_place else None
        return evaluate_blockwise(self.expr, (result, *spread), result.shape, result.dtype, out)


def gemm(alpha: float, beta: float | None = None) -> Epilogue | None:
    """alpha result + beta e1, with an operand e1 unless beta is None: BLAS's GEMM."""
    scaled: Expr = Arg(0) if alpha == 1.0 else call("mul", alpha, Arg(0))
    if beta is None:
        return None if alpha == 1.0 else Epilogue(scaled)
    return Epilogue(call("add", scaled, call("mul", beta, Arg(1))), ("full",))


BIASED = Epilogue(call("add", Arg(0), Arg(1)), ("channel",))
"""A bias: one number for each channel is added."""


Spread = Literal["channel", "image", "one"]
"""Shape of an operand relative to x.

"channel": one number for each index along axis 1, a matrix's column or an image's channel. "image":
as many for each image, or for each of equal runs of a matrix's rows. "one": a single number.
"""


@dataclass(frozen=True)
class Prologue:
    """The expression `expr` of a number of x, Arg(0), and of further operands, Arg(1), Arg(2), ...

    extents: of the further operands, in order. Padding of an image stays zero: the prologue is
    applied to the image's own numbers only.
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
        """Return the shape of each operand by its name, for x of shape `x` that has `images`."""
        by_image = (images, x[1], *(1,) * (len(x) - 2))
        by_extent = {"channel": (x[1],), "image": by_image, "one": (1,)}
        return {name: by_extent[extent] for name, extent in self.named_extents.items()}

    def images(self, shapes: Mapping[str, Shape]) -> int:
        """Return the number of images of x: for a matrix, the number of rows of an operand of
        extent "image", or 1.
        """
        x = shapes["x"]
        if len(x) == 4:
            return x[0]
        by_image = (
            shapes.get(n, ())[:1] for n, extent in self.named_extents.items() if extent == "image"
        )
        return next((rows for first in by_image for rows in first), 1)

    def check(self, name: str, shapes: Mapping[str, Shape]) -> None:
        """Raise ShapeError unless `shapes` has the shape of every operand for its "x".

        name: of the operator, for messages.
        """
        x, images = shapes["x"], self.images(shapes)
        if x[0] % max(images, 1):
            raise ShapeError(f"{name}: the {x[0]} rows of x are no {images} equal runs")
        for operand, shape in self.shapes(x, images).items():
            if shapes.get(operand) != shape:
                got = shapes.get(operand, "nothing")
                raise ShapeError(f"{name}: {operand} must have shape {shape}, got {got}")

    def compiled(self, dtypes: Sequence[np.dtype[Any]]) -> Callable[..., Array]:
        """Return a function that does the same as `evaluate` for images and operands of `dtypes`,
        x's first.

        It must be called within `np.errstate`.
        """
        compute = compile_expression(self.expr, dtypes, dtypes[0])

        def apply(x: Array, *operands: Array) -> Array:
            pairs = zip(self.extents, operands, strict=True)
            spread = [array.reshape(-1, 1, 1) if e == "channel" else array for e, array in pairs]
            return compute(x.shape, x, *spread)

        return apply

    def evaluate(self, x: Array, *operands: Array) -> Array:
        """Apply the prologue to x by NumPy, with operands of the shapes that `shapes` gives."""
        spread = []
        for extent, operand in zip(self.extents, operands, strict=True):
            if extent == "channel":
                operand = operand.reshape(-1, *(1,) * (x.ndim - 2))
            elif extent == "image":
                operand = np.repeat(operand, len(x) // max(len(operand), 1), axis=0)
            spread.append(operand)
        return evaluate_blockwise(self.expr, (x, *spread), x.shape, x.dtype)

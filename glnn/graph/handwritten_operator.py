"""Bases of operators with handwritten kernels: of one float32 result, and with a prologue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, DType, Shape, TensorType, as_float
from glnn.errors import ShapeError
from glnn.graph.epilogue import Prologue
from glnn.graph.operator import Constants, Cost, Operands, Operator, Shapes, Types, typed

FLOATS = (DType.float32, DType.float16)


class HandwrittenOperator(Operator):
    """An operator of one float32 result, whose kernels are written by hand.

    `inputs` are the operands that change from run to run,
    `parameters` those fixed with the model; operands named in `optional` may be absent.
    """

    inputs: ClassVar[tuple[str, ...]] = ("x",)

    @property
    def operands(self) -> tuple[str, ...]:
        return (*self.inputs[:1], *self.parameters, *self.inputs[1:])

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        operands = self.named(types)
        for name, one in operands.items():
            dtypes = FLOATS + (DType.int8,) * (name in self.int8_operands)
            if one.dtype not in dtypes:
                texts = " or ".join(dtype.value for dtype in dtypes)
                raise ShapeError(f"{self.name}: {name} must be {texts}, got {one}")
        return (TensorType(self.shape_of({name: one.shape for name, one in operands.items()})),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        return (self.compute(self.float_operands(arrays)),)

    def float_operands(self, arrays: Sequence[Array | None]) -> dict[str, Array]:
        """Return the operands' `arrays` by name, as floats."""
        operands = {name: as_float(array) for name, array in self.named(arrays).items()}
        for name in self.int8_operands:
            if operands[name].dtype == np.int8:
                operands[name] = operands[name].astype(operands[self.inputs[0]].dtype)
        return operands

    def cost(self, types: Types) -> Cost:
        return self.cost_of(self.named(types))

    @abstractmethod
    def shape_of(self, shapes: Shapes) -> Shape:
        """Return the result's shape. Raises ShapeError where the operands do not fit."""

    @abstractmethod
    def compute(self, operands: Mapping[str, Array]) -> Array:
        """Compute the result by NumPy, in the dtype of `x` (float32 or float64)."""

    @abstractmethod
    def flops(self, shapes: Shapes) -> int:
        """Return floating-point operations, a multiply-add counting two."""

    @abstractmethod
    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return sizes by name, which uniforms, grids and restrictions of kernels use."""

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        if not self.samples:
            return ()
        n = self.shape_of(shapes)[0]
        return tuple(name for name in self.inputs if shapes.get(name, ())[:1] == (n,))

    def cost_of(self, operands: Operands) -> Cost:
        types = typed(operands)
        shapes = {name: one.shape for name, one in types.items()}
        sizes = {name: one.dtype.words(prod(one.shape)) for name, one in types.items()}
        packed = (
            name for name in self.int8_operands if name in types and types[name].dtype is DType.int8
        )
        words = sum((sizes | {name: -(-sizes[name] // 4) for name in packed}).values())
        return Cost(self.flops(shapes), 4 * (words + prod(self.shape_of(shapes))))

    def check_operands(self, shapes: Mapping[str, object]) -> None:
        known = (*self.inputs, *self.parameters)
        needed = [n for n in known if n not in self.optional]
        if any(n not in shapes for n in needed) or any(n not in known for n in shapes):
            raise ShapeError(f"{self.name}: expected operands {known}, got {tuple(shapes)}")


class ContractionWithPrologue(HandwrittenOperator):
    """A contraction of `prologue`(x); the prologue's operands p1, p2, ... are the operator's last.

    They are no parameters: they may be constants or computed in each run.
    """

    prologue: Prologue | None

    @property
    def operands(self) -> tuple[str, ...]:
        return (*super().operands, *self.prologue_operands)

    @property
    def prologue_operands(self) -> tuple[str, ...]:
        """The names of the prologue's operands."""
        return () if self.prologue is None else self.prologue.names

    def check_operands(self, shapes: Mapping[str, object]) -> None:
        super().check_operands(
            {n: one for n, one in shapes.items() if n not in self.prologue_operands}
        )

    def check_prologue(self, shapes: Shapes) -> None:
        """Raise ShapeError unless the prologue's operands fit x."""
        if self.prologue is not None:
            self.prologue.check(self.name, shapes)

    def prepared(self, operands: Mapping[str, Array]) -> Array:
        """Return `prologue`(x), in the dtype of x."""
        x = operands["x"]
        if self.prologue is None:
            return x
        return self.prologue.evaluate(x, *(operands[name] for name in self.prologue_operands))

    def prologue_flops(self, shapes: Shapes) -> int:
        """Return the operations of the prologue, applied once to each element of x."""
        return 0 if self.prologue is None else self.prologue.expr.flops * prod(shapes["x"])

    def with_x(self, shapes: Shapes, x: Shape) -> dict[str, Shape]:
        """Return `shapes` with `x`, of as many images, and operands of the prologue that fit it."""
        if self.prologue is None:
            return {**shapes, "x": x}
        images = self.prologue.images(shapes)
        return {**shapes, "x": x, **self.prologue.shapes(x, images)}

    def by_image(self) -> tuple[str, ...]:
        """Return the names of the prologue's operands with elements for each image."""
        extents = {} if self.prologue is None else self.prologue.named_extents
        return tuple(name for name, extent in extents.items() if extent == "image")

    def layouts_of(self, by_image: str) -> dict[str, str]:
        """Return the layouts of the prologue's operands: `by_image` for those with elements for
        each image, row major for others.
        """
        return {n: by_image if n in self.by_image() else "R" for n in self.prologue_operands}


def prologue_of(op: Operator) -> Prologue | None:
    """Return the prologue of `op`; None where it has none."""
    return op.prologue if isinstance(op, ContractionWithPrologue) else None

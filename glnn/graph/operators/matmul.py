"""Matrix multiplication in the order of PyTorch's Linear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.operator import Reference, SampleSubset, Shapes, Types, rank, shrink_size
from glnn.graph.prologue import Prologue
from glnn.graph.prologued import Prologued
from glnn.symint import divides
from glnn.types import Array, Shape

FEW = 8  # columns of a result


@dataclass(frozen=True)
class Matmul(Prologued):
    """x weight^T, BLAS's GEMM with the second operand transposed; an epilogue does the rest.

    x: (m, k). weight: (n, k). Result: (m, n).
    A weight of shape (batch, n, k) multiplies `batch` matrices of x, which lie below one another:
    x is (batch m, k), the result (batch m, n).
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "matmul"
    has_depth: ClassVar[bool] = True
    any_sizes: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    halves: ClassVar[tuple[str, ...]] = ("x", "weight")
    bytes: ClassVar[tuple[str, ...]] = ("weight",)
    prologue: Prologue | None = None
    """Work on x before it is multiplied: an operand by image has a row for each of equal runs of
    rows.
    """

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        if len(weight) != 3:
            rank(self.name, "weight", weight, 2, "(n, k) or (batch, n, k)")
        elif x[0] % weight[0] if weight[0] else x[0]:
            raise ShapeError(f"matmul: the rows of x {x} are no multiple of weight's {weight[0]}")
        if x[1] != weight[-1]:
            raise ShapeError(
                f"matmul: x {x} and weight {weight} must agree in their last dimension"
            )
        self.check_prologue(shapes)
        return x[0], weight[-2]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        given = {"x": self.prepared(operands), "weight": operands["weight"]}
        wide = np.result_type(*given.values())
        x, weight = (array.astype(wide, copy=False) for array in given.values())
        weight = weight.swapaxes(-1, -2)
        if weight.ndim == 2:
            return np.asarray(x @ weight)
        matrices = x.reshape(len(weight), len(x) // max(len(weight), 1), x.shape[1])
        return np.asarray((matrices @ weight).reshape(len(x), weight.shape[-1]))

    def specialize(self, types: Types) -> Reference:
        given = self.named(types)
        x, weight = given["x"], given["weight"]
        if self.prologue is not None or x.dtype is not weight.dtype:
            return self.reference
        if len(weight.shape) == 2:
            return lambda x, weight: (np.matmul(x, weight.T),)

        def stacked(x: Array, weight: Array) -> tuple[Array, ...]:
            (m, k), (batch, n, _) = x.shape, weight.shape
            matrices = x.reshape(batch, m // max(batch, 1), k)
            return (np.matmul(matrices, weight.swapaxes(1, 2)).reshape(m, n),)

        return stacked

    def flops(self, shapes: Shapes) -> int:
        m, n = self.shape_of(shapes)
        return m * n * 2 * shapes["x"][1] + self.prologue_flops(shapes)

    def fixed_layouts(self) -> Mapping[str, str]:
        return self.layouts_of("R4")

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        m, n = self.shape_of(shapes)
        batch = shapes["weight"][0] if self.stacks(shapes) else 1
        found = {"m": m // batch, "n": n, "k": shapes["x"][1], "batch": batch}
        if self.prologue is not None:
            found["image_rows"] = m // max(self.prologue.images(shapes), 1)
        return found

    def product(self, shapes: Shapes) -> tuple[int, int]:
        sizes = self.sizes(shapes)
        return sizes["m"], sizes["n"]

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"BATCHED": int(bool(self.stacks(shapes)))}

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """Return {"ragged": 1} where the depth of the sums is no multiple of four."""
        return {"ragged": int(not divides(4, shapes["x"][1]))}

    def stacks(self, shapes: Shapes) -> tuple[str, ...]:
        return ("weight",) if len(shapes["weight"]) == 3 else ()

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands that hold samples: none where rows are of several images, as fewer
        rows would be of others.
        """
        several = self.prologue is not None and self.prologue.images(shapes) > 1
        return () if several or self.stacks(shapes) else ("x",)

    def reduce_samples(self, shapes: Shapes, count: int) -> SampleSubset | None:
        if not self.stacks(shapes) or self.prologue is not None:
            return super().reduce_samples(shapes, count)
        batch = shapes["weight"][0]  # of each matrix some rows
        some = {**shapes, "x": (batch * count, shapes["x"][1])}
        return SampleSubset(self, some, {"x": batch, "out": batch})

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (m, k), (*batch, n, _) = shapes["x"], shapes["weight"]
        made = depth + (k - depth) % 4  # a whole quad or not, as before
        n_made = min(n, FEW + n % 4) if few else n
        return {**self.with_x(shapes, (m, made)), "weight": (*batch, n_made, made)}

    def shrink(self, shapes: Shapes) -> Shapes:
        (m, k), batch = shapes["x"], shapes["weight"][0] if self.stacks(shapes) else 1
        if self.prologue is not None or not batch:
            return shapes
        return {**shapes, "x": (batch * shrink_size(m // batch), k)}

"""Matrix products: whole, in parts whose sums are added up, and of consecutive layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glnn.core.symint import divides
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.epilogue import Prologue
from glnn.graph.expression import Arg, Expr
from glnn.graph.handwritten_operator import ContractionWithPrologue, HandwrittenOperator
from glnn.graph.operator import Reference, SampleSubset, Shapes, Types, rank, shrink_size

FEW = 8  # columns of a result


@dataclass(frozen=True)
class Matmul(ContractionWithPrologue):
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
    fp16_operands: ClassVar[tuple[str, ...]] = ("x", "weight")
    int8_operands: ClassVar[tuple[str, ...]] = ("weight",)
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
        prepared = {"x": self.prepared(operands), "weight": operands["weight"]}
        wide = np.result_type(*prepared.values())
        x, weight = (array.astype(wide, copy=False) for array in prepared.values())
        weight = weight.swapaxes(-1, -2)
        if weight.ndim == 2:
            return np.asarray(x @ weight)
        matrices = x.reshape(len(weight), len(x) // max(len(weight), 1), x.shape[1])
        return np.asarray((matrices @ weight).reshape(len(x), weight.shape[-1]))

    def specialize(self, types: Types) -> Reference:
        operands = self.named(types)
        x, weight = operands["x"], operands["weight"]
        if self.prologue is not None or x.dtype is not weight.dtype:
            return self.reference
        if len(weight.shape) == 2:
            return lambda x, weight: (np.matmul(x, weight.T),)

        def stacked(x: Array, weight: Array) -> tuple[Array, ...]:
            (m, k), (batch, n, _) = x.shape, weight.shape
            matrices = x.reshape(batch, m // max(batch, 1), k)
            return (np.matmul(matrices, weight.swapaxes(1, 2)).reshape(m, n),)

        return stacked

    def multiply_adds(self, shapes: Shapes) -> int:
        m, n = self.shape_of(shapes)
        return m * n * shapes["x"][1]

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes) + self.prologue_flops(shapes)

    def fixed_layouts(self) -> Mapping[str, str]:
        return self.layouts_of("R4")

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        m, n = self.shape_of(shapes)
        batch = shapes["weight"][0] if self.stacks(shapes) else 1
        result = {"m": m // batch, "n": n, "k": shapes["x"][1], "batch": batch}
        if self.prologue is not None:
            result["image_rows"] = m // max(self.prologue.images(shapes), 1)
        return result

    def product(self, shapes: Shapes) -> tuple[int, int]:
        sizes = self.sizes(shapes)
        return sizes["m"], sizes["n"]

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"BATCHED": int(bool(self.stacks(shapes)))}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
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


ROWS, COLUMNS, TRANSPOSED = "rows", "columns", "transposed"
ORDERS = (ROWS, COLUMNS, TRANSPOSED)


@dataclass(frozen=True)
class MatmulParts(HandwrittenOperator):
    """x weight^T with the sum over k cut into `parts`, which MatmulSum adds up.

    x: (m, k). weight: (n, k). The result depends on `order`:
    "rows": (parts m, n), the products of one part below those of the one before; a part takes as
        many quads of k as every other, the last ones perhaps fewer or none.
    "columns": (1, n, m, parts), Cronin's: column after column, the parts of a row together.
    "transposed": (1, n, parts, m), Cronin's where x is stored transposed.
    In Cronin's orders `parts` divides k.
    """

    name: ClassVar[str] = "matmul_parts"
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    fp16_operands: ClassVar[tuple[str, ...]] = ("x", "weight")
    parts: int
    order: str = ROWS

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ShapeError(f"matmul_parts: order must be one of {ORDERS}, got {self.order!r}")
        if self.parts < 1:
            raise ShapeError(f"matmul_parts: expected at least one part, got {self.parts}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        rank(self.name, "weight", weight, 2, "(n, k)")
        if x[1] != weight[1]:
            raise ShapeError(
                f"matmul_parts: x {x} and weight {weight} must agree in their last dimension"
            )
        if self.order != ROWS and x[1] % self.parts:
            raise ShapeError(f"matmul_parts: {self.parts} parts do not divide k of x {x}")
        m, n = x[0], weight[0]
        if self.order == ROWS:
            return self.parts * m, n
        return (1, n, m, self.parts) if self.order == COLUMNS else (1, n, self.parts, m)

    def _width(self, k: int) -> int:
        """Return the share of k that a part takes."""
        return 4 * -(-k // (4 * self.parts)) if self.order == ROWS else k // self.parts

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, weight = operands["x"], operands["weight"]
        k, width = x.shape[1], self._width(x.shape[1])
        missing = ((0, 0), (0, width * self.parts - k))
        shares = (-1, self.parts, width)
        a = np.pad(x, missing).reshape(shares)
        b = np.pad(weight.astype(x.dtype, copy=False), missing).reshape(shares)
        order = {ROWS: "pij", COLUMNS: "jip", TRANSPOSED: "jpi"}[self.order]
        result: Array = np.einsum(f"ipk,jpk->{order}", a, b)
        return result.reshape(self.shape_of({"x": x.shape, "weight": weight.shape}))

    def depth(self, shapes: Shapes) -> int:
        return self._width(shapes["x"][1])

    def flops(self, shapes: Shapes) -> int:
        return 2 * shapes["x"][0] * shapes["weight"][0] * shapes["x"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        (m, k), n = shapes["x"], shapes["weight"][0]
        return {"m": m, "n": n, "k": k, "parts": self.parts, "width": self._width(k)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        width = 4 if self.order == ROWS else self._width(shapes["x"][1])
        return {"ORDER": ORDERS.index(self.order), "WIDTH": width}


@dataclass(frozen=True)
class MatmulSum(HandwrittenOperator):
    """The sum over the parts of what MatmulParts gives.

    x: (parts m, n), (1, n, m, parts) or (1, n, parts, m), as `order` says there. Result: (m, n).
    """

    name: ClassVar[str] = "matmul_sum"
    parts: int
    order: str = ROWS

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ShapeError(f"matmul_sum: order must be one of {ORDERS}, got {self.order!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if self.order == ROWS:
            rank(self.name, "x", x, 2, "(parts m, n)")
            parts, m, n = self.parts, x[0] // self.parts, x[1]
            fits = x[0] == parts * m
        else:
            rank(self.name, "x", x, 4, "(1, n, m, parts) or (1, n, parts, m)")
            one, n, m, parts = x if self.order == COLUMNS else (x[0], x[1], x[3], x[2])
            fits = one == 1 and parts == self.parts
        if not fits:
            raise ShapeError(f"matmul_sum: x {x} has not {self.parts} parts, {self.order}")
        return m, n

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        m, n = self.shape_of({"x": x.shape})
        if self.order == ROWS:
            return np.asarray(x.reshape(self.parts, m, n).sum(0))
        return np.asarray(x[0].sum(2 if self.order == COLUMNS else 1).T)

    def depth(self, shapes: Shapes) -> int:
        return self.parts

    def flops(self, shapes: Shapes) -> int:
        m, n = self.shape_of(shapes)
        return m * n * self.parts

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        """The steps are the floats from one row, column and part to the next in row major x."""
        m, n = self.shape_of(shapes)
        quads = -(-n // 4) * 4
        steps = {
            ROWS: (quads, 1, m * quads),
            COLUMNS: (self.parts, m * self.parts, 1),
        }.get(self.order, (1, m * self.parts, m))
        names = ("row_step", "column_step", "part_step")
        return {"m": m, "n": n, "parts": self.parts, **dict(zip(names, steps, strict=True))}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"ORDER": ORDERS.index(self.order)}


SUM = Arg(0)
QUAD = 4  # numbers that a kernel reads and makes at once


def pad_width(width: int) -> int:
    """The columns that a layer of so many results has in memory."""
    return -(-width // QUAD) * QUAD


@dataclass(frozen=True)
class Perceptron(HandwrittenOperator):
    """f2(W2 f1(W1 x + b1) + b2) and so on: fully connected layers, one behind another.

    x: (n, c), or images of one pixel (n, c, 1, 1). weights: one dimension, layer after layer a row
    of each term; biases: one dimension, layer after layer a row. Rows are padded to whole fours, by
    what is not looked at. Result: (n, o), or (n, o, 1, 1). So a squeeze-and-excitation makes the
    scales of its channels (Hu et al. 2018, section 3.2), and a classifier its scores.
    """

    name: ClassVar[str] = "perceptron"
    samples: ClassVar[bool] = True
    has_depth: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weights", "biases")
    fp16_operands: ClassVar[tuple[str, ...]] = ("weights",)
    widths: tuple[int, ...]
    """Number of results of each layer."""
    functions: tuple[Expr, ...]
    """Function that each layer applies to each of its sums, Arg(0)."""

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.functions) or min(self.widths) < 1:
            raise ShapeError(
                f"perceptron: expected a width of at least 1 and a function for each layer, got "
                f"{self.widths} and {len(self.functions)} functions"
            )
        for expr in self.functions:
            if expr.arity > 1:
                raise ShapeError(f"perceptron: {expr.text()} must be of one sum")

    def sides(self, c: int) -> dict[str, Shape]:
        """The shapes of the weights and of the biases for samples of `c` numbers."""
        rows = [(terms, pad_width(width)) for terms, width in self.layers(c)]
        weights = sum(terms * wide for terms, wide in rows)
        return {"weights": (weights,), "biases": (sum(wide for _, wide in rows),)}

    def layers(self, c: int) -> Iterator[tuple[int, int]]:
        """The terms and the results of each layer, for samples of `c` numbers."""
        return zip((c, *self.widths), self.widths, strict=False)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, parameters = shapes["x"], {name: shapes[name] for name in self.parameters}
        if len(x) not in (2, 4) or x[2:] not in ((), (1, 1)):
            raise ShapeError(f"perceptron: x must be (n, c) or (n, c, 1, 1), got {x}")
        if (expected := self.sides(x[1])) != parameters:
            raise ShapeError(
                f"perceptron: weights and biases must be {tuple(expected.values())} for x {x} and "
                f"widths {self.widths}, got {tuple(parameters.values())}"
            )
        return x[0], self.widths[-1], *x[2:]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        rows = x.reshape(x.shape[:2])
        weights, biases = (operands[n].astype(x.dtype, copy=False) for n in self.parameters)
        for (terms, width), expr in zip(self.layers(x.shape[1]), self.functions, strict=True):
            wide = pad_width(width)
            weight, weights = weights[: terms * wide].reshape(terms, wide), weights[terms * wide :]
            bias, biases = biases[:width], biases[wide:]
            rows = np.asarray(expr.evaluate(rows @ weight[:, :width] + bias), x.dtype)
        return rows.reshape(*rows.shape, *x.shape[2:])

    def flops(self, shapes: Shapes) -> int:
        n, c, *_ = shapes["x"]
        layers = zip(self.layers(c), self.functions, strict=True)
        return n * sum(width * (2 * terms + 1 + f.flops) for (terms, width), f in layers)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *_ = shapes["x"]
        return {"n": n, "c": c, "o": self.widths[-1]}

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        n, c, *rest = shapes["x"]
        made = depth + (c - depth) % QUAD  # a whole quad or not, as before
        return {**shapes, "x": (n, made, *rest), **self.sides(made)}

"""Matrix multiplication in the order of PyTorch's Linear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.operator import Contraction, Shapes, rank
from glnn.graph.operators import epilogue
from glnn.types import Array, Shape

FEW = 8  # columns of a result


@dataclass(frozen=True)
class Matmul(Contraction):
    """act(alpha x weight^T + bias + beta c), BLAS's GEMM with the second operand transposed.

    x: (m, k). weight: (n, k). bias: (n,), optional. c: (m, n), optional. Result: (m, n).
    A weight of shape (batch, n, k) multiplies `batch` matrices of x, which lie below one another:
    x is (batch m, k), c and the result (batch m, n).
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "matmul"
    spoiled: ClassVar[tuple[str, ...]] = ("bias",)
    deepens: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias", "c")
    optional: ClassVar[tuple[str, ...]] = ("bias", "c")
    alpha: float = 1.0
    beta: float = 0.0
    activation: str = "identity"

    def __post_init__(self) -> None:
        epilogue.check(self.name, self.activation)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, weight = shapes["x"], shapes["weight"]
        rank(self.name, "x", x, 2, "(m, k)")
        if len(weight) != 3:
            rank(self.name, "weight", weight, 2, "(n, k) or (batch, n, k)")
        elif weight[0] < 1 or x[0] % weight[0]:
            raise ShapeError(f"matmul: the rows of x {x} are no multiple of weight's {weight[0]}")
        if x[1] != weight[-1]:
            raise ShapeError(
                f"matmul: x {x} and weight {weight} must agree in their last dimension"
            )
        n = weight[-2]
        result = (x[0], n)
        epilogue.check_addends(self.name, shapes, bias=(n,), c=result)
        return result

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x, weight = operands["x"], operands["weight"]
        weight = weight.swapaxes(-1, -2).astype(x.dtype, copy=False)
        if weight.ndim == 2:
            result = x @ weight
        else:
            matrices = x.reshape(len(weight), len(x) // len(weight), x.shape[1])
            result = (matrices @ weight).reshape(len(x), weight.shape[-1])
        return epilogue.gemm(result, operands, self.alpha, self.beta, self.activation)

    def flops(self, shapes: Shapes) -> int:
        m, n = self.shape_of(shapes)
        added = ("bias" in shapes) + 2 * ("c" in shapes) + (self.activation != "identity")
        return m * n * (2 * shapes["x"][1] + added)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        m, n = self.shape_of(shapes)
        batch = shapes["weight"][0] if self.stacks(shapes) else 1
        return {"m": m // batch, "n": n, "k": shapes["x"][1], "batch": batch}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        batched = bool(self.stacks(shapes))
        return {"ACTIVATION": epilogue.code(self.activation), "BATCHED": int(batched)}

    def stacks(self, shapes: Shapes) -> tuple[str, ...]:
        return ("weight",) if len(shapes["weight"]) == 3 else ()

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha, "beta": self.beta}

    def along(self, shapes: Shapes) -> tuple[str, ...]:
        if self.stacks(shapes):
            return ()
        return tuple(name for name in ("x", "c") if name in shapes)

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def of_depth(self, shapes: Shapes, depth: int, *, few: bool = False) -> Shapes:
        (m, k), (*batch, n, _) = shapes["x"], shapes["weight"]
        made = depth + (k - depth) % 4  # a whole quad or not, as before
        n_made = min(n, FEW + n % 4) if few else n
        found = {**shapes, "x": (m, made), "weight": (*batch, n_made, made)}
        return found | {k: (*shapes[k][:-1], n_made) for k in ("bias", "c") if k in shapes}

    def with_activation(self, function: str) -> Matmul:
        """The same with `function` applied to the result."""
        return replace(self, activation=function)

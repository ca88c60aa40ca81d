"""Matrix products, of one matrix and of stacks."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Matmul
from tests.gradients.case import Array, Case


def stacked(t: Any, x: Array, weight: Array) -> Any:
    """The same in PyTorch."""
    batch, n, k = weight.shape
    matrices = x.reshape(batch, -1, k) @ weight.transpose(1, 2)
    return matrices.reshape(-1, n)


def case(name: str, x: tuple[int, ...], weight: tuple[int, ...], **how: Any) -> Case:
    torch = stacked if len(weight) == 3 else lambda t, a, b: t.nn.functional.linear(a, b)
    return Case(f"matmul {name}", Matmul(), (x, weight), torch=torch, **how)


CASES = [
    case("one", (1, 1), (1, 1)),
    case("primes", (5, 3), (7, 3)),
    case("whole fours", (8, 12), (4, 12)),
    case("rows of fours", (3, 8), (5, 8)),
    case("row", (1, 7), (3, 7)),
    case("column", (7, 1), (129, 1)),
    case("few", (4, 31), (2, 31)),
    case("stack", (6, 7), (2, 4, 7)),
    case("stack of fours", (8, 4), (2, 8, 4)),
    case("stack of one", (3, 2), (1, 5, 2)),
    case("stack of rows", (5, 4), (5, 3, 4)),
    case("no rows", (0, 3), (4, 3)),
    case("nothing to sum", (2, 0), (3, 0)),
    case("layer", (64, 127), (129, 127), large=True),
    case("of a constant", (5, 6), (3, 6), fixed=(1,)),
    case("on a constant", (5, 6), (3, 6), fixed=(0,)),
]

"""Matrix products in two stages: partial sums (split-K), and their sums."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.graph.decompose.stage import Lowered, Stage
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.matmul import COLUMNS, ROWS, TRANSPOSED, Matmul, MatmulParts, MatmulSum

WIDEST = 4  # numbers of a vertex attribute


def by_parts(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Split each sum into PARTS that are computed in parallel, for products of few results."""
    return _lowered(op, shapes, parameters["PARTS"], ROWS, None)


def by_cronin(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Cronin 2018, sections 3.4 to 3.8: a part is what fits an attribute.

    That is as much as divides k evenly, at most four numbers, and one where A is transposed.
    A_TRANSPOSED, B_TRANSPOSED: whether the rows of x, those of the weights, lie down the columns
    of A, along the rows of B.
    """
    k = shapes["x"][1]
    width = next(w for w in range(WIDEST, 0, -1) if k % w == 0)
    if parameters["A_TRANSPOSED"]:
        name = "cronin_atbt" if parameters["B_TRANSPOSED"] else "cronin_atb"
        return _lowered(op, shapes, k, TRANSPOSED, name)
    narrow = "" if width == WIDEST else "_narrow"
    name = f"cronin_abt{narrow}" if parameters["B_TRANSPOSED"] else "cronin_ab"
    return _lowered(op, shapes, k // width, COLUMNS, name)


def _lowered(op: Operator, shapes: Shapes, parts: int, order: str, kernel: str | None) -> Lowered:
    assert isinstance(op, Matmul)
    return Lowered(
        (
            Stage("parts", MatmulParts(parts, order), {"x": "x", "weight": "weight"}, kernel),
            Stage("sum", MatmulSum(parts, order), {"x": "parts"}, finishes=True),
        )
    )

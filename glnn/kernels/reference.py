"""What a problem is to whoever has no kernel for it: its results' types and numbers, its cost."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Cost, Operator
from glnn.types import Array, DType, TensorType, as_float, widened


def results_of(
    op: Operator, operands: Mapping[str, TensorType], rounded: bool = False
) -> tuple[TensorType, ...]:
    """The types in which the results of `op` are stored. rounded: the first is float16."""
    made = op.results({name: widened(one) for name, one in operands.items()})
    first, *rest = map(widened, made)
    return (TensorType(first.dims, DType.float16) if rounded else first, *rest)


def computed(
    op: Operator, operands: Mapping[str, Array], epilogue: Epilogue | None
) -> tuple[Array, ...]:
    """All results of `op` by NumPy, `epilogue` after the first, whose operands are there, too."""
    floats = {name: as_float(array) for name, array in operands.items()}
    extra = [floats.pop(name) for name in epilogue.names] if epilogue else []

    def finish(first: Array) -> Array:
        fresh = first.flags.owndata and all(first is not array for array in floats.values())
        return epilogue.evaluate(first, *extra, in_place=fresh) if epilogue else first

    with np.errstate(all="ignore"):  # what overflows or is not defined is inf or NaN
        return tuple(map(as_float, op.concluded(finish, *op.positional(floats))))


def cost_of(
    op: Operator, operands: Mapping[str, TensorType], result: TensorType, epilogue: Epilogue | None
) -> Cost:
    """What one run needs at the least, the functions of `epilogue` and its operands counted."""
    names, count = epilogue.names if epilogue else (), prod(result.shape)
    cost = op.cost_of({name: one for name, one in operands.items() if name not in names})
    beside = [operands[name] for name in names]
    extra = sum(one.dtype.words(prod(one.shape)) for one in beside)
    saved = count - result.dtype.words(count)
    flops = epilogue.expr.flops * count if epilogue else 0
    return Cost(cost.flops + flops, cost.bytes + 4 * (extra - saved))

"""What a problem is to whoever has no kernel for it: its results' types and numbers, its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from glnn.graph.blockwise import compiled
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Cost, Operator
from glnn.types import ON_GPU, Array, DType, TensorType, as_float, widened

PLAIN = frozenset((*(ON_GPU - {DType.float16}), DType.int64, DType.float64))
"""Types of operands that are given as they are said to be."""


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


def prepared(
    op: Operator,
    operands: Mapping[str, TensorType],
    result: TensorType,
    epilogue: Epilogue | None,
) -> Callable[[Sequence[Array]], Array]:
    """Return what computes the first result of `op` as `computed` does, its epilogue's too.

    operands: the types of the arrays that it is given, in the order in which it is given them.
    result: the type of what it gives. What follows from types alone is found here. It is called
    within `np.errstate`, by one thread at a time; it does not write to a result again.
    """
    names, extra = tuple(operands), epilogue.names if epilogue else ()
    types = {name: widened(one) for name, one in operands.items()}
    own = {name: one for name, one in types.items() if name not in extra}
    plain = all(one.dtype in PLAIN for one in operands.values())
    finish: Callable[..., Array] | None = None
    if plain and epilogue is not None:
        finish = _finish(epilogue, widened(result), [types[name] for name in extra])
        plain = finish is not None
    if not plain or type(op).concluded is not Operator.concluded:
        return lambda arrays: computed(op, dict(zip(names, arrays, strict=True)), epilogue)[0]
    compute = op.specialized(op.positional(own))
    order = op.positional({name: names.index(name) for name in own})
    beside = [names.index(name) for name in extra]
    if order == list(range(len(names))) and finish is None:
        return lambda arrays: as_float(compute(*arrays)[0])

    def perform(arrays: Sequence[Array]) -> Array:
        found = compute(*[None if place is None else arrays[place] for place in order])[0]
        if finish is not None:
            found = finish(found, *[arrays[place] for place in beside])
        return as_float(found)

    return perform


def _finish(
    epilogue: Epilogue, result: TensorType, extra: Sequence[TensorType]
) -> Callable[..., Array] | None:
    """Return what `epilogue` does to a result of that type beside operands of the types `extra`.

    None for a result of many numbers, which is better changed in its place.
    """
    shape, dtype = result.shape, result.dtype.numpy
    dtypes = [dtype, *(one.dtype.numpy for one in extra)]
    value = compiled(epilogue.expr, dtypes, shape, dtype)
    channel = (-1, *(1,) * (len(shape) - 2))
    turned = [i for i, extent in enumerate(epilogue.extents) if extent == "channel"]
    if value is None or len(shape) == 2 or not turned:
        return value

    def finish(first: Array, *operands: Array) -> Array:
        given = list(operands)
        for i in turned:
            given[i] = given[i].reshape(channel)
        return value(first, *given)

    return finish


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

"""What a problem is to whoever has no kernel for it: its results' types and numbers, its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from glnn.graph.blockwise import NUMBERS, compiled
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


Compute = Callable[[Sequence[Array]], Array]


class Preparation:
    """How the first result of `op` is computed as `computed` does, its epilogue's too.

    operands: the types of the arrays that are given, in the order in which they are given. result:
    the type of the first result. What follows from these but for their sizes is found here, once.
    """

    def __init__(
        self,
        op: Operator,
        operands: Mapping[str, TensorType],
        result: TensorType,
        epilogue: Epilogue | None,
    ) -> None:
        self._names, extra = tuple(operands), epilogue.names if epilogue else ()
        types = {name: widened(one) for name, one in operands.items()}
        own = {name: one for name, one in types.items() if name not in extra}
        self._plain = (
            all(one.dtype in PLAIN for one in operands.values())
            and type(op).concluded is Operator.concluded
        )
        self.any_sizes = (
            not self._plain or op.any_sizes or type(op).specialized is Operator.specialized
        )
        """Whether it is the same for operands of other sizes."""
        self.types: tuple[TensorType | None, ...] = tuple(op.positional(own))
        """Of the operator's own operands."""
        self._order = op.positional({name: self._names.index(name) for name in own})
        self._beside = [self._names.index(name) for name in extra]
        self._result, self._extra = widened(result), [types[name] for name in extra]
        self._epilogue, self._finish = epilogue, self._finished(epilogue)

    def _finished(self, epilogue: Epilogue | None) -> Callable[..., Array] | None:
        if epilogue is None or not self._plain:
            return None
        return _finish(epilogue, self._result, self._extra)

    def __call__(
        self, op: Operator, types: Sequence[TensorType | None], epilogue: Epilogue | None
    ) -> Compute:
        """Return what computes it with the sizes of an operator like `op` and of such `types`.

        It is called within `np.errstate`, by one thread at a time, and does not write to a result
        again.
        """
        names, order, beside = self._names, self._order, self._beside
        finish = self._finish if epilogue is self._epilogue else self._finished(epilogue)
        if not self._plain:
            return lambda arrays: computed(op, dict(zip(names, arrays, strict=True)), epilogue)[0]
        compute = op.specialized(types)
        if finish is None:
            if order == [*range(len(names))]:
                return lambda arrays: as_float(compute(*arrays)[0])
            return lambda arrays: as_float(
                compute(*[None if place is None else arrays[place] for place in order])[0]
            )

        def perform(arrays: Sequence[Array]) -> Array:
            given = [None if place is None else arrays[place] for place in order]
            first = compute(*given)[0]
            return as_float(finish(first, given, *[arrays[place] for place in beside]))

        return perform


def _finish(
    epilogue: Epilogue, result: TensorType, extra: Sequence[TensorType]
) -> Callable[..., Array]:
    """Return what `epilogue` does to a result of that type beside operands of the types `extra`.

    It is given these behind the operator's own, which it does not write to.
    """
    dtype, rank = result.dtype.numpy, len(result.dims)
    dtypes = [dtype, *(one.dtype.numpy for one in extra)]
    value = compiled(epilogue.expr, dtypes, dtype)
    channel = (-1, *(1,) * (rank - 2))
    turned = [i for i, extent in enumerate(epilogue.extents) if extent == "channel"]
    if rank == 2:
        turned = []

    def finish(first: Array, own: Sequence[Array | None], *operands: Array) -> Array:
        if first.size > NUMBERS:  # which are better changed in their place
            fresh = first.flags.owndata and all(first is not array for array in own)
            return epilogue.evaluate(first, *operands, in_place=fresh)
        given = list(operands)
        for i in turned:
            given[i] = given[i].reshape(channel)
        return value(first.shape, first, *given)

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

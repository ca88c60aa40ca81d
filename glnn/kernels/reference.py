"""NumPy reference of a spec: its results' types and values, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from glnn.core.types import ON_GPU, Array, DType, TensorType, as_float, widened
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression_evaluation import MANY_PIXELS, compile_expression
from glnn.graph.operator import Cost, Operator

PLAIN = frozenset((*(ON_GPU - {DType.float16}), DType.int64, DType.float64))
"""Types of operands whose arrays need no conversion before NumPy computes with them."""


def results_of(
    op: Operator, operands: Mapping[str, TensorType], rounded: bool = False
) -> tuple[TensorType, ...]:
    """Return the types in which the results of `op` are stored. rounded: the first is float16."""
    made = op.results({name: widened(one) for name, one in operands.items()})
    first, *rest = map(widened, made)
    return (TensorType(first.dims, DType.float16) if rounded else first, *rest)


def computed(
    op: Operator, operands: Mapping[str, Array], epilogue: Epilogue | None
) -> tuple[Array, ...]:
    """Compute all results of `op` by NumPy, with `epilogue` applied to the first.

    operands: arrays of the operator and of the epilogue, by name.
    """
    floats = {name: as_float(array) for name, array in operands.items()}
    extra = [floats.pop(name) for name in epilogue.names] if epilogue else []

    def finish(first: Array) -> Array:
        fresh = first.flags.owndata and all(first is not array for array in floats.values())
        return epilogue.evaluate(first, *extra, in_place=fresh) if epilogue else first

    with np.errstate(all="ignore"):  # what overflows or is not defined is inf or NaN
        return tuple(map(as_float, op.reference_with_epilogue(finish, *op.positional(floats))))


Compute = Callable[[Sequence[Array]], Array]


class Preparation:
    """Reusable NumPy computation of the first result of `op`, its epilogue included.

    operands: the types of the arrays, in the order in which they will be passed. result: the type
    of the first result. Everything that does not depend on sizes is derived here, once.
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
        op_types = {name: type for name, type in types.items() if name not in extra}
        self._plain = (
            all(one.dtype in PLAIN for one in operands.values())
            and type(op).reference_with_epilogue is Operator.reference_with_epilogue
        )
        self.any_sizes = (
            not self._plain or op.any_sizes or type(op).specialize is Operator.specialize
        )
        """True where one computation serves operands of any sizes."""
        self.types: tuple[TensorType | None, ...] = tuple(op.positional(op_types))
        """The types of the operator's own operands, in positional order; None for one absent."""
        self._order = op.positional({name: self._names.index(name) for name in op_types})
        self._epilogue_order = [self._names.index(name) for name in extra]
        self._result, self._extra = widened(result), [types[name] for name in extra]
        self._epilogue, self._finish = epilogue, self._finished(epilogue)

    def _finished(self, epilogue: Epilogue | None) -> Callable[..., Array] | None:
        if epilogue is None or not self._plain:
            return None
        return _finish(epilogue, self._result, self._extra)

    def __call__(
        self, op: Operator, types: Sequence[TensorType | None], epilogue: Epilogue | None
    ) -> Compute:
        """Return the function that computes the result with the sizes of `op` and `types`.

        The function must be called within `np.errstate` and by one thread at a time. It never
        writes to a result that it has returned.
        """
        names, order, epilogue_order = self._names, self._order, self._epilogue_order
        finish = self._finish if epilogue is self._epilogue else self._finished(epilogue)
        if not self._plain:
            return lambda arrays: computed(op, dict(zip(names, arrays, strict=True)), epilogue)[0]
        if (biased := self._with_bias(op, types, epilogue)) is not None:
            return biased
        compute = op.specialize(types)
        if finish is None:
            if order == [*range(len(names))]:
                return lambda arrays: as_float(compute(*arrays)[0])
            return lambda arrays: as_float(
                compute(*[None if place is None else arrays[place] for place in order])[0]
            )

        count = len(order)
        if order == [*range(count)] and epilogue_order == [*range(count, len(names))]:

            def perform_in_order(arrays: Sequence[Array]) -> Array:
                operands = arrays[:count]
                return as_float(finish(compute(*operands)[0], operands, arrays[count:]))

            return perform_in_order

        def perform(arrays: Sequence[Array]) -> Array:
            operands = [None if place is None else arrays[place] for place in order]
            first = compute(*operands)[0]
            return as_float(finish(first, operands, [arrays[place] for place in epilogue_order]))

        return perform

    def _with_bias(
        self, op: Operator, types: Sequence[TensorType | None], epilogue: Epilogue | None
    ) -> Compute | None:
        """Return `__call__`'s function where `op` adds the epilogue's bias; None where not."""
        split = None if epilogue is None else epilogue.split_bias()
        compute = None if split is None else op.specialize_with_bias(types)
        if split is None or compute is None:
            return None
        number, rest = split
        order, bias, epilogue_order = (
            self._order,
            self._epilogue_order[number],
            self._epilogue_order.copy(),
        )
        extra = self._extra.copy()
        del epilogue_order[number], extra[number]
        finish = None if rest is None else _finish(rest, self._result, extra)

        def perform(arrays: Sequence[Array]) -> Array:
            operands = [None if place is None else arrays[place] for place in order]
            first = compute(arrays[bias], *operands)[0]
            if finish is not None:
                first = finish(first, operands, [arrays[place] for place in epilogue_order])
            return as_float(first)

        return perform


def _owns_memory(array: Array, operands: Sequence[Array | None]) -> bool:
    """Return True where `array`, an operator's result, covers its memory and shares it with no
    operand.
    """
    owner = array if array.base is None else array.base
    if not isinstance(owner, np.ndarray) or not owner.flags.owndata or owner.size != array.size:
        return False
    return all(one is not owner and (one is None or one.base is not owner) for one in operands)


def _finish(
    epilogue: Epilogue, result: TensorType, extra: Sequence[TensorType]
) -> Callable[..., Array]:
    """Return the function that applies `epilogue` to a result, with operands of the types `extra`.

    The function takes the result, the operator's own operands, which it does not write to, and the
    epilogue's operands.
    """
    dtype, rank = result.dtype.numpy, len(result.dims)
    dtypes = [dtype, *(one.dtype.numpy for one in extra)]
    value = compile_expression(epilogue.expr, dtypes, dtype)
    channel = (-1, *(1,) * (rank - 2))
    by_channel = [i for i, extent in enumerate(epilogue.extents) if extent == "channel"]
    if rank == 2:
        by_channel = []

    def finish(
        first: Array, operands_before: Sequence[Array | None], operands: Sequence[Array]
    ) -> Array:
        arguments = list(operands)
        for i in by_channel:
            arguments[i] = arguments[i].reshape(channel)
        if first.size <= MANY_PIXELS:  # a new array
            return value(first.shape, first, *arguments)
        ours = first.dtype == dtype and _owns_memory(first, operands_before)
        return value(first.shape, first, *arguments, out=first if ours else None)

    return finish


def cost_of(
    op: Operator, operands: Mapping[str, TensorType], result: TensorType, epilogue: Epilogue | None
) -> Cost:
    """Return the least operations and bytes of one run, including the epilogue and its operands."""
    names, count = epilogue.names if epilogue else (), prod(result.shape)
    cost = op.cost_of({name: one for name, one in operands.items() if name not in names})
    extra_types = [operands[name] for name in names]
    extra = sum(one.dtype.words(prod(one.shape)) for one in extra_types)
    saved = count - result.dtype.words(count)
    flops = sum(expr.flops for expr in epilogue.exprs) * count if epilogue else 0
    extra += len(epilogue.updates) * count if epilogue else 0
    return Cost(cost.flops + flops, cost.bytes + 4 * (extra - saved))

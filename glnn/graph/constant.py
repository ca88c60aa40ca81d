"""Values that no run changes, as what they are made of: what a session's weights are known by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.symint import Substitution, hint
from glnn.core.types import Array, DType, TensorType
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import parts_of
from glnn.graph.graph import Graph, Kind, Value, check_result_memory
from glnn.graph.operator import Operator


@dataclass(frozen=True)
class Leaf:
    """A constant or a variable of a graph, by itself."""

    value: Value

    def read(self) -> Array:
        """Return the array as it is now."""
        if self.value.kind is Kind.VARIABLE:
            return self.value.data.read()  # type: ignore[union-attr]
        array: Array = self.value.data  # type: ignore[assignment]
        dtype = self.value.type.dtype
        if array.dtype == object and dtype is not DType.object:
            return array.astype(dtype.numpy)  # integers, of which some were symbols
        return array


@dataclass(frozen=True, eq=False)
class OperatorResult:
    """Result number `index` of an operator applied to constants."""

    operator: Operator
    operands: tuple[ConstantExpression | None, ...]
    epilogue: Epilogue | None
    extras: tuple[ConstantExpression, ...]
    index: int
    node: str = ""
    """The name of the node that applies it, for errors."""
    types: tuple[TensorType, ...] = ()
    """Types of all results of the operator, where they are known."""

    @property
    def parts(self) -> tuple[tuple[ConstantExpression, tuple[int, ...]], ...]:
        """All parts of the constant, each with the places of those that it reads, itself last."""
        before, at = self._before
        return (*before, (self, at))

    @cached_property
    def _before(
        self,
    ) -> tuple[tuple[tuple[ConstantExpression, tuple[int, ...]], ...], tuple[int, ...]]:
        """The parts but itself, which would be a circle, and the places that it reads."""
        expression: ConstantExpression = self
        *before, (_, at) = parts_of(expression, _reads, without_operands)
        return tuple(before), at

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple((without_operands(part), at) for part, at in self.parts)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, OperatorResult) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash


ConstantExpression = Leaf | OperatorResult
"""Two are equal where they are made in one way of the same constants and variables."""


def without_operands(part: ConstantExpression) -> Any:
    """Return the description of `part` without its operands."""
    if isinstance(part, Leaf):
        return part
    there = tuple(operand is not None for operand in part.operands)
    return part.operator, part.epilogue, part.index, there


def _reads(part: ConstantExpression) -> tuple[ConstantExpression, ...]:
    """Return the operands of `part`, and its epilogue's, that are not left out."""
    if isinstance(part, Leaf):
        return ()
    return (*(one for one in part.operands if one is not None), *part.extras)


def constant(
    graph: Graph, value: Value, expressions: dict[Value, ConstantExpression]
) -> ConstantExpression:
    """Return the constant expression of `value`, which no run changes. expressions: expressions
    found before; new ones are added to it.
    """
    stack = [value]
    while stack:
        one = stack[-1]
        node = graph.producers.get(one)
        if node is not None and (waiting := [v for v in node.reads if v not in expressions]):
            stack += waiting
            continue
        stack.pop()
        if one in expressions:
            continue
        if node is None:
            expressions[one] = Leaf(one)
            continue
        expressions[one] = OperatorResult(
            node.operator,
            tuple(None if v is None else expressions[v] for v in node.inputs),
            node.epilogue,
            tuple(expressions[v] for v in node.extras),
            node.outputs.index(one),
            node.name,
            tuple(output.type for output in node.outputs),
        )
    return expressions[value]


def leaves(expression: ConstantExpression) -> tuple[Leaf, ...]:
    """The constants and variables that it is made of."""
    if isinstance(expression, Leaf):
        return (expression,)
    return tuple(part for part, _ in expression.parts if isinstance(part, Leaf))


def constant_value(graph: Graph, value: Value) -> Array | None:
    """The numbers of a value that neither a run nor an assignment changes; None for any other."""
    if value.kind is not Kind.CONSTANT and value not in graph.fixed:
        return None
    expression = constant(graph, value, {})
    variable = any(leaf.value.kind is Kind.VARIABLE for leaf in leaves(expression))
    return None if variable else evaluated(expression)


def depends_on_sizes(expression: ConstantExpression) -> bool:
    """Return True where a part of it is another one for other sizes."""
    change = Substitution(hint)
    parts = expression.parts if isinstance(expression, OperatorResult) else ((expression, ()),)
    return any(
        change(part_alone) is not part_alone
        for part_alone in (without_operands(part) for part, _ in parts)
    )


def evaluated(expression: ConstantExpression, dtype: DType = DType.float32) -> Array:
    """Return the array of a constant: floats are computed in 64 bits and rounded once, to `dtype`
    if it is of floats.

    Raises LimitError, before a part is computed, where the host has too little memory for it.
    """
    if isinstance(expression, Leaf):
        return expression.read()
    arrays: dict[int, Array] = {}
    narrow: set[int] = set()  # places of float32 that was only moved, which 64 bits would be but
    last = {place: i for i, (_, at) in enumerate(expression.parts) for place in at}  # more work for
    for i, (part, at) in enumerate(expression.parts):
        if isinstance(part, Leaf):
            array = part.read()
            if array.dtype == np.float32:
                narrow.add(i)
            else:
                array = computed(part, at, arrays)
        elif part.operator.moves and part.epilogue is None and at and at[0] in narrow:
            array = _move_arrays(part, [arrays[place] for place in at])
            narrow.add(i)
        else:
            for place in narrow.intersection(at):
                arrays[place] = arrays[place].astype(np.float64, order="C")
            narrow.difference_update(at)
            array = computed(part, at, arrays)
        arrays[i] = array
        for place in {place for place in at if last[place] == i}:
            del arrays[place]
    last_array = arrays[len(expression.parts) - 1]
    return last_array if len(expression.parts) - 1 in narrow else _round_to(last_array, dtype)


def _move_arrays(part: OperatorResult, operands: Sequence[Array]) -> Array:
    """Apply an operator that only moves numbers to arrays, in any order of memory."""
    read = iter(operands)
    check_result_memory(part.node, part.operator, part.types)
    return part.operator.reference_views(
        *(None if one is None else next(read) for one in part.operands)
    )[part.index]


def computed(
    part: ConstantExpression, at: Sequence[int], arrays: Mapping[int, Array] | Sequence[Array]
) -> Array:
    """The array of a part of a constant, from those at the places that it reads."""
    if isinstance(part, Leaf):
        array = part.read()
        return array.astype(np.float64) if DType.from_array(array).kind == "float" else array
    read = iter(at)
    operands = [None if one is None else arrays[next(read)] for one in part.operands]
    check_result_memory(part.node, part.operator, part.types, wide=True)
    result = part.operator.reference(*operands)[part.index]
    if part.epilogue is not None and part.index == 0:
        result = part.epilogue.evaluate(result, *(arrays[place] for place in read))
    return result.astype(np.float64) if result.dtype == np.float16 else result


def _round_to(array: Array, dtype: DType) -> Array:
    """A computed array as `dtype`, if that and it are of floats."""
    result = np.asarray(array)
    if result.dtype != np.float64:
        return result
    return result.astype(dtype.numpy if dtype.kind == "float" else np.float32)


def substitute_sizes(part: ConstantExpression, change: Substitution) -> ConstantExpression:
    """A part for the sizes that `change` puts in, of the operands that it had."""
    if isinstance(part, Leaf):
        return change(part)
    operator, types = change(part.operator), change(part.types)
    epilogue = change(part.epilogue)
    return OperatorResult(
        operator, part.operands, epilogue, part.extras, part.index, part.node, types
    )

"""Expressions of the values that no run changes: the keys of a session's weights."""

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
        """All parts of the expression in order, each with the indices of its operands among them;
        the expression itself is the last part.
        """
        parts, operands = self._other_parts
        return (*parts, (self, operands))

    @cached_property
    def _other_parts(
        self,
    ) -> tuple[tuple[tuple[ConstantExpression, tuple[int, ...]], ...], tuple[int, ...]]:
        """The parts without the expression itself, which would be a reference cycle, and the
        indices of its operands.
        """
        expression: ConstantExpression = self
        *parts, (_, operands) = parts_of(expression, _reads, without_operands)
        return tuple(parts), operands

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple((without_operands(part), operands) for part, operands in self.parts)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, OperatorResult) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash


ConstantExpression = Leaf | OperatorResult
"""Two are equal where they apply the same operators to the same constants and variables."""


def without_operands(part: ConstantExpression) -> Any:
    """Return the description of `part` without its operands."""
    if isinstance(part, Leaf):
        return part
    present = tuple(operand is not None for operand in part.operands)
    return part.operator, part.epilogue, part.index, present


def _reads(part: ConstantExpression) -> tuple[ConstantExpression, ...]:
    """Return the operands of `part` and of its epilogue, without those that are None."""
    if isinstance(part, Leaf):
        return ()
    return (*(one for one in part.operands if one is not None), *part.extras)


def constant(
    graph: Graph, value: Value, expressions: dict[Value, ConstantExpression]
) -> ConstantExpression:
    """Return the expression of `value`, which no run changes.

    expressions: a cache by value; new expressions are added.
    """
    stack = [value]
    while stack:
        top = stack[-1]
        node = graph.producers.get(top)
        if node is not None and (missing := [v for v in node.reads if v not in expressions]):
            stack += missing
            continue
        stack.pop()
        if top in expressions:
            continue
        if node is None:
            expressions[top] = Leaf(top)
            continue
        expressions[top] = OperatorResult(
            node.operator,
            tuple(None if v is None else expressions[v] for v in node.inputs),
            node.epilogue,
            tuple(expressions[v] for v in node.extras),
            node.outputs.index(top),
            node.name,
            tuple(output.type for output in node.outputs),
        )
    return expressions[value]


def leaves(expression: ConstantExpression) -> tuple[Leaf, ...]:
    """Return the constants and variables of `expression`."""
    if isinstance(expression, Leaf):
        return (expression,)
    return tuple(part for part, _ in expression.parts if isinstance(part, Leaf))


def constant_value(graph: Graph, value: Value) -> Array | None:
    """Return the array of a value that neither a run nor an assignment changes; None for others."""
    if value.kind is not Kind.CONSTANT and value not in graph.fixed:
        return None
    expression = constant(graph, value, {})
    variable = any(leaf.value.kind is Kind.VARIABLE for leaf in leaves(expression))
    return None if variable else evaluated(expression)


def depends_on_sizes(expression: ConstantExpression) -> bool:
    """Return True where a part of `expression` has open sizes."""
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
    narrow: set[int] = set()  # parts that only move float32: 64 bits would not change these
    last_use = {o: i for i, (_, operands) in enumerate(expression.parts) for o in operands}
    for i, (part, operands) in enumerate(expression.parts):
        if isinstance(part, Leaf):
            array = part.read()
            if array.dtype == np.float32:
                narrow.add(i)
            else:
                array = computed(part, operands, arrays)
        elif part.operator.moves and part.epilogue is None and operands and operands[0] in narrow:
            array = _move_arrays(part, [arrays[o] for o in operands])
            narrow.add(i)
        else:
            for o in narrow.intersection(operands):
                arrays[o] = arrays[o].astype(np.float64, order="C")
            narrow.difference_update(operands)
            array = computed(part, operands, arrays)
        arrays[i] = array
        for o in {o for o in operands if last_use[o] == i}:
            del arrays[o]
    last_array = arrays[len(expression.parts) - 1]
    return last_array if len(expression.parts) - 1 in narrow else _round_to(last_array, dtype)


def _move_arrays(part: OperatorResult, operands: Sequence[Array]) -> Array:
    """Apply an operator that only moves numbers; the result may be a view of any strides."""
    arrays = iter(operands)
    check_result_memory(part.node, part.operator, part.types)
    return part.operator.reference_views(
        *(None if one is None else next(arrays) for one in part.operands)
    )[part.index]


def computed(
    part: ConstantExpression, indices: Sequence[int], arrays: Mapping[int, Array] | Sequence[Array]
) -> Array:
    """Return the array of a part of a constant. indices: of its operands among `arrays`."""
    if isinstance(part, Leaf):
        array = part.read()
        return array.astype(np.float64) if DType.from_array(array).kind == "float" else array
    remaining = iter(indices)
    operands = [None if one is None else arrays[next(remaining)] for one in part.operands]
    check_result_memory(part.node, part.operator, part.types, wide=True)
    result = part.operator.reference(*operands)[part.index]
    if part.epilogue is not None and part.index == 0:
        result = part.epilogue.evaluate(result, *(arrays[i] for i in remaining))
    return result.astype(np.float64) if result.dtype == np.float16 else result


def _round_to(array: Array, dtype: DType) -> Array:
    """Return a computed array; float64 as `dtype` if that is of floats, else as float32."""
    result = np.asarray(array)
    if result.dtype != np.float64:
        return result
    return result.astype(dtype.numpy if dtype.kind == "float" else np.float32)


def substitute_sizes(part: ConstantExpression, change: Substitution) -> ConstantExpression:
    """Return `part` with sizes substituted by `change`, except in its operands."""
    if isinstance(part, Leaf):
        return change(part)
    operator, types = change(part.operator), change(part.types)
    epilogue = change(part.epilogue)
    return OperatorResult(
        operator, part.operands, epilogue, part.extras, part.index, part.node, types
    )

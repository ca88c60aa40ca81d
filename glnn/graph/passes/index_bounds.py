"""Bounds of inputs that are indices: the sizes of the tables that they index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glnn.core.types import DType, Shape
from glnn.graph.expression import Arg, Call
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators.gather import Lookup
from glnn.graph.operators.move import Expand, Transpose
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.scatter import Scatter
from glnn.graph.operators.views import Identity, View

TO_INTEGER = ("cast_int32", "cast_int64")
CASTABLE = frozenset(
    {
        *(DType.int8, DType.uint8, DType.int32, DType.int64),
        *(DType.float16, DType.float32, DType.float64),
    }
)


def find_index_bounds(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
    """Return the exclusive upper bounds of inputs that are indices, by the inputs' names.

    shapes: of all inputs. A single bound is for all numbers of an input; several are for the
    positions along its last dimension, where that holds tuples of indices. Indices are traced to
    inputs by `trace_indices`, not out of the bodies of branches and loops, which may never run.
    """
    pairs: list[tuple[Lookup | Scatter, Value, Value, IndexSource]] = []
    for node in graph.nodes:
        if isinstance(node.operator, (Lookup, Scatter)):
            table, index = node.inputs[:2]
            assert table is not None and index is not None
            source = trace_indices(graph, index)
            if source.value.kind is Kind.INPUT and source.value.name in shapes:
                pairs.append((node.operator, table, index, source))
    types = {value: value.type for _, table, index, *_ in pairs for value in (table, index)}
    if any(type.symbols for type in types.values()):
        types = graph.infer_types(graph.input_types(shapes))
    result: dict[str, tuple[int, ...]] = {}
    for operator, table, index, source in pairs:
        name = source.value.name
        bounds = operator.bounds(types[table])
        sizes = tuple(n for n in bounds if not isinstance(n, str))
        if len(sizes) > 1:
            sizes = sizes[: types[index].shape[-1]]
        if len(sizes) < min(len(bounds), 1) or 0 in (*types[index].shape, *sizes):
            continue
        is_same_size = source.is_same_shape or shapes[name][-1:] == types[index].shape[-1:]
        if len(sizes) > 1 and not (is_same_size and source.is_in_order):
            sizes = (max(sizes),)
        result[name] = _minimum(result.get(name, sizes), sizes)
    return result


@dataclass(frozen=True)
class IndexSource:
    """The value that the numbers of an index come from, and their arrangement in it."""

    value: Value
    is_same_shape: bool
    """True where the index has the same shape."""
    is_in_order: bool
    """True where the index has the numbers in the same order."""


def trace_indices(graph: Graph, value: Value) -> IndexSource:
    """Return the source of the numbers of the index `value`.

    Views, Transpose, Expand and casts to integers are traced back to their operands.
    """
    is_same_shape = is_in_order = True
    while (node := graph.producers.get(value)) is not None and _preserves_numbers(node):
        if isinstance(node.operator, (View, Transpose, Expand)):
            is_same_shape = False
        if isinstance(node.operator, Transpose):
            is_in_order = False
        (value,) = (operand for operand in node.inputs if operand is not None)
    return IndexSource(value, is_same_shape, is_in_order)


def _preserves_numbers(node: Node) -> bool:
    """Return True where the result consists of all numbers of the only operand, as integers."""
    operands = [value for value in node.inputs if value is not None]
    if len(operands) != 1 or node.epilogue is not None:
        return False
    if isinstance(node.operator, (Identity, View, Transpose, Expand)):
        return True
    casts = isinstance(node.operator, Pointwise) and (
        isinstance(expr := node.operator.expr, Call)
        and expr.function in TO_INTEGER
        and expr.arguments == (Arg(0),)
    )
    return casts and operands[0].type.dtype in CASTABLE


def _minimum(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lesser of both bounds at each position; a single bound is for all of them."""
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        return first  # tuples of another length come from a view: either's bounds are valid
    count = max(len(first), len(second))
    wide = ((bounds * count)[:count] for bounds in (first, second))
    return tuple(map(min, zip(*wide, strict=True)))

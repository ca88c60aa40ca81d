"""Inputs whose numbers are indices: the sizes of the tables that they point into."""

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
    """Return the sizes that indices given as inputs stay below, by the names of these inputs.

    shapes: of all inputs. One size is for all numbers of an input; several are for the places
    along its last dimension, which tuples of indices lie along. Inputs are followed through what
    keeps all their numbers (`trace_indices`), not into the bodies of branches and loops, which may
    never run.
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
        same = source.whole or shapes[name][-1:] == types[index].shape[-1:]
        if len(sizes) > 1 and not (same and source.ordered):
            sizes = (max(sizes),)
        result[name] = _minimum(result.get(name, sizes), sizes)
    return result


@dataclass(frozen=True)
class IndexSource:
    """The value that has all numbers of another, and how they lie there."""

    value: Value
    whole: bool
    """True where the other value has the same shape."""
    ordered: bool
    """True where the other value has the numbers in the same order."""


def trace_indices(graph: Graph, value: Value) -> IndexSource:
    """Return the source of the numbers of `value`, as integers.

    Views, Transpose, Expand and casts to integers are followed back to what they read.
    """
    whole = ordered = True
    while (node := graph.producers.get(value)) is not None and _preserves_numbers(node):
        whole = whole and not isinstance(node.operator, (View, Transpose, Expand))
        ordered = ordered and not isinstance(node.operator, Transpose)
        (first,) = (one for one in node.inputs if one is not None)
        value = first
    return IndexSource(value, whole, ordered)


def _preserves_numbers(node: Node) -> bool:
    """Return True where the result has all numbers of the only operand, and no others, as
    integers.
    """
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
    """The lesser of both sizes at each place."""
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        return first  # tuples of other lengths are views: what one says must do
    count = max(len(first), len(second))
    wide = ((one * count)[:count] for one in (first, second))
    return tuple(map(min, zip(*wide, strict=True)))

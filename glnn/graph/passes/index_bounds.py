"""Inputs whose numbers are indices: the sizes of the tables that they point into."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.graph.expression import Arg, Call
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operators.gather import Lookup
from glnn.graph.operators.identity import Identity
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reshape import View
from glnn.graph.operators.scatter import Scatter
from glnn.types import DType, Shape

TO_INTEGER = ("cast_int32", "cast_int64")


def index_bounds(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
    """Return the sizes that indices given as inputs stay below, by the names of these inputs.

    shapes: of all inputs. One size is for all numbers of an input; several are for the places
    along its last dimension, which tuples of indices lie along. Inputs are followed through views
    and casts between integers, not into the bodies of branches and loops, which may never run.
    """
    pairs: list[tuple[Lookup | Scatter, Value, Value, Value, bool]] = []
    for node in graph.nodes:
        if isinstance(node.operator, (Lookup, Scatter)):
            table, index = node.inputs[:2]
            assert table is not None and index is not None
            source, whole = source_of(graph, index)
            if source.kind is Kind.INPUT and source.name in shapes:
                pairs.append((node.operator, table, index, source, whole))
    types = {value: value.type for _, table, index, *_ in pairs for value in (table, index)}
    if any(type.symbols for type in types.values()):
        types = graph.bind({v.name: v.type.of_shape(shapes[v.name]) for v in graph.inputs})
    found: dict[str, tuple[int, ...]] = {}
    for operator, table, index, source, whole in pairs:
        bounds = operator.bounds(types[table])
        sizes = tuple(n for n in bounds if isinstance(n, int))
        if len(sizes) > 1:
            sizes = sizes[: types[index].shape[-1]]
        if len(sizes) < min(len(bounds), 1) or 0 in (*types[index].shape, *sizes):
            continue
        if not whole and len(sizes) > 1 and shapes[source.name][-1:] != types[index].shape[-1:]:
            sizes = (max(sizes),)
        found[source.name] = _least(found.get(source.name, sizes), sizes)
    return found


def source_of(graph: Graph, value: Value) -> tuple[Value, bool]:
    """Return the value whose numbers `value` has, and whether it has its shape, too.

    Views and casts between integers are followed back to what they read.
    """
    whole = True
    while (node := graph.producers.get(value)) is not None and _passes_on(node):
        whole = whole and not isinstance(node.operator, View)
        (first,) = (one for one in node.inputs if one is not None)
        value = first
    return value, whole


def _passes_on(node: Node) -> bool:
    """Whether the result has the numbers of the one operand, which are integers, in their order."""
    given = [value for value in node.inputs if value is not None]
    if len(given) != 1 or node.epilogue is not None:
        return False
    if isinstance(node.operator, (Identity, View)):
        return True
    casts = isinstance(node.operator, Pointwise) and (
        isinstance(expr := node.operator.expr, Call)
        and expr.function in TO_INTEGER
        and expr.arguments == (Arg(0),)
    )
    return casts and given[0].type.dtype in (DType.int32, DType.int64)


def _least(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The lesser of both sizes at each place."""
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        return first  # tuples of other lengths are views: what one says must do
    count = max(len(first), len(second))
    wide = ((one * count)[:count] for one in (first, second))
    return tuple(map(min, zip(*wide, strict=True)))

"""Numbers at random that a model takes: fractions, bytes, and ids of rows that there are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glnn.errors import GlnnError, ModelError
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Identity, Pointwise
from glnn.graph.operators.gather import Lookup
from glnn.graph.operators.move import Move
from glnn.graph.operators.reshape import View
from glnn.graph.passes import expanded
from glnn.model import Model, TensorInfo
from glnn.types import Array, DType, Shape

BYTES = (DType.uint8, DType.int8)


def random_feeds(
    model: Model, shapes: Mapping[str, Shape], names: tuple[str, ...]
) -> dict[str, Array]:
    """Arrays at random for the inputs called `names`; the same in every run.

    shapes: of all inputs. Floats are from 0 to 1, bytes any, bools either. Other integers are from
    0 to what the model looks up by them, so that an id is of any row of the table; where it looks
    up nothing, 0 and 1: lengths, masks and the like, of which nobody knows more. Raises ModelError
    for an input of texts, or that is no tensor.
    """
    wanted = [info for info in model.inputs if info.name in names]
    ids = [info.name for info in wanted if _whole(info.dtype)]
    ends = rows_of(model, shapes) if ids else {}
    generator = np.random.default_rng(0)
    return {i.name: _random(generator, i, shapes[i.name], ends.get(i.name)) for i in wanted}


def _whole(dtype: DType) -> bool:
    return dtype.numpy.kind in "iu"


def _random(
    generator: np.random.Generator, info: TensorInfo, shape: Shape, end: int | None
) -> Array:
    dtype = info.dtype
    if dtype is DType.object:
        what = info.holds or "texts"
        raise ModelError(f"input {info.name!r} is of {what}: there are none at random")
    if end is not None:
        return generator.integers(0, end, shape).astype(dtype.numpy)
    if dtype in BYTES:
        return generator.integers(*_range(dtype), shape, endpoint=True).astype(dtype.numpy)
    if _whole(dtype) or dtype.numpy.kind == "b":
        return generator.integers(0, 2, shape).astype(dtype.numpy)
    return generator.random(shape, np.float32).astype(dtype.numpy)


def _range(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def rows_of(model: Model, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The least number of rows, or other places, that an input is an index of, for each that is.

    Followed through what moves or casts numbers. None are known of a model whose sizes are told by
    numbers that this has not, nor within loops and branches.
    """
    types = model.graph.input_types(shapes)
    try:
        graph = expanded(model.graph, types)
    except GlnnError:  # which a run would say better
        return {}
    found: dict[str, int] = {}
    for value in graph.inputs:
        if ends := _ends(graph, value):
            found[value.name] = min(ends)
    return found


def _ends(graph: Graph, start: Value) -> list[int]:
    """How many places there are in what is looked up by `start`, and by what is made of it."""
    ends: list[int] = []
    seen, left = {start}, [start]
    while left:
        value = left.pop()
        for node in graph.readers.get(value, ()):
            if isinstance(node.operator, Lookup):
                ends += _places(node.operator, node, value)
            elif _keeps(node) and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                left.append(node.outputs[0])
    return [end for end in ends if end > 0]


def _places(operator: Lookup, node: Node, index: Value) -> list[int]:
    named = operator.named(node.inputs)
    x = named["x"]
    if named["index"] is not index or x is None:
        return []
    return [n for n in operator.bounds(x.type) if isinstance(n, int)]


def _keeps(node: Node) -> bool:
    """Whether the numbers of its result are those of its only operand."""
    operator = node.operator
    if isinstance(operator, Pointwise):  # a cast, or a correction of negative ones
        return len(node.inputs) == 1 and _whole(node.outputs[0].type.dtype)
    return isinstance(operator, (Identity, Move, View))

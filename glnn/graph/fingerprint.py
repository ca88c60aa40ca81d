"""Fingerprints of graphs: a short text that is equal for equal operators, types and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b

import numpy as np

from glnn.core.types import TensorType
from glnn.graph.expression import Expr
from glnn.graph.graph import FEW, Graph, Value

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(graph: Graph) -> str:
    """32 hexadecimal digits that tell `graph` from others, in every process the same.

    Weights count by their types: graphs that differ only in their numbers, or in names, have the
    same. Up to FEW integers of a constant count, too, since sizes may follow from them.
    """
    digest = blake2b(digest_size=16)
    for part in _graph(graph):
        digest.update(part.encode("utf-8", "backslashreplace"))
        digest.update(b"\0")
    return digest.hexdigest()


def _graph(graph: Graph) -> Iterator[str]:
    numbers: dict[Value, int] = {}
    for value in graph.inputs:
        yield from _value(value, numbers)
    for node in graph.nodes:
        yield type(node.operator).__name__
        yield from _parts(node.operator)
        yield from _parts(node.epilogue)
        for operand in (*node.inputs, *node.extras):
            if operand is None:
                yield "none"
            else:
                yield from _value(operand, numbers)
        yield "makes"
        for value in node.outputs:
            yield from _value(value, numbers)
    yield "gives"
    for value in graph.outputs:
        yield from _value(value, numbers)


def _value(value: Value, numbers: dict[Value, int]) -> Iterator[str]:
    """Yield the number of `value` and, when it is met for the first time, its description."""
    known = value in numbers
    yield f"value {numbers.setdefault(value, len(numbers))}"
    if not known:
        yield from _kind(value)


def _kind(value: Value) -> Iterator[str]:
    """Yield the kind, the type and the data of `value`, but not its name."""
    yield value.kind.value
    yield str(value.type)
    if isinstance(value.data, np.ndarray):
        yield from _parts(value.data)


def _parts(thing: object) -> Iterator[str]:
    """Yield the texts that tell an attribute of an operator from others."""
    if isinstance(thing, PLAIN):
        yield repr(thing)
    elif isinstance(thing, Graph):
        yield from _graph(thing)
    elif isinstance(thing, Value):
        yield from _kind(thing)
    elif isinstance(thing, Expr):
        yield thing.text()
    elif isinstance(thing, Enum | TensorType | np.dtype | type):
        yield str(thing)
    elif isinstance(thing, np.ndarray | np.generic):
        yield f"{thing.dtype}{thing.shape}"
        if thing.size <= FEW and thing.dtype.kind in "iub":
            yield str(thing.tolist())
    elif isinstance(thing, Mapping):
        for key in sorted(thing, key=str):
            yield str(key)
            yield from _parts(thing[key])
    elif isinstance(thing, tuple | list):
        yield f"{len(thing)} of"
        for one in thing:
            yield from _parts(one)
    else:
        yield type(thing).__qualname__  # of a function and the like its kind is all there is
        if is_dataclass(thing):
            for one in fields(thing):
                if one.repr and one.init:
                    yield from _parts(getattr(thing, one.name))

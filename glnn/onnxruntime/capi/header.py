"""The header of an .onnx file, read without the `onnx` package and without the weights.

Reference: "Encoding", Protocol Buffers documentation; the numbers of fields are onnx.proto's.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Dim = int | str | None
Bytes = bytes | mmap.mmap
VARINT, EIGHT, TEXT, FOUR = 0, 1, 2, 5
"""Wire types: a varint, 8 bytes, a length and as many bytes, 4 bytes."""
# Fields, as a message begins each: its number, and how it is written. Of a ModelProto,
PRODUCER, DOMAIN, DESCRIPTION, GRAPH, METADATA = (n << 3 | TEXT for n in (2, 4, 6, 7, 14))
VERSION = 5 << 3 | VARINT
# a GraphProto,
NAME, GRAPH_DESCRIPTION, INPUT, OUTPUT = (n << 3 | TEXT for n in (2, 10, 11, 12))
# a ValueInfoProto, its TypeProto, the Tensor of that, and its TensorShapeProto,
VALUE_NAME, VALUE_TYPE, TENSOR, SHAPE, DIM = (n << 3 | TEXT for n in (1, 2, 1, 2, 1))
# a dimension, and a pair of texts.
SIZE = 1 << 3 | VARINT
SYMBOL, DENOTATION, KEY, VALUE = (n << 3 | TEXT for n in (2, 3, 1, 2))


@dataclass(frozen=True)
class Header:
    """The metadata of a model, and its inputs' and outputs' shapes."""

    producer_name: str = ""
    domain: str = ""
    description: str = ""
    version: int = 2**63 - 1
    """The model's version; the largest where the file says none, as ONNX Runtime has it."""
    graph_name: str = ""
    graph_description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the file by key."""
    dims: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    """Dimensions of the graph's inputs and outputs that are tensors and say their shape."""
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Denotations of the inputs' dimensions, such as DATA_BATCH; empty where one has none."""
    graph: bool = True
    """True where there is a graph."""


def of_bytes(content: bytes) -> Header:
    """The header of `content`. Raises ValueError where it is no message of protobuf."""
    return _header(content)


def of_file(path: str) -> Header:
    """The header of the file. Raises ValueError where it is no message, OSError."""
    if not os.path.getsize(path):
        return _header(b"")
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _header(content)


def _header(data: Bytes) -> Header:
    texts: dict[int, str] = {}
    metadata: dict[str, str] = {}
    version, graph = Header.version, None
    for number, start, end, value in _fields(data, 0, len(data)):
        if number in (PRODUCER, DOMAIN, DESCRIPTION):
            texts[number] = _str(data, start, end)
        elif number == VERSION:
            version = value - 2**64 if value >= 2**63 else value
        elif number == METADATA:
            pair = {n: _str(data, s, e) for n, s, e, _ in _fields(data, start, end)}
            metadata[pair.get(KEY, "")] = pair.get(VALUE, "")
        elif number == GRAPH:
            graph = start, end
    name, description, dims, denotations = _graph(data, *(graph or (0, 0)))
    return Header(
        texts.get(PRODUCER, ""),
        texts.get(DOMAIN, ""),
        texts.get(DESCRIPTION, ""),
        version,
        name,
        description,
        metadata,
        dims,
        denotations,
        graph is not None,
    )


_Graph = tuple[str, str, dict[str, tuple[Dim, ...]], dict[str, tuple[str, ...]]]


def _graph(data: Bytes, start: int, end: int) -> _Graph:
    """The name and description of a graph, and of its inputs and outputs what is in a Header."""
    name = description = ""
    dims: dict[str, tuple[Dim, ...]] = {}
    denotations: dict[str, tuple[str, ...]] = {}
    for number, at, stop, _ in _fields(data, start, end):
        if number == NAME:
            name = _str(data, at, stop)
        elif number == GRAPH_DESCRIPTION:
            description = _str(data, at, stop)
        elif number in (INPUT, OUTPUT):
            value, found = _value(data, at, stop)
            if found is not None and value not in dims:
                dims[value] = tuple(dim for dim, _ in found)
                if number == INPUT:
                    denotations[value] = tuple(denotation for _, denotation in found)
    return name, description, dims, denotations


def _value(data: Bytes, start: int, end: int) -> tuple[str, list[tuple[Dim, str]] | None]:
    """The name of a value and its dimensions with their denotations; None where not said."""
    name, found = "", None
    for number, at, stop, _ in _fields(data, start, end):
        if number == VALUE_NAME:
            name = _str(data, at, stop)
        elif number == VALUE_TYPE:
            for kind, tensor, tensor_end, _ in _fields(data, at, stop):
                for part, shape, shape_end, _ in (
                    _fields(data, tensor, tensor_end) if kind == TENSOR else ()
                ):
                    if part == SHAPE:
                        dims = _fields(data, shape, shape_end)
                        found = [_dim(data, s, e) for n, s, e, _ in dims if n == DIM]
    return name, found


def _dim(data: Bytes, start: int, end: int) -> tuple[Dim, str]:
    """A dimension, None where it is unknown, and its denotation."""
    dim: Dim = None
    denotation = ""
    for number, at, stop, value in _fields(data, start, end):
        if number == SIZE:
            dim = value if value < 2**63 else None  # negative
        elif number == SYMBOL:
            dim = _str(data, at, stop) or None
        elif number == DENOTATION:
            denotation = _str(data, at, stop)
    return dim, denotation


def _fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message from `start` to `end`: how it begins, where its bytes begin and
    end, and what it is where it is a number. Raises ValueError where they are no fields.
    """
    while start < end:
        key, start = _varint(data, start, end)
        how = key & 7
        value, first = 0, start
        if how == VARINT:
            value, start = _varint(data, start, end)
        elif how == TEXT:
            size, first = _varint(data, start, end)
            start = first + size
        elif how in (EIGHT, FOUR):
            start += 8 if how == EIGHT else 4
        else:
            raise ValueError(f"a field cannot be written in way {how}")
        if start > end or key < 8:
            raise ValueError("the message ends within a field")
        yield key, first, start, value


def _varint(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """The number at `start`, and where it ends. Raises ValueError where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if start >= end:
            break
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), start
    raise ValueError("the message ends within a number")


def _str(data: Bytes, start: int, end: int) -> str:
    return data[start:end].decode(errors="replace")

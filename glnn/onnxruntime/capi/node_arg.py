"""A model's inputs, outputs and metadata: their types, and the header of an .onnx file.

The header is read without the `onnx` package and without the weights. Reference: "Encoding",
Protocol Buffers documentation; the numbers of fields are onnx.proto's.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from glnn.core.types import UNKNOWN, UNRANKED, DType
from glnn.errors import GlnnError, shown
from glnn.onnxruntime.capi.declarations import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile

NUMPY: dict[str, DType] = {
    "float": DType.float32,
    "uint8": DType.uint8,
    "int8": DType.int8,
    "uint16": DType.uint16,
    "int16": DType.int16,
    "int32": DType.int32,
    "int64": DType.int64,
    "string": DType.object,
    "bool": DType.bool,
    "float16": DType.float16,
    "double": DType.float64,
    "uint32": DType.uint32,
    "uint64": DType.uint64,
    "complex64": DType.complex64,
    "complex128": DType.complex128,
    "bfloat16": DType.bfloat16,
    "float8e4m3fn": DType.float8_e4m3fn,
    "float8e4m3fnuz": DType.float8_e4m3fnuz,
    "float8e5m2": DType.float8_e5m2,
    "float8e5m2fnuz": DType.float8_e5m2fnuz,
    "uint4": DType.uint4,
    "int4": DType.int4,
}
"""Dtypes by the names in `tensor(...)`, in the order of ONNX's numbers from 1 on."""
NUMBERS = {f"tensor({name})": number for number, name in enumerate(NUMPY, 1)}
"""ONNX's numbers of element types."""
_NAMES = {dtype.value: f"tensor({name})" for name, dtype in NUMPY.items()}


@lru_cache(maxsize=64)
def type_of(dtype: np.dtype[Any]) -> str:
    """Return a dtype as ONNX Runtime writes it, `tensor(float)`. Raises RuntimeError for others."""
    if dtype.kind in "UO":
        return "tensor(string)"
    name = _NAMES.get(dtype.name)
    if name is None or dtype.kind == "c":
        raise RuntimeError(f"Numpy_type {dtype.num} can't be converted to MLDataType.")
    return name


def dtype_of(type: object) -> np.dtype[Any]:
    """Return NumPy's dtype for a dtype, its name, a text as `tensor(float)` or ONNX's number.

    Raises RuntimeError for anything else.
    """
    try:
        if isinstance(type, int) and not isinstance(type, bool):
            return [*NUMPY.values()][range(1, 1 + len(NUMPY)).index(type)].numpy
        if isinstance(type, str) and type.startswith("tensor("):
            return NUMPY[type[7:-1]].numpy
        result: np.dtype[Any] = np.dtype(type)  # type: ignore[call-overload]
    except (GlnnError, KeyError, TypeError, ValueError):
        raise RuntimeError(f"{shown(type)} is not the type of a tensor's numbers") from None
    type_of(result)
    return result


def ort_type(type: str) -> str:
    """Return a type of glnn as ONNX Runtime writes it: `tensor(float8e4m3fn)`."""
    return type.replace("float8_", "float8").replace("float4_", "float4")


Dim = int | str | None
Bytes = bytes | mmap.mmap
VARINT, EIGHT, TEXT, FOUR = 0, 1, 2, 5
"""Wire types: a varint, 8 bytes, a length and as many bytes, 4 bytes."""
# Keys of fields, which combine number and wire type. Of a ModelProto,
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
    """The model's version; the largest int64 where the file has none, as in ONNX Runtime."""
    graph_name: str = ""
    graph_description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the file by key."""
    dims: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)
    """Dimensions of the graph's inputs and outputs that are tensors with a declared shape."""
    denotations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Denotations of the inputs' dimensions, such as DATA_BATCH; empty where one has none."""
    graph: bool = True
    """True where there is a graph."""


def header_from_bytes(content: bytes) -> Header:
    """Return the header of `content`. Raises ValueError where it is no message of protobuf."""
    return _parse_header(content)


def header_from_file(path: str) -> Header:
    """Return the header of a file. Raises ValueError where it is no message, and OSError."""
    if not os.path.getsize(path):
        return _parse_header(b"")
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _parse_header(content)


def _parse_header(data: Bytes) -> Header:
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
    name, description, dims, denotations = _parse_graph(data, *(graph or (0, 0)))
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


def _parse_graph(data: Bytes, start: int, end: int) -> _Graph:
    """Return a graph's name and description, and `dims` and `denotations` as of a Header."""
    name = description = ""
    dims: dict[str, tuple[Dim, ...]] = {}
    denotations: dict[str, tuple[str, ...]] = {}
    for number, first, last, _ in _fields(data, start, end):
        if number == NAME:
            name = _str(data, first, last)
        elif number == GRAPH_DESCRIPTION:
            description = _str(data, first, last)
        elif number in (INPUT, OUTPUT):
            value, result = _parse_value(data, first, last)
            if result is not None and value not in dims:
                dims[value] = tuple(dim for dim, _ in result)
                if number == INPUT:
                    denotations[value] = tuple(denotation for _, denotation in result)
    return name, description, dims, denotations


def _parse_value(data: Bytes, start: int, end: int) -> tuple[str, list[tuple[Dim, str]] | None]:
    """Return a value's name, and its dimensions with denotations; None without a shape."""
    name, result = "", None
    for number, first, last, _ in _fields(data, start, end):
        if number == VALUE_NAME:
            name = _str(data, first, last)
        elif number == VALUE_TYPE:
            for kind, tensor, tensor_end, _ in _fields(data, first, last):
                for part, shape, shape_end, _ in (
                    _fields(data, tensor, tensor_end) if kind == TENSOR else ()
                ):
                    if part == SHAPE:
                        dims = _fields(data, shape, shape_end)
                        result = [_parse_dim(data, s, e) for n, s, e, _ in dims if n == DIM]
    return name, result


def _parse_dim(data: Bytes, start: int, end: int) -> tuple[Dim, str]:
    """Return a dimension, None where it is unknown, and its denotation."""
    dim: Dim = None
    denotation = ""
    for number, first, last, value in _fields(data, start, end):
        if number == SIZE:
            dim = value if value < 2**63 else None  # None for a negative size
        elif number == SYMBOL:
            dim = _str(data, first, last) or None
        elif number == DENOTATION:
            denotation = _str(data, first, last)
    return dim, denotation


def _fields(data: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message from `start` to `end`: key, bounds of the bytes, number.

    The number is 0 for fields that are no varints. Raises ValueError for malformed fields.
    """
    while start < end:
        key, start = _varint(data, start, end)
        wire_type = key & 7
        value, first = 0, start
        if wire_type == VARINT:
            value, start = _varint(data, start, end)
        elif wire_type == TEXT:
            size, first = _varint(data, start, end)
            start = first + size
        elif wire_type in (EIGHT, FOUR):
            start += 8 if wire_type == EIGHT else 4
        else:
            raise ValueError(f"a field cannot be written in way {wire_type}")
        if start > end or key < 8:
            raise ValueError("the message ends within a field")
        yield key, first, start, value


def _varint(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Return the varint at `start`, and its end. Raises ValueError where there is none."""
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


def read_header(model: str | bytes) -> Header:
    """Read the header of `model`. Raises NoSuchFile, InvalidProtobuf, InvalidArgument."""
    if isinstance(model, bytes) and model.lstrip()[:1] == b"{":
        return Header()  # a .json model of glnn's
    where = f"Load model from {model} failed:" if isinstance(model, str) else ""
    if isinstance(model, str):
        if not os.path.exists(model):
            raise NoSuchFile.from_text(f"{where}Load model {model} failed. File doesn't exist")
        if model.endswith(".json"):
            return Header()
    try:
        if _is_ort(model):
            raise Fail.from_text(f"{where}glnn reads .onnx files; this one is of ORT format")
        result = header_from_file(model) if isinstance(model, str) else header_from_bytes(model)
    except (ValueError, OSError):
        failed = "Failed to load model because protobuf parsing failed."
        text = f"{where}Protobuf parsing failed." if where else failed
        raise InvalidProtobuf.from_text(text) from None
    if not result.graph:
        raise InvalidArgument.from_text(f"{where}No graph was found in the protobuf.")
    return result


def _is_ort(model: str | bytes) -> bool:
    """Return True for a file of ORT's own format. Raises OSError."""
    if isinstance(model, bytes):
        return model[4:8] == b"ORTM"
    with open(model, "rb") as file:
        return file.read(8)[4:] == b"ORTM"


class TensorAttributes(Protocol):
    """The attributes of a TensorInfo that are read here."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int | str, ...]: ...

    @property
    def type(self) -> str: ...

    @property
    def holds(self) -> str: ...


class NodeArg:
    """An input or output: `name`, `type` as `tensor(float)`, and `shape`, a list.

    A size is an int, the name of an open size, or None.
    """

    def __init__(self, name: str, type: str, shape: tuple[Dim, ...]) -> None:
        self._name, self._type, self._shape = name, type, shape

    @property
    def name(self) -> str:
        """The name in the inputs or results of a run."""
        return self._name

    @property
    def type(self) -> str:
        """The type as ONNX Runtime writes it, as tensor(float)."""
        return self._type

    @property
    def shape(self) -> list[Dim]:
        """The sizes, a new list each time."""
        return list(self._shape)

    def __str__(self) -> str:
        return f"NodeArg(name='{self._name}', type='{self._type}', shape={self.shape})"


@dataclass
class ModelMetadata:
    """The metadata of a model."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    """Metadata that the file's writer added: labels, sizes of images and such."""

    @classmethod
    def from_header(cls, header: Header) -> ModelMetadata:
        """Return the metadata of a file."""
        return cls(
            header.producer_name,
            header.graph_name,
            header.domain,
            header.description,
            header.graph_description,
            header.version,
            dict(header.metadata),
        )


def node_arg(info: TensorAttributes, header: Header, sizes: Mapping[str, int]) -> NodeArg:
    """Return the input or output `info` with the file's names of sizes.

    sizes: values of some names. Where the file has no size, glnn's inferred size counts.
    """
    if info.holds:
        return NodeArg(info.name, ort_type(info.type), ())
    inferred = () if info.shape == (UNRANKED,) else tuple(map(_dim, info.shape))
    declared = header.dims.get(info.name, inferred)
    if len(declared) == len(inferred):
        declared = tuple(map(_merge_dims, declared, inferred))
    dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in declared)
    return NodeArg(info.name, ort_type(info.type), dims)


def _dim(size: int | str) -> Dim:
    return None if size == UNKNOWN else size


def _merge_dims(first: Dim, second: Dim) -> Dim:
    """Return the more specific dimension: a number over a symbol, a symbol over None."""
    if isinstance(first, int) or (second is None):
        return first
    return second if isinstance(second, int) or first is None else first

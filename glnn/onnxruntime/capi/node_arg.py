"""Inputs and outputs of a model, and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from glnn.onnxruntime.capi.header import Dim, Header
from glnn.onnxruntime.capi.types import theirs
from glnn.types import UNKNOWN, UNRANKED


class Info(Protocol):
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

    A size of the shape is an int, the name of one that a run tells, or None.
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


def node_arg(info: Info, header: Header, sizes: Mapping[str, int]) -> NodeArg:
    """The input or output `info`, as the file names its sizes; `sizes`: what some of them are.

    Where the file says no size, what follows from its graph does.
    """
    if info.holds:
        return NodeArg(info.name, theirs(info.type), ())
    known = () if info.shape == (UNRANKED,) else tuple(map(_dim, info.shape))
    said = header.dims.get(info.name, known)
    if len(said) == len(known):
        said = tuple(map(_merge_dims, said, known))
    dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in said)
    return NodeArg(info.name, theirs(info.type), dims)


def _dim(size: int | str) -> Dim:
    return None if size == UNKNOWN else size


def _merge_dims(first: Dim, second: Dim) -> Dim:
    """Return the dimension that is known best: a number before a symbol, a symbol before None."""
    if isinstance(first, int) or (second is None):
        return first
    return second if isinstance(second, int) or first is None else first

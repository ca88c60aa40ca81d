"""What a model's inputs and outputs are, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from glnn.onnxruntime.capi.header import Dim, Header
from glnn.onnxruntime.capi.types import theirs
from glnn.types import UNKNOWN, UNRANKED


class Info(Protocol):
    """What is asked of a TensorInfo, which lies elsewhere in glnn."""

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
        """What a run calls it."""
        return self._name

    @property
    def type(self) -> str:
        """What its numbers are."""
        return self._type

    @property
    def shape(self) -> list[Dim]:
        """Its sizes, a new list each time."""
        return list(self._shape)

    def __str__(self) -> str:
        return f"NodeArg(name='{self._name}', type='{self._type}', shape={self.shape})"


@dataclass
class ModelMetadata:
    """What a model says of itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)
    """What the file's writer added: labels, sizes of images and such."""

    @classmethod
    def of(cls, header: Header) -> ModelMetadata:
        """That of a file."""
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
        said = tuple(map(_joined, said, known))
    dims = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in said)
    return NodeArg(info.name, theirs(info.type), dims)


def _dim(size: int | str) -> Dim:
    return None if size == UNKNOWN else size


def _joined(said: Dim, known: Dim) -> Dim:
    """A number rather than a symbol, and a symbol rather than nothing."""
    if isinstance(said, int) or (known is None):
        return said
    return known if isinstance(known, int) or said is None else said

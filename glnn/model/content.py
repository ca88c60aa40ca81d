"""The content of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glnn.model.node import Node
from glnn.tensor_info import TensorInfo


@dataclass(frozen=True)
class Content:
    """A model of layers, as it is written."""

    name: str
    nodes: tuple[Node, ...]
    """The nodes, in an order in which they can run."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]
    """The names of the tensors that a user gets."""
    tensors: Mapping[str, TensorInfo]
    """Every tensor by its name."""
    metadata: Mapping[str, str]
    """The file's metadata by name."""

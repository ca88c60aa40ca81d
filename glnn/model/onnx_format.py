"""Models of .onnx files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from glnn.errors import ModelError, ShapeError
from glnn.graph.graph import Graph
from glnn.model.formats import find
from glnn.model.model import Model
from glnn.model.node import Node
from glnn.model.onnx_layers import as_layers
from glnn.model.onnx_writing import check_size, write
from glnn.model.tensor import TensorInfo
from glnn.onnx.importing import Imported, imported
from glnn.onnx.reading import parse, read
from glnn.onnx.source import Source
from glnn.types import TensorType


@dataclass(frozen=True, eq=False)
class GraphModel(Model):
    """A model that is a graph of operators already, with no layers."""

    nodes: tuple[Node, ...] = ()
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[str, ...] = ()
    name: str = "model"
    given: Graph | None = None
    """The graph."""
    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Of the outputs, as far as they are known."""
    source: Source | None = None
    """What it was read from."""

    def __post_init__(self) -> None:
        pass  # the graph has been looked at

    def __reduce__(self) -> tuple[Any, ...]:
        more = (self.given, self.types, self.source)
        return GraphModel, (self.nodes, self.inputs, self.outputs, self.name, *more)

    @cached_property
    def graph(self) -> Graph:
        assert self.given is not None
        return self.given

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write the model to `path`: see `Model.save`.

        An .onnx file says what the one that was read said. For any other format each node must be
        what a layer of glnn's computes; a ModelError names the first that is not.
        """
        assert self.source is not None
        if find(path, format) != "onnx":
            as_layers(self).save(path, format)
            return
        check_size(str(path), self.source.nbytes)
        write(Path(path), self.source.model(str(path)))

    @property
    def metadata(self) -> Mapping[str, str]:
        assert self.source is not None
        return {one.key: one.value for one in self.source.proto.metadata_props}

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        values = {v.name: v.type for node in self.graph.nodes for v in node.outputs}
        types = {**{i.name: i.tensor_type for i in self.inputs}, **values}
        return {name: TensorInfo.of(name, t, True) for name, t in {**types, **self.types}.items()}


def load(path: Path) -> GraphModel:
    """The model in the .onnx file. Raises ModelError, in one sentence, for every fault."""
    return _model(imported(read(path), str(path), path.parent), str(path))


def load_bytes(content: bytes) -> GraphModel:
    """The model that `content`, that of an .onnx file, is; it can refer to no files."""
    where = "model given as bytes"
    return _model(imported(parse(content, where), where), where)


def _model(found: Imported, where: str) -> GraphModel:
    try:
        inputs = tuple(TensorInfo.of(name, type, True) for name, type in found.inputs.items())
        outputs = found.outputs
        model = GraphModel(
            (), inputs, tuple(outputs), found.name, found.graph, outputs, found.source
        )
        _ = model.tensors  # of sizes that there can be
    except ShapeError as error:
        raise ModelError(f"{where}: {error}") from None
    return model

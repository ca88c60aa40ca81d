"""An ONNX model as a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, ShapeError, UnsupportedOpError, first_line
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph
from glnn.onnx.nodes import Nodes
from glnn.onnx.operators.dtypes import type_of
from glnn.onnx.reading import package
from glnn.onnx.schemas import opsets_of
from glnn.onnx.source import ModelSource
from glnn.onnx.tensors import Tensors
from glnn.types import DType, TensorType


@dataclass(frozen=True)
class ImportedModel:
    """A model's graph, with the names and types of its inputs and outputs."""

    graph: Graph
    inputs: Mapping[str, TensorType]
    """Types by name, as far as the model says them."""
    outputs: Mapping[str, TensorType]
    """Types by name, as far as they are known."""
    name: str
    source: ModelSource
    """The ModelProto that it was read from, without large tensors."""


def import_model(
    proto: Any, where: str, folder: Path | None = None, home: Path | None = None
) -> ImportedModel:
    """Return the graph of a ModelProto.

    where: the model's name in errors. folder: where files with tensors of its own may lie, and
    home, where the model's file does behind its links. Raises ModelError, in one sentence, for
    every fault.
    """
    try:
        return _import_model(proto, where, folder, home)
    except RecursionError:
        raise ModelError(f"{where}: its graphs are too deep in each other") from None
    except UnicodeDecodeError:
        raise ModelError(f"{where}: a name is no text of UTF-8") from None
    except MemoryError as error:
        raise ModelError(f"{where}: {first_line(error)}") from None


def _import_model(proto: Any, where: str, folder: Path | None, home: Path | None) -> ImportedModel:
    onnx = package(where)
    nodes = Nodes(onnx, where, proto, Tensors(onnx, where, folder, home))
    opsets = opsets_of(onnx, where, proto.opset_import)
    if proto.ir_version < 3:
        opsets.setdefault("", 1)  # the versions of operators were not said then
    block = nodes.block(proto.graph, opsets)
    name = proto.graph.name or "model"
    try:
        declared = {
            one.name: type_of(one.type, f"{where}: {one.name!r}")
            for one in (*proto.graph.input, *proto.graph.output)
        }
    except ShapeError as error:  # of sizes that no tensor has
        raise ModelError(f"{where}: {error}") from None
    given = {one: declared[one] for one in block.inputs}
    for one, type in given.items():
        if type.dtype is DType.object and not type.ranked and not type.holds:
            raise ModelError(f"{where}: the type of the input {one!r} is not said")
    builder = Builder(name)
    try:
        values = {one: builder.input(one, type) for one, type in given.items()}
        outputs = block.put(builder, values)
        graph = builder.graph(outputs)
    except (ShapeError, UnsupportedOpError) as error:
        raise ModelError(f"{where}: {error}") from None
    for one, value in zip(block.outputs, outputs, strict=True):
        said, found = declared[one].dtype, value.type.dtype
        if DType.object not in (said, found) and said is not found:
            raise ModelError(
                f"{where}: the output {one!r} is said to be {said.value}, it is {found.value}"
            )
    results = {
        one: value.type if value.type.ranked else declared[one]
        for one, value in zip(block.outputs, outputs, strict=True)
    }
    known = {n: v.data for n, v in block.constants.items() if isinstance(v.data, np.ndarray)}
    return ImportedModel(graph, given, results, name, ModelSource.from_proto(proto, known))

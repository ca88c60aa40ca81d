"""Writing .onnx files: of layers, and of what came from such a file."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from glnn.errors import ModelError, UnsupportedOpError, fault
from glnn.fileio import atomic_write
from glnn.model.node import Content, Node
from glnn.onnx.export import TABLE
from glnn.onnx.export.writer import LayerWriter, Writer
from glnn.onnx.model_proto import package
from glnn.onnx.operators.dtypes import CODES
from glnn.tensor_info import TensorInfo
from glnn.types import UNKNOWN, TensorType
from glnn.version import VERSION

OPSET, IR = 21, 10
"""Versions of ONNX 1.16, of 2024, the oldest with GroupNormalization and Gelu as PyTorch's."""
MOST = (1 << 31) - (1 << 20)
"""Bytes of weights: a protobuf message has fewer than 2^31, and all else is somewhere, too."""


def save(path: Path, content: Content) -> None:
    """Write the .onnx file `path`: see `Model.save`."""
    write(path, message(content, str(path)))


def message(content: Content, where: str) -> Any:
    """The ModelProto of a model of layers.

    where: what errors call it. Raises ModelError for a layer that ONNX cannot say.
    """
    nodes, tensors = content.nodes, content.tensors
    check_size(where, 4 * sum(prod(n) for node in nodes for n in node.layer.shapes.values()))
    writer = Writer(package(where, "writing"), set(tensors))
    types = {name: TensorType(info.shape, info.dtype) for name, info in tensors.items()}
    try:
        for node in nodes:
            _write(writer, node, types)
        ends = [_info(writer.onnx, info) for info in content.inputs]
        results = [_info(writer.onnx, tensors[name]) for name in content.outputs]
        parts = writer.nodes, content.name, ends, results, writer.weights
        graph = writer.onnx.helper.make_graph(*parts)
        opset = writer.onnx.helper.make_opsetid("", OPSET)
        model = writer.onnx.helper.make_model(graph, opset_imports=[opset], ir_version=IR)
    except UnicodeEncodeError as error:  # half of a surrogate pair in a name
        raise ModelError(f"{where}: a name that ONNX cannot have: {error}") from None
    model.producer_name, model.producer_version = "glnn", VERSION
    describe(model, content.metadata)
    model.doc_string = f"{len(nodes)} layers; the last node of each has its name and arguments"
    return model


def describe(model: Any, metadata: Mapping[str, str]) -> None:
    """Have a ModelProto say `metadata`, and no others. Raises ModelError for no texts of UTF-8."""
    del model.metadata_props[:]
    for key, text in metadata.items():
        try:
            model.metadata_props.add(key=key, value=text)
        except (UnicodeEncodeError, ValueError):  # half of a surrogate pair
            raise ModelError(f"metadata {key!r:.60}: a text that ONNX cannot have") from None


def write(path: Path, model: Any) -> None:
    """Write a ModelProto, whole or not at all. Raises ModelError where that cannot be."""
    try:
        content = model.SerializeToString()
        with atomic_write(path) as stream:
            stream.write(content)
    except (OSError, ValueError) as error:  # a full disk, a path that holds a zero byte
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None


def check_size(where: str, nbytes: int) -> None:
    """Raise ModelError where weights of so many bytes are more than an .onnx file holds."""
    if nbytes > MOST:
        raise ModelError(
            f"{where}: its weights are {nbytes} bytes, an .onnx file holds {MOST}: "
            "save a .json file"
        )


def _write(writer: Writer, node: Node, types: Mapping[str, TensorType]) -> None:
    """Add what computes the layer of `node`."""
    kind = type(node.layer)
    if kind not in TABLE:
        raise ModelError(f"layer {node.name!r}: {kind.__name__} cannot be written as ONNX")
    if not node.output:
        raise ModelError(f"layer {node.name!r}: ONNX takes no tensor that is called ''")
    given = tuple(types[name] for name in node.inputs)
    place = LayerWriter(writer, node.layer, node.name, node.output, given, types[node.output])
    try:
        made = TABLE[kind](place, *node.inputs)
        place.finish(*((made,) if isinstance(made, str) else made))
    except UnsupportedOpError as error:
        what = f"layer {node.name!r}: {kind.__name__}"
        raise ModelError(f"{what} cannot be written as ONNX: {error}") from None


def _info(onnx: Any, info: TensorInfo) -> Any:
    dims = [None if dim == UNKNOWN else dim for dim in info.shape]
    return onnx.helper.make_tensor_value_info(info.name, CODES[info.dtype], dims)

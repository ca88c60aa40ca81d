"""Graphs of ONNX's operators as models of layers, for the formats that have layers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.graph import Node as GraphNode
from glnn.graph.graph import Value
from glnn.model.model import Model
from glnn.model.node import Node
from glnn.model.onnx_found import Found
from glnn.model.onnx_rows import ROWS
from glnn.onnx.node import OnnxOperator
from glnn.tensor_info import BATCH, TensorInfo, show
from glnn.types import Array


def as_layers(model: Model) -> Model:
    """The model of layers that computes the same as `model`, whose graph came from ONNX.

    Raises ModelError, which names the node, for what no layer computes.
    """
    arrays = {
        value: value.data
        for node in model.graph.nodes
        for value in node.inputs
        if value is not None and isinstance(value.data, np.ndarray)
    }
    nodes: list[Node] = []
    for node in model.graph.nodes:
        try:
            _add(node, arrays, nodes)
        except (ShapeError, UnsupportedOpError) as error:
            what = f"{model.name}: node {node.name!r}, {node.operator}"
            raise ModelError(f"{what}, is no layer of glnn's: {error}") from None
    try:
        inputs = tuple(map(_input, model.inputs))
        return Model(tuple(nodes), inputs, model.outputs, model.name, model.metadata)
    except (ModelError, ShapeError) as error:
        raise ModelError(f"{model.name} is no model of layers: {error}") from None


def _add(node: GraphNode, arrays: dict[Value, Array], nodes: list[Node]) -> None:
    """Add what `node` computes to `nodes`, or to `arrays` what is the same in each run."""
    if all(value in arrays for value in node.reads):
        found = node.operator.reference(*(None if v is None else arrays[v] for v in node.inputs))
        arrays.update(zip(node.outputs, found, strict=True))
        return
    operator = node.operator
    if not isinstance(operator, OnnxOperator) or operator.op_type not in ROWS:
        raise UnsupportedOpError(f"there is none for {operator}")
    if len(node.outputs) != 1:
        raise UnsupportedOpError("a layer has one result")
    given = tuple(v.name for v in node.inputs if v is not None and v not in arrays)
    known = tuple(None if v is None else arrays.get(v) for v in node.inputs)
    types = tuple(v.type for v in node.inputs if v is not None and v not in arrays)
    (result,) = node.outputs
    layer = ROWS[operator.op_type](Found(operator, types, known, result.type))
    if layer.inputs != len(given):
        raise UnsupportedOpError(f"of {len(given)} tensors that a run changes")
    taken = {one.name for one in nodes}
    name = node.name if node.name not in taken else result.name
    nodes.append(Node(name, layer, given, result.name))


def _input(info: TensorInfo) -> TensorInfo:
    """Without symbols but for the batch."""
    first: tuple[Any, ...] = info.shape[:1]
    if any(isinstance(n, str) for n in info.shape[1:]):
        raise ModelError(f"the input {info.name!r} must have known sizes, got {show(info.shape)}")
    batch = (BATCH,) if isinstance(first[0] if first else 0, str) else first
    return TensorInfo(info.name, (*batch, *info.shape[1:]), info.type)

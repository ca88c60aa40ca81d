"""Graphs of ONNX's operators as models of layers, for the formats that have layers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.graph import Kind, Value
from glnn.graph.graph import Node as GraphNode
from glnn.layers import Layer
from glnn.model.model import Model
from glnn.model.node import Node
from glnn.model.onnx_rows import ROWS, OnnxNode
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
    sizes: set[Value] = set()
    nodes: list[Node] = []
    for node in model.graph.nodes:
        try:
            _add(node, arrays, sizes, nodes)
        except (ShapeError, UnsupportedOpError) as error:
            what = f"{model.name}: node {node.name!r}, {node.operator}"
            raise ModelError(f"{what}, is no layer of glnn's: {error}") from None
    try:
        inputs = tuple(map(_input, model.inputs))
        return Model(tuple(nodes), inputs, model.outputs, model.name, model.metadata)
    except (ModelError, ShapeError) as error:
        raise ModelError(f"{model.name} is no model of layers: {error}") from None


def _add(node: GraphNode, arrays: dict[Value, Array], sizes: set[Value], nodes: list[Node]) -> None:
    """Add what `node` computes to `nodes`; to `arrays` where it is the same in each run; to `sizes`
    what only counts the batch, as its result's type tells the layer that reads it.
    """
    operator = node.operator
    kind = operator.op_type if isinstance(operator, OnnxOperator) else ""
    if all(value in arrays for value in node.reads):
        found = operator.reference(*(None if v is None else arrays[v] for v in node.inputs))
        arrays.update(zip(node.outputs, found, strict=True))
        return
    if kind == "CastLike" and node.inputs[0] in arrays:  # whose second operand is but a type
        (result,) = node.outputs
        arrays[result] = arrays[node.inputs[0]].astype(result.type.dtype.numpy)
        return
    if kind == "Shape" or all(value in arrays or value in sizes for value in node.reads):
        sizes.update(node.outputs)
        return
    if kind not in ROWS or not isinstance(operator, OnnxOperator):
        raise UnsupportedOpError(f"there is none for {operator}")
    if len(node.outputs) != 1:
        raise UnsupportedOpError("a layer has one result")
    if kind != "Reshape" and any(value in sizes for value in node.reads):
        raise UnsupportedOpError("it computes with the batch's size")
    known = tuple(None if v is None else arrays.get(v) for v in node.inputs)
    changing = [v for v in node.reads if v not in arrays and v not in sizes]
    types = tuple(v.type for v in changing)
    (result,) = node.outputs
    layer = ROWS[kind](OnnxNode(operator, types, known, result.type))
    if layer.inputs != len(changing):
        raise UnsupportedOpError(f"of {len(changing)} tensors that a run changes")
    taken = {one.name for one in nodes}
    names = (_parameters_prefix(node, layer), node.name, result.name)
    name = next(name for name in names if name and name not in taken)
    nodes.append(Node(name, layer, tuple(v.name for v in changing), result.name))


def _parameters_prefix(node: GraphNode, layer: Layer) -> str:
    """Return `conv1` where the parameters are called `conv1.weight` and as the layer's, else ""."""
    found = {v.name.rpartition(".")[::2] for v in node.reads if v.kind is Kind.CONSTANT}
    starts = {start for start, end in found if end in layer.shapes}
    return starts.pop() if len(starts) == 1 else ""


def _input(info: TensorInfo) -> TensorInfo:
    """Return the input without symbols but for the batch."""
    first: tuple[Any, ...] = info.shape[:1]
    if any(isinstance(n, str) for n in info.shape[1:]):
        raise ModelError(f"the input {info.name!r} must have known sizes, got {show(info.shape)}")
    batch = (BATCH,) if isinstance(first[0] if first else 0, str) else first
    return TensorInfo(info.name, (*batch, *info.shape[1:]), info.type)

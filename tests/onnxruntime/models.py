"""Small models, written for the tests."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, helper

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def proto(nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> Any:
    """A model of ONNX's version 17. inputs and outputs: name, type, shape."""
    about = {n: more.pop(n) for n in ("producer_name", "domain", "doc_string") if n in more}
    infos = [[helper.make_tensor_value_info(*one) for one in some] for some in (inputs, outputs)]
    graph = helper.make_graph(nodes, "a graph", *infos, **more)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8, **about)


def identity(type: int, shape: Any = ("N",)) -> bytes:
    """A model that gives what it takes."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return proto([node], [("x", type, shape)], [("y", type, shape)]).SerializeToString()

"""Functions of ONNX, as protos: the nodes of one in the place of a node that calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Names = Mapping[str, str]
"""What stands for each name of a function in the graph that calls it."""


def called(onnx: Any, function: Any, node: Any, defaults: Iterable[Any], prefix: str) -> list[Any]:
    """The NodeProtos of `function`, a FunctionProto, in the place of `node`, a NodeProto.

    defaults: AttributeProtos of what the node may leave out. prefix: what goes before the names of
    what the function computes between.
    """
    names = dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")
    pairs = [(name, to) for name, to in zip(function.output, node.output, strict=False) if to]
    handed = [(names[name], to) for name, to in pairs if name in names]  # inputs as they are
    names |= {name: to for name, to in pairs if name not in names}
    given = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    for one in function.node:
        for name in one.output:
            names.setdefault(name, f"{prefix}/{name}" if name else "")
    nodes = _nodes(onnx, function.node, names, given, prefix)
    return nodes + [onnx.helper.make_node("Identity", [name], [to]) for name, to in handed]


def defined(onnx: Any, function: Any, node: Any, defaults: Iterable[Any]) -> list[Any]:
    """The NodeProtos of `function` with the attributes of `node`, by the function's own names."""
    given = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    return _nodes(onnx, function.node, {}, given, function.name)


def _nodes(
    onnx: Any, nodes: Iterable[Any], names: Names, given: Mapping[str, Any], prefix: str
) -> list[Any]:
    return [
        _renamed(onnx, node, names, given, f"{prefix}/{node.name or f'{node.op_type}_{number}'}")
        for number, node in enumerate(nodes)
    ]


def _renamed(onnx: Any, node: Any, names: Names, given: Mapping[str, Any], name: str) -> Any:
    """`node` of a function, called `name`, by other names, with the attributes it refers to."""
    found = onnx.NodeProto()
    found.CopyFrom(node)
    found.name = name
    for listed in (found.input, found.output):
        for i, one in enumerate(listed):
            listed[i] = names.get(one, one)
    del found.attribute[:]
    for one in node.attribute:
        if one.ref_attr_name and one.ref_attr_name not in given:
            continue
        own = found.attribute.add()
        own.CopyFrom(given[one.ref_attr_name] if one.ref_attr_name else one)
        own.name = one.name
        for graph in (own.g, *own.graphs) if own.HasField("g") else own.graphs:
            if not one.ref_attr_name:
                _rename(onnx, graph, names, given, name)
    return found


def _rename(onnx: Any, graph: Any, names: Names, given: Mapping[str, Any], prefix: str) -> None:
    """`graph`, a body in a function, by other names, in place."""
    for listed in (graph.input, graph.output, graph.initializer):
        for one in listed:
            one.name = names.get(one.name, one.name)
    nodes = _nodes(onnx, list(graph.node), names, given, prefix)
    del graph.node[:]
    graph.node.extend(nodes)

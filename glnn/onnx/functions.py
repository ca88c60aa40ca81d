"""ONNX functions: their nodes in the place of a call, or as an operator that depends on types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.onnx.block import Block
from glnn.onnx.delegate import Delegate
from glnn.types import TensorType

Names = Mapping[str, str]
"""Names in the calling graph, by the function's own names."""


def inline_call(
    onnx: Any, function: Any, node: Any, defaults: Iterable[Any], prefix: str
) -> list[Any]:
    """Return the NodeProtos of `function`, a FunctionProto, in the place of `node`, a NodeProto.

    defaults: AttributeProtos of what the node may leave out. prefix: what goes before the names of
    what the function computes between.
    """
    names = dict(zip(function.input, node.input, strict=False))
    names |= dict.fromkeys(function.input[len(node.input) :], "")
    pairs = [(name, to) for name, to in zip(function.output, node.output, strict=False) if to]
    handed = [(names[name], to) for name, to in pairs if name in names]  # inputs as they are
    names |= {name: to for name, to in pairs if name not in names}
    attributes = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    for one in function.node:
        for name in one.output:
            names.setdefault(name, f"{prefix}/{name}" if name else "")
    nodes = _nodes(onnx, function.node, names, attributes, prefix)
    return nodes + [onnx.helper.make_node("Identity", [name], [to]) for name, to in handed]


def function_body(onnx: Any, function: Any, node: Any, defaults: Iterable[Any]) -> list[Any]:
    """Return the NodeProtos of `function` with the attributes of `node`, by the function's own
    names.
    """
    attributes = {one.name: one for one in (*defaults, *function.attribute_proto, *node.attribute)}
    return _nodes(onnx, function.node, {}, attributes, function.name)


def _nodes(
    onnx: Any, nodes: Iterable[Any], names: Names, attributes: Mapping[str, Any], prefix: str
) -> list[Any]:
    """Return copies of a function's nodes, renamed by `names`, with names that begin with `prefix`.

    attributes: AttributeProtos of the calling node, by name.
    """
    return [
        _rename_node(
            onnx, node, names, attributes, f"{prefix}/{node.name or f'{node.op_type}_{number}'}"
        )
        for number, node in enumerate(nodes)
    ]


def _rename_node(
    onnx: Any, node: Any, names: Names, attributes: Mapping[str, Any], name: str
) -> Any:
    """Return a copy of a function's node, called `name`, with tensors renamed by `names`.

    References to the function's attributes are replaced by those of `attributes`.
    """
    found = onnx.NodeProto()
    found.CopyFrom(node)
    found.name = name
    for listed in (found.input, found.output):
        for i, one in enumerate(listed):
            listed[i] = names.get(one, one)
    del found.attribute[:]
    for one in node.attribute:
        if one.ref_attr_name and one.ref_attr_name not in attributes:
            continue
        attribute = found.attribute.add()
        attribute.CopyFrom(attributes[one.ref_attr_name] if one.ref_attr_name else one)
        attribute.name = one.name
        for graph in (
            (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs
        ):
            if not one.ref_attr_name:
                _rename_graph(onnx, graph, names, attributes, name)
    return found


def _rename_graph(
    onnx: Any, graph: Any, names: Names, attributes: Mapping[str, Any], prefix: str
) -> None:
    """Rename the tensors of `graph`, a body inside a function, in place."""
    for listed in (graph.input, graph.output, graph.initializer):
        for one in listed:
            one.name = names.get(one.name, one.name)
    nodes = _nodes(onnx, list(graph.node), names, attributes, prefix)
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True, eq=False)
class FunctionNode(Composite):
    """An operator that ONNX defines by a function, which depends on the operands' types."""

    op_type: str
    """ONNX's name."""
    block: Callable[[Types], Block]
    """Function that returns the nodes for operand types. Raises ShapeError where ONNX has none."""
    free: tuple[str, ...]
    """The names of the values that subgraphs of the node capture: the last operands."""
    delegate: Delegate
    """The `onnx` package's."""

    opens: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.op_type

    def expand(self, operands: Sequence[Value | None]) -> Graph:
        count = len(operands) - len(self.free)
        try:
            block = self.block([None if v is None else v.type for v in operands[:count]])
            builder = Builder(self.op_type)
            for value in operands:
                if value is not None and value.kind is not Kind.CONSTANT:
                    builder.take(value)
            names = (*block.inputs[:count], *self.free)
            here = {n: v for n, v in zip(names, operands, strict=True) if v is not None}
            found = block.put(builder, here)
            return builder.graph(found)
        except (ShapeError, UnsupportedOpError) as error:
            if self.free:
                raise
            return self.delegate.graph(operands, str(error))

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        return self.delegate.unknown(types[: len(types) - len(self.free)])

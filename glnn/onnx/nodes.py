"""The nodes of an ONNX model as blocks of steps, before types are known."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glnn.errors import ModelError, ShapeError
from glnn.graph.graph import Value
from glnn.graph.operator import Types
from glnn.onnx.block import Block, Step
from glnn.onnx.control import IfNode, LoopNode, SubgraphNode, scan_node
from glnn.onnx.delegate import Delegate
from glnn.onnx.functions import FunctionNode, function_body, inline_call
from glnn.onnx.node import OnnxOperator
from glnn.onnx.numpy_nodes import WINDOWS
from glnn.onnx.operators.dtypes import CODES, type_proto
from glnn.onnx.schemas import Opsets, defaults, domain_of, function_of, opsets_of, schema_of
from glnn.onnx.table import find
from glnn.onnx.tensors import Tensors
from glnn.types import DType

MOST_NODES = 100_000  # of a model, those of its functions wherever they are called
MOST_DEEP = 12  # graphs of nodes in each other


class Nodes:
    """Reads the nodes of one model."""

    def __init__(self, onnx: Any, where: str, proto: Any, tensors: Tensors) -> None:
        """where: the model's name in errors. proto: the ModelProto."""
        self._onnx, self._where, self._tensors = onnx, where, tensors
        self._ir_version = proto.ir_version
        self._functions = {
            (domain_of(one.domain), one.name, one.overload): one for one in proto.functions
        }
        self._count = self._deep = 0
        self._calls: list[Any] = []  # the functions that are being put in

    def block(self, graph: Any, opsets: Opsets, around: Collection[str] | None = None) -> Block:
        """Return a GraphProto's nodes as a block.

        around: the names that a body may read; None for the model's own graph. Raises ModelError
        where they do not hold together.
        """
        self._deep += 1
        if self._deep > MOST_DEEP:
            raise ModelError(f"{self._where}: more than {MOST_DEEP} graphs are in each other")
        constants = self._tensors.constants(graph)
        inputs = tuple(one.name for one in graph.input if one.name not in constants)
        for name, count in Counter(inputs).items():
            if not name or count > 1:
                raise ModelError(f"{self._where}: an input needs a name of its own, got {name!r}")
        outputs = tuple(one.name for one in graph.output)
        if around is None and len(set(outputs)) < len(outputs):
            raise ModelError(f"{self._where}: two outputs are called alike")
        if not outputs:
            raise ModelError(f"{self._where}: the graph {graph.name!r} has no output")
        found = self._block(graph, inputs, outputs, opsets, around, constants)
        self._deep -= 1
        return found

    def _block(
        self,
        graph: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        opsets: Opsets,
        around: Collection[str] | None,
        constants: dict[str, Value],
    ) -> Block:
        own = {*inputs, *constants}
        reading = _Reading(constants, own, own | {*(around or ())}, around is not None)
        named = [
            (node.name or f"{node.op_type}_{number}", node)
            for number, node in enumerate(graph.node)
        ]
        for name, node in in_order(named, self._where):
            self._put(reading, node, name, opsets)
        for name in outputs:
            if name not in reading.names:
                raise ModelError(f"{self._where}: nothing makes the output {name!r}")
        name = graph.name or "graph"
        return Block(name, inputs, constants, tuple(reading.steps), outputs)

    def _put(self, reading: _Reading, node: Any, name: str, opsets: Opsets) -> None:
        """Add `node` to what was read of its graph."""
        self._count += 1
        if self._count > MOST_NODES:
            raise ModelError(f"{self._where}: has more than {MOST_NODES} nodes")
        what, domain = f"{self._where}: node {name!r}", domain_of(node.domain)
        texts = (node.op_type, node.domain, node.overload, *node.input, *node.output)
        if not all(isinstance(text, str) for text in texts):
            raise ModelError(f"{what}: a name is no text of UTF-8")
        for one in node.input:
            if one and one not in reading.names:
                raise ModelError(f"{what} reads {one!r}, which no node makes")
        function = self._functions.get((domain, node.op_type, node.overload))
        if function is not None:
            self._call(reading, function, node, name, opsets)
            return
        schema = schema_of(self._onnx, what, node, opsets)
        entry = find(domain, node.op_type, opsets.get(domain, 1))
        if entry is None and schema is not None and schema.has_function and not _is_wide(node):
            function = function_of(self._onnx, schema, opsets)
            self._call(reading, function, node, name, opsets, defaults(schema))
            return
        results = tuple(node.output)
        if not any(results):
            return
        for one in filter(None, results):
            if one in reading.own:
                raise ModelError(f"{self._where}: the tensor {one!r} is made twice")
        if node.op_type == "Constant" and not domain:
            reading.constants[results[0]] = self._tensors.constant(node, results[0])
        else:
            reading.steps.append(self._step(reading, node, name, opsets, schema))
        reading.own.update(filter(None, results))
        reading.names.update(filter(None, results))

    def _call(
        self,
        reading: _Reading,
        function: Any,
        node: Any,
        name: str,
        opsets: Opsets,
        defaults: Iterable[Any] = (),
    ) -> None:
        """Put the nodes of `function` in the place of `node`, which calls it.

        defaults: AttributeProtos of attributes that the node may leave out.
        """
        what = f"{self._where}: node {name!r}"
        if any(function is one for one in self._calls):
            raise ModelError(f"{what} calls the function {function.name!r} inside itself")
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(f"{what} has more operands or results than {function.name!r}")
        own = opsets_of(self._onnx, self._where, function.opset_import)
        self._calls.append(function)
        for one in inline_call(self._onnx, function, node, defaults, name):
            self._put(reading, one, one.name, {**opsets, **own})
        self._calls.pop()

    def _step(self, reading: _Reading, node: Any, name: str, opsets: Opsets, schema: Any) -> Step:
        inputs, outputs = tuple(node.input), tuple(node.output)
        own = node.op_type if not node.domain else ""
        if own == "Identity" and reading.inside:
            return Step(name, None, inputs, outputs)
        graphs = {
            one.name: self.block(one.g, opsets, reading.names)
            for one in node.attribute
            if one.HasField("g")
        }
        if own in ("If", "Loop", "Scan"):
            what = f"{self._where}: node {name!r}"
            operator = self._control(node, own, what, opsets, graphs)
            return Step(name, operator, (*inputs, *operator.free), outputs)
        delegate = self._delegate(node, opsets)
        domain = domain_of(node.domain)
        entry = find(domain, node.op_type, opsets.get(domain, 1))
        if (entry is None or graphs) and schema and schema.has_context_dependent_function:
            free = tuple(dict.fromkeys(n for block in graphs.values() for n in block.free))

            def block(types: Types) -> Block:
                return self._function_block(schema, node, opsets, types, free)

            function = FunctionNode(node.op_type, block, free, delegate)
            return Step(name, function, (*inputs, *free), outputs)
        version, used = opsets.get(domain, 1), tuple(map(bool, outputs))
        attributes = self._attributes(node)
        plain = OnnxOperator(node.op_type, version, attributes, used, entry, delegate)
        return Step(name, plain, inputs, outputs)

    def _delegate(self, node: Any, opsets: Opsets) -> Delegate:
        single = self._onnx.NodeProto()
        single.CopyFrom(node)
        for i, one in enumerate(node.input):
            single.input[i] = f"x{i}" if one else ""
        for i, one in enumerate(node.output):
            single.output[i] = f"y{i}" if one else ""
        return Delegate(single, opsets, self._ir_version)

    def _function_block(
        self, schema: Any, node: Any, opsets: Opsets, types: Types, free: Collection[str]
    ) -> Block:
        """Return the nodes of the function by which `schema` defines `node`, for operands of
        `types`.
        """
        protos = [b"" if one is None else type_proto(one).SerializeToString() for one in types]
        versions = schema.context_dependent_function_opset_versions
        fitting = [one for one in versions if one <= opsets.get(domain_of(node.domain), 1)]
        try:
            content = schema.get_context_dependent_function_with_opset_version(
                max(fitting), node.SerializeToString(), protos
            )
            function = self._onnx.FunctionProto.FromString(content)
        except Exception as error:  # it raises many kinds
            raise ShapeError(f"{node.op_type}: {error}") from None
        nodes = function_body(self._onnx, function, node, defaults(schema))
        del function.node[:]
        function.node.extend(nodes)
        own = opsets_of(self._onnx, self._where, function.opset_import)
        pairs = zip(function.output, node.output, strict=False)
        outputs = tuple(name for name, used in pairs if used)
        inputs = tuple(function.input)
        return self._block(function, inputs, outputs, {**opsets, **own}, free, {})

    def _control(
        self, node: Any, kind: str, what: str, opsets: Opsets, graphs: Mapping[str, Block]
    ) -> SubgraphNode:
        """Return the operator of `node`, an If, Loop or Scan. graphs: its subgraphs by
        attribute.
        """
        used, count = tuple(map(bool, node.output)), len(node.input)
        needed = ("then_branch", "else_branch") if kind == "If" else ("body",)
        if missing := [name for name in needed if name not in graphs]:
            raise ModelError(f"{what}: {kind} has no graph {missing[0]!r}")
        blocks = tuple(graphs[name] for name in needed)
        if kind == "Scan":
            attributes = self._attributes(node)
            try:
                return scan_node(blocks[0], count, used, opsets.get("", 1), attributes)
            except ShapeError as error:
                raise ModelError(f"{what}: {error}") from None
        if kind == "Loop":  # the last results may be left out
            used += (False,) * (len(blocks[0].outputs) - 1 - len(used))
        given, made = (0, len(used)) if kind == "If" else (count, len(used) + 1)
        for block in blocks:
            if (len(block.inputs), len(block.outputs)) != (given, made):
                raise ModelError(
                    f"{what}: {block.name!r} must have {given} inputs and {made} outputs, "
                    f"got {len(block.inputs)} and {len(block.outputs)}"
                )
        return IfNode(blocks, 1, used) if kind == "If" else LoopNode(blocks, count, used)

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of `node` that are no graphs, by name."""
        return {
            one.name: self._tensors.attribute(one)
            for one in node.attribute
            if not one.HasField("g") and self._tensors.is_said(one)
        }


def _is_wide(node: Any) -> bool:
    """Return True for a window in float64: ONNX's function computes it in float32."""
    codes = (one.i for one in node.attribute if one.name == "output_datatype")
    return node.op_type in WINDOWS and next(codes, 0) == CODES[DType.float64]


@dataclass
class _Reading:
    """The state of reading one graph."""

    constants: dict[str, Value]
    """Constants by name: the graph's and those of its nodes."""
    own: set[str]
    """Names of its inputs and of what its nodes make."""
    names: set[str]
    """Names that the graph's nodes may read."""
    inside: bool
    """True for the body of a node."""
    steps: list[Step] = field(default_factory=list)


Named = tuple[str, Any]
"""A NodeProto and what it is called."""


def in_order(nodes: Sequence[Named], where: str) -> Sequence[Named]:
    """Return the nodes, each behind those that it reads from; as they are where they are so.

    Of those that could come next, the first in the file does. where: the model's name in errors.
    Raises ModelError where nodes need each other's results.
    """
    makers = {name: i for i, (_, node) in enumerate(nodes) for name in node.output if name}
    if not any(makers.get(name, -1) >= i for i, (_, n) in enumerate(nodes) for name in _reads(n)):
        return nodes
    waits: list[set[int]] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for i, (_, node) in enumerate(nodes):
        waits.append({makers[name] for name in _reads(node) if name in makers})
        for maker in waits[i]:
            readers[maker].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    found: list[int] = []
    while ready:
        done = heapq.heappop(ready)
        found.append(done)
        for reader in readers[done]:
            waits[reader].remove(done)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(found) < len(nodes):
        names = _cycle([sorted(before) for before in waits], set(range(len(nodes))) - {*found})
        listed = ", ".join(repr(nodes[i][0]) for i in names[:4]) + (
            ", ..." if len(names) > 4 else ""
        )
        raise ModelError(f"{where}: nodes need each other's results: {listed}")
    return [nodes[i] for i in found]


def _cycle(waits: Sequence[Sequence[int]], remaining: set[int]) -> list[int]:
    """Return a cycle among the nodes of `remaining`, each of which waits for one of them."""
    path: list[int] = [min(remaining)]
    while (following := waits[path[-1]][0]) not in path:
        path.append(following)
    return path[path.index(following) :]


def _reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, also those that its bodies capture."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _free(attribute.g)


def _free(graph: Any) -> set[str]:
    """Return the names that a body reads and does not make."""
    own = {one.name for part in (graph.input, graph.initializer) for one in part}
    own |= {one.values.name for one in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in _reads(node)}
    read |= {one.name for one in graph.output}
    return read - own

"""ONNX models as graphs: a model's nodes are read, then put into a graph once types are known."""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.fileio import check_file, open_regular, resolve_inside
from glnn.core.types import MOST, Array, DType, Shape, TensorType
from glnn.errors import ModelError, ShapeError, UnsupportedOpError, first_line, shown
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.onnx.delegate import Delegate
from glnn.onnx.model_proto import ModelSource, package
from glnn.onnx.node import OnnxOperator
from glnn.onnx.numpy_nodes import WINDOWS
from glnn.onnx.operators import find
from glnn.onnx.operators.dtypes import CODES, dtype_of, type_of, type_proto
from glnn.onnx.schemas import Opsets, defaults, domain_of, function_of, opsets_of, schema_of
from glnn.onnx.subgraphs import (
    FunctionNode,
    IfNode,
    LoopNode,
    OnnxGraph,
    OnnxNode,
    SubgraphNode,
    function_body,
    inline_call,
    scan_node,
)

PACKED = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}
"""Numbers per byte of packed types."""
SPANS = ("offset", "length")
DIGITS = 18  # of an offset or a length
TYPES = "to", "dtype", "output_dtype"
"""Attributes that are dtypes. Only the first is required."""
MOST_DIMENSIONS = 32  # of an array, in any version of NumPy
MOST_DENSE = 1 << 22  # elements of a sparse tensor, zeros included,
DENSITY = 1000  # and that many more for each stored value


@dataclass(frozen=True)
class Tensors:
    """Reads the tensors of one model."""

    onnx: Any
    """The `onnx` package."""
    where: str
    """The model's name in errors."""
    folder: Path | None
    """The folder in which external data may be."""
    home: Path | None = None
    """The folder of the model's file once links are resolved; external data may be there, too."""

    def constants(self, graph: Any) -> dict[str, Value]:
        """Return the initialisers of a GraphProto by name."""
        result: dict[str, Value] = {}
        for tensor in graph.initializer:
            self._add_constant(result, tensor.name, self.array(tensor))
        for sparse in graph.sparse_initializer:
            self._add_constant(result, sparse.values.name, self._dense(sparse))
        return result

    def _add_constant(self, constants: dict[str, Value], name: str, array: Array) -> None:
        """Add a constant to `constants`. Raises ModelError where the name is in use."""
        if name in constants:
            raise ModelError(f"{self.where}: two initialisers are called {name!r}")
        constants[name] = _value(name, array)

    def array(self, tensor: Any) -> Array:
        """Return the numbers of a TensorProto."""
        what = f"{self.where}: tensor {tensor.name!r}"
        dtype, dims = dtype_of(tensor.data_type, what), tuple(tensor.dims)
        if any(dim < 0 for dim in dims) or prod(dims) > MOST:
            raise ModelError(f"{what}: its sizes must be from 0 to {MOST} together, got {dims}")
        if len(dims) > MOST_DIMENSIONS:
            raise ModelError(f"{what}: at most {MOST_DIMENSIONS} dimensions, got {len(dims)}")
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            return self._external(tensor, what)
        nbytes = _nbytes(dtype, dims)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != nbytes:
            got = len(tensor.raw_data)
            raise ModelError(f"{what}: {dims} {dtype.value} take {nbytes} bytes, got {got}")
        try:
            array = np.asarray(self.onnx.numpy_helper.to_array(tensor))
        except Exception as error:  # of many kinds
            raise ModelError(f"{what}: {first_line(error)}") from None
        if array.shape != dims:
            raise ModelError(f"{what}: its numbers are not as many as {dims} says")
        return array.astype(object) if array.dtype.kind in "SU" else array

    def _external(self, tensor: Any, what: str) -> Array:
        """Return the numbers of a TensorProto that refers to a file of external data."""
        entries_by_key = {one.key: one.value for one in tensor.external_data}
        dtype, dims = dtype_of(tensor.data_type, what), tuple(tensor.dims)
        if self.folder is None:
            raise ModelError(f"{what} is in a file, which a model given as bytes cannot name")
        if dtype is DType.object:
            raise ModelError(f"{what}: texts cannot be in a file of their own")
        location, nbytes = entries_by_key.get("location"), _nbytes(dtype, dims)
        path = resolve_inside(self.folder, self.folder / "model", location, self.home)
        check_file(path)
        offset, length = (
            self._byte_count(entries_by_key.get(key, "0"), what, key) for key in SPANS
        )
        if length not in (0, nbytes):
            raise ModelError(f"{what}: {dims} {dtype.value} take {nbytes} bytes, got {length}")
        try:
            with open(path, "rb", opener=open_regular) as file:
                file_size = os.fstat(file.fileno()).st_size
                if offset + nbytes > file_size:
                    fault = f"has {file_size} bytes, {nbytes} from {offset} on are wanted"
                    raise ModelError(f"{what}: {location} {fault}")
                file.seek(offset)
                content = np.fromfile(file, np.uint8, nbytes)
        except OSError as error:
            raise ModelError(f"{what}: {location} cannot be read: {error.strerror}") from None
        if dtype.value not in PACKED:
            stored_dtype = dtype.numpy.newbyteorder("<")
            result: Array = np.ndarray(dims, stored_dtype, content)
            return result
        inline_tensor = self.onnx.helper.make_tensor(
            tensor.name, tensor.data_type, dims, content.tobytes(), raw=True
        )
        return np.asarray(self.onnx.numpy_helper.to_array(inline_tensor))

    def _byte_count(self, text: str, what: str, key: str) -> int:
        """Return an offset or a length. Raises ModelError for what is no number."""
        if not text.isdecimal() or len(text) > DIGITS:
            raise ModelError(f"{what}: {key} must be a number of bytes, got {shown(text)}")
        return int(text)

    def _dense(self, sparse: Any) -> Array:
        """Return the numbers of a SparseTensorProto, zeros included."""
        what, dims = f"{self.where}: tensor {sparse.values.name!r}", tuple(sparse.dims)
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        limit = MOST_DENSE + DENSITY * values.size
        if any(dim < 0 for dim in dims) or prod(dims) > limit:
            raise ModelError(f"{what}: its sizes must be up to {limit} together, got {dims}")
        if len(dims) > MOST_DIMENSIONS:
            raise ModelError(f"{what}: at most {MOST_DIMENSIONS} dimensions, got {len(dims)}")
        sizes = (prod(dims),) if indices.ndim == 1 else dims
        expected = (values.size,) if indices.ndim == 1 else (values.size, len(dims))
        if indices.dtype != np.int64 or indices.shape != expected or values.ndim != 1:
            raise ModelError(f"{what}: its indices must be int64 {expected}, got {indices.shape}")
        positions = indices.reshape(values.size, len(sizes))
        if ((positions < 0) | (positions >= np.array(sizes, np.int64))).any():
            raise ModelError(f"{what}: an index is not within {dims}")
        dense = np.zeros(dims, values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        return dense

    def constant(self, node: Any, name: str) -> Value:
        """Return the value of a NodeProto of the operator Constant, called `name`."""
        if len(node.attribute) != 1:
            raise ModelError(f"{self.where}: the constant {name!r} must have one attribute")
        (attribute,) = node.attribute
        value = self.attribute(attribute)
        dtypes: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32}
        dtypes |= {"value_int": np.int64, "value_ints": np.int64}
        dtypes |= {"value_string": np.object_, "value_strings": np.object_}
        return _value(name, np.asarray(value, dtypes.get(attribute.name)))

    def is_set(self, attribute: Any) -> bool:
        """Return False for an optional dtype that is UNDEFINED, which is the same as absent."""
        kind, undefined = self.onnx.AttributeProto.INT, self.onnx.TensorProto.UNDEFINED
        is_undefined = attribute.type == kind and attribute.i == undefined
        return attribute.name not in TYPES[1:] or not is_undefined

    def attribute(self, attribute: Any) -> Any:
        """Return an attribute's value, as `OperatorCall.attributes` has it."""
        proto = self.onnx.AttributeProto
        if attribute.type == proto.TENSOR:
            return self.array(attribute.t)
        if attribute.type == proto.SPARSE_TENSOR:
            return self._dense(attribute.sparse_tensor)
        try:
            value = self.onnx.helper.get_attribute_value(attribute)
        except ValueError as error:
            fault = first_line(error)
            raise ModelError(f"{self.where}: attribute {attribute.name!r}: {fault}") from None
        if attribute.name in TYPES and isinstance(value, int):
            return dtype_of(value, f"{self.where}: attribute {attribute.name!r}")
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, (list, tuple)):
            return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        return value


def _value(name: str, array: Array) -> Value:
    return Value(name, TensorType.from_array(array), Kind.CONSTANT, array)


def _nbytes(dtype: DType, dims: Shape) -> int:
    """Return the bytes of a tensor."""
    count, packed = prod(dims), PACKED.get(dtype.value)
    return -(-count // packed) if packed else count * dtype.numpy.itemsize


@dataclass(frozen=True)
class ImportedModel:
    """A model's graph, with the names and types of its inputs and outputs."""

    graph: Graph
    inputs: Mapping[str, TensorType]
    """Types by name, as far as the model declares them."""
    outputs: Mapping[str, TensorType]
    """Types by name, as far as they are known."""
    name: str
    source: ModelSource
    """The ModelProto of the graph, without large tensors."""


def import_model(
    proto: Any, where: str, folder: Path | None = None, home: Path | None = None
) -> ImportedModel:
    """Return the graph of a ModelProto.

    where: the model's name in errors. folder, home: the folders in which external data may be; see
    `Tensors`. Raises ModelError, in one sentence, for every fault.
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
    reader = GraphReader(onnx, where, proto, Tensors(onnx, where, folder, home))
    opsets = opsets_of(onnx, where, proto.opset_import)
    if proto.ir_version < 3:
        opsets.setdefault("", 1)  # such models do not declare versions of operators
    onnx_graph = reader.read_graph(proto.graph, opsets)
    name = proto.graph.name or "model"
    try:
        declared = {
            one.name: type_of(one.type, f"{where}: {one.name!r}")
            for one in (*proto.graph.input, *proto.graph.output)
        }
    except ShapeError as error:  # of sizes that no tensor has
        raise ModelError(f"{where}: {error}") from None
    inputs = {input: declared[input] for input in onnx_graph.inputs}
    for input, type in inputs.items():
        if type.dtype is DType.object and not type.ranked and not type.holds:
            raise ModelError(f"{where}: the type of the input {input!r} is not said")
    builder = Builder(name)
    try:
        values = {input: builder.input(input, type) for input, type in inputs.items()}
        outputs = onnx_graph.put(builder, values)
        graph = builder.graph(outputs)
    except (ShapeError, UnsupportedOpError) as error:
        raise ModelError(f"{where}: {error}") from None
    for output, value in zip(onnx_graph.outputs, outputs, strict=True):
        declared_dtype, dtype = declared[output].dtype, value.type.dtype
        if DType.object not in (declared_dtype, dtype) and declared_dtype is not dtype:
            raise ModelError(
                f"{where}: the output {output!r} is said to be {declared_dtype.value}, "
                f"it is {dtype.value}"
            )
    results = {
        output: value.type if value.type.ranked else declared[output]
        for output, value in zip(onnx_graph.outputs, outputs, strict=True)
    }
    arrays = {n: v.data for n, v in onnx_graph.constants.items() if isinstance(v.data, np.ndarray)}
    return ImportedModel(graph, inputs, results, name, ModelSource.from_proto(proto, arrays))


MAX_NODES = 100_000  # of a model, with those of its functions once for each call
MAX_DEPTH = 12  # nested graphs


class GraphReader:
    """Reads the nodes of one model."""

    def __init__(self, onnx: Any, where: str, proto: Any, tensors: Tensors) -> None:
        """where: the model's name in errors. proto: the ModelProto."""
        self._onnx, self._where, self._tensors = onnx, where, tensors
        self._ir_version = proto.ir_version
        self._functions = {
            (domain_of(one.domain), one.name, one.overload): one for one in proto.functions
        }
        self._count = self._depth = 0
        self._calls: list[Any] = []  # the functions that are being inlined

    def read_graph(
        self, graph: Any, opsets: Opsets, outer_names: Collection[str] | None = None
    ) -> OnnxGraph:
        """Return a GraphProto's nodes.

        outer_names: names of the enclosing graph that a body may read; None for the model's own
        graph. Raises ModelError for a malformed graph.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ModelError(f"{self._where}: more than {MAX_DEPTH} graphs are in each other")
        constants = self._tensors.constants(graph)
        inputs = tuple(one.name for one in graph.input if one.name not in constants)
        for name, count in Counter(inputs).items():
            if not name or count > 1:
                raise ModelError(f"{self._where}: an input needs a name of its own, got {name!r}")
        outputs = tuple(one.name for one in graph.output)
        if outer_names is None and len(set(outputs)) < len(outputs):
            raise ModelError(f"{self._where}: two outputs are called alike")
        if not outputs:
            raise ModelError(f"{self._where}: the graph {graph.name!r} has no output")
        result = self._read_graph(graph, inputs, outputs, opsets, outer_names, constants)
        self._depth -= 1
        return result

    def _read_graph(
        self,
        graph: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        opsets: Opsets,
        outer_names: Collection[str] | None,
        constants: dict[str, Value],
    ) -> OnnxGraph:
        defined = {*inputs, *constants}
        state = _GraphState(
            constants, defined, defined | {*(outer_names or ())}, outer_names is not None
        )
        named_nodes = [
            (node.name or f"{node.op_type}_{number}", node)
            for number, node in enumerate(graph.node)
        ]
        for name, node in sort_nodes(named_nodes, self._where):
            self._add_node(state, node, name, opsets)
        for name in outputs:
            if name not in state.visible:
                raise ModelError(f"{self._where}: nothing makes the output {name!r}")
        name = graph.name or "graph"
        return OnnxGraph(name, inputs, constants, tuple(state.nodes), outputs)

    def _add_node(self, state: _GraphState, node: Any, name: str, opsets: Opsets) -> None:
        """Add `node` to the graph that is being read."""
        self._count += 1
        if self._count > MAX_NODES:
            raise ModelError(f"{self._where}: has more than {MAX_NODES} nodes")
        what, domain = f"{self._where}: node {name!r}", domain_of(node.domain)
        texts = (node.op_type, node.domain, node.overload, *node.input, *node.output)
        if not all(isinstance(text, str) for text in texts):
            raise ModelError(f"{what}: a name is no text of UTF-8")
        for tensor in node.input:
            if tensor and tensor not in state.visible:
                raise ModelError(f"{what} reads {tensor!r}, which no node makes")
        function = self._functions.get((domain, node.op_type, node.overload))
        if function is not None:
            self._inline(state, function, node, name, opsets)
            return
        schema = schema_of(self._onnx, what, node, opsets)
        converter = find(domain, node.op_type, opsets.get(domain, 1))
        if converter is None and schema is not None and schema.has_function and not _is_wide(node):
            function = function_of(self._onnx, schema, opsets)
            self._inline(state, function, node, name, opsets, defaults(schema))
            return
        results = tuple(node.output)
        if not any(results):
            return
        for tensor in filter(None, results):
            if tensor in state.defined:
                raise ModelError(f"{self._where}: the tensor {tensor!r} is made twice")
        if node.op_type == "Constant" and not domain:
            state.constants[results[0]] = self._tensors.constant(node, results[0])
        else:
            state.nodes.append(self._read_node(state, node, name, opsets, schema))
        state.defined.update(filter(None, results))
        state.visible.update(filter(None, results))

    def _inline(
        self,
        state: _GraphState,
        function: Any,
        node: Any,
        name: str,
        opsets: Opsets,
        defaults: Iterable[Any] = (),
    ) -> None:
        """Replace `node`, a call of `function`, by the function's nodes.

        defaults: AttributeProtos of attributes that the node may leave out.
        """
        what = f"{self._where}: node {name!r}"
        if any(function is one for one in self._calls):
            raise ModelError(f"{what} calls the function {function.name!r} inside itself")
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(f"{what} has more operands or results than {function.name!r}")
        imports = opsets_of(self._onnx, self._where, function.opset_import)
        self._calls.append(function)
        for inlined in inline_call(self._onnx, function, node, defaults, name):
            self._add_node(state, inlined, inlined.name, {**opsets, **imports})
        self._calls.pop()

    def _read_node(
        self, state: _GraphState, node: Any, name: str, opsets: Opsets, schema: Any
    ) -> OnnxNode:
        inputs, outputs = tuple(node.input), tuple(node.output)
        op_type = node.op_type if not node.domain else ""
        if op_type == "Identity" and state.is_body:
            return OnnxNode(name, None, inputs, outputs)
        graphs = {
            one.name: self.read_graph(one.g, opsets, state.visible)
            for one in node.attribute
            if one.HasField("g")
        }
        if op_type in ("If", "Loop", "Scan"):
            what = f"{self._where}: node {name!r}"
            operator = self._control(node, op_type, what, opsets, graphs)
            return OnnxNode(name, operator, (*inputs, *operator.free), outputs)
        delegate = self._delegate(node, opsets)
        domain = domain_of(node.domain)
        converter = find(domain, node.op_type, opsets.get(domain, 1))
        if (converter is None or graphs) and schema and schema.has_context_dependent_function:
            free = tuple(
                dict.fromkeys(n for onnx_graph in graphs.values() for n in onnx_graph.free)
            )

            def body(types: Types) -> OnnxGraph:
                return self._function_body(schema, node, opsets, types, free)

            function = FunctionNode(node.op_type, body, free, delegate)
            return OnnxNode(name, function, (*inputs, *free), outputs)
        version, used = opsets.get(domain, 1), tuple(map(bool, outputs))
        attributes = self._attributes(node)
        if converter is not None and converter.signature is not None:
            attributes = {**converter.signature.defaults, **attributes}
        single = OnnxOperator(node.op_type, version, attributes, used, converter, delegate)
        return OnnxNode(name, single, inputs, outputs)

    def _delegate(self, node: Any, opsets: Opsets) -> Delegate:
        single = self._onnx.NodeProto()
        single.CopyFrom(node)
        for i, one in enumerate(node.input):
            single.input[i] = f"x{i}" if one else ""
        for i, one in enumerate(node.output):
            single.output[i] = f"y{i}" if one else ""
        domain = domain_of(node.domain)
        converter = find(domain, node.op_type, opsets.get(domain, 1))
        signature = None if converter is None else converter.signature
        return Delegate(single, opsets, self._ir_version, signature)

    def _function_body(
        self, schema: Any, node: Any, opsets: Opsets, types: Types, free: Collection[str]
    ) -> OnnxGraph:
        """Return the graph of the function that defines `node` in `schema`, for operand types.

        free: the names of the values that subgraphs of the node capture.
        """
        protos = [b"" if one is None else type_proto(one).SerializeToString() for one in types]
        versions = schema.context_dependent_function_opset_versions
        supported = [one for one in versions if one <= opsets.get(domain_of(node.domain), 1)]
        try:
            content = schema.get_context_dependent_function_with_opset_version(
                max(supported), node.SerializeToString(), protos
            )
            function = self._onnx.FunctionProto.FromString(content)
        except Exception as error:  # of many kinds
            raise ShapeError(f"{node.op_type}: {error}") from None
        nodes = function_body(self._onnx, function, node, defaults(schema))
        del function.node[:]
        function.node.extend(nodes)
        imports = opsets_of(self._onnx, self._where, function.opset_import)
        pairs = zip(function.output, node.output, strict=False)
        outputs = tuple(name for name, used in pairs if used)
        inputs = tuple(function.input)
        return self._read_graph(function, inputs, outputs, {**opsets, **imports}, free, {})

    def _control(
        self, node: Any, kind: str, what: str, opsets: Opsets, graphs: Mapping[str, OnnxGraph]
    ) -> SubgraphNode:
        """Return the operator of `node`, an If, Loop or Scan. graphs: its subgraphs by
        attribute.
        """
        used, count = tuple(map(bool, node.output)), len(node.input)
        attribute_names = ("then_branch", "else_branch") if kind == "If" else ("body",)
        if missing := [name for name in attribute_names if name not in graphs]:
            raise ModelError(f"{what}: {kind} has no graph {missing[0]!r}")
        subgraphs = tuple(graphs[name] for name in attribute_names)
        if kind == "Scan":
            attributes = self._attributes(node)
            try:
                return scan_node(subgraphs[0], count, used, opsets.get("", 1), attributes)
            except ShapeError as error:
                raise ModelError(f"{what}: {error}") from None
        if kind == "Loop":  # the last results may be left out
            used += (False,) * (len(subgraphs[0].outputs) - 1 - len(used))
        inputs, outputs = (0, len(used)) if kind == "If" else (count, len(used) + 1)
        for onnx_graph in subgraphs:
            if (len(onnx_graph.inputs), len(onnx_graph.outputs)) != (inputs, outputs):
                raise ModelError(
                    f"{what}: {onnx_graph.name!r} must have {inputs} inputs and {outputs} outputs, "
                    f"got {len(onnx_graph.inputs)} and {len(onnx_graph.outputs)}"
                )
        return IfNode(subgraphs, 1, used) if kind == "If" else LoopNode(subgraphs, count, used)

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of `node` that are no graphs, by name."""
        return {
            one.name: self._tensors.attribute(one)
            for one in node.attribute
            if not one.HasField("g") and self._tensors.is_set(one)
        }


def _is_wide(node: Any) -> bool:
    """Return True for a window in float64: ONNX's function computes it in float32."""
    codes = (one.i for one in node.attribute if one.name == "output_datatype")
    return node.op_type in WINDOWS and next(codes, 0) == CODES[DType.float64]


@dataclass
class _GraphState:
    """The names, constants and nodes of a graph that is being read."""

    constants: dict[str, Value]
    """Constants by name: the graph's and those of its nodes."""
    defined: set[str]
    """Names of its inputs, its constants and its nodes' results."""
    visible: set[str]
    """Names that the graph's nodes may read."""
    is_body: bool
    """True for the body of a node."""
    nodes: list[OnnxNode] = field(default_factory=list)


NamedNode = tuple[str, Any]
"""A node's name, and its NodeProto."""


def sort_nodes(nodes: Sequence[NamedNode], where: str) -> Sequence[NamedNode]:
    """Return the nodes in topological order; unchanged where they have one already.

    Of several nodes that are ready, the first in the file comes first. where: the model's name in
    errors. Raises ModelError for a cycle.
    """
    producer_of = {name: i for i, (_, node) in enumerate(nodes) for name in node.output if name}
    if not any(
        producer_of.get(name, -1) >= i for i, (_, n) in enumerate(nodes) for name in _reads(n)
    ):
        return nodes
    dependencies: list[set[int]] = []
    consumers: list[list[int]] = [[] for _ in nodes]
    for i, (_, node) in enumerate(nodes):
        dependencies.append({producer_of[name] for name in _reads(node) if name in producer_of})
        for producer in dependencies[i]:
            consumers[producer].append(i)
    ready = [i for i, producers in enumerate(dependencies) if not producers]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for consumer in consumers[index]:
            dependencies[consumer].remove(index)
            if not dependencies[consumer]:
                heapq.heappush(ready, consumer)
    if len(order) < len(nodes):
        cycle = _cycle(
            [sorted(indices) for indices in dependencies], set(range(len(nodes))) - {*order}
        )
        listed = ", ".join(repr(nodes[i][0]) for i in cycle[:4]) + (
            ", ..." if len(cycle) > 4 else ""
        )
        raise ModelError(f"{where}: nodes need each other's results: {listed}")
    return [nodes[i] for i in order]


def _cycle(dependencies: Sequence[Sequence[int]], remaining: set[int]) -> list[int]:
    """Return a cycle among the nodes of `remaining`, each of which depends on one of them."""
    path: list[int] = [min(remaining)]
    while (following := dependencies[path[-1]][0]) not in path:
        path.append(following)
    return path[path.index(following) :]


def _reads(node: Any) -> Iterator[str]:
    """Yield the names that a node reads, with those that its bodies capture."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _captured_names(attribute.g)


def _captured_names(graph: Any) -> set[str]:
    """Return the names that a body reads and does not define."""
    defined = {one.name for part in (graph.input, graph.initializer) for one in part}
    defined |= {one.values.name for one in graph.sparse_initializer}
    defined |= {name for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in _reads(node)}
    read |= {one.name for one in graph.output}
    return read - defined

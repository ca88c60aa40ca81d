"""An ONNX model as a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Kind, Value
from glnn.onnx.delegated import Delegate
from glnn.onnx.dtypes import dtype_of, type_of
from glnn.onnx.node import OnnxOperator
from glnn.onnx.reading import package
from glnn.onnx.source import Source
from glnn.onnx.table import find
from glnn.types import Array, TensorType

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""The operator sets whose operators are known."""


@dataclass(frozen=True)
class Imported:
    """A model's graph, and what it says of its results."""

    graph: Graph
    inputs: Mapping[str, TensorType]
    """By name, as far as the model says them."""
    outputs: Mapping[str, TensorType]
    """By name, as far as they are known."""
    name: str
    source: Source
    """What it was read from."""


def imported(proto: Any, where: str, folder: Path | None = None) -> Imported:
    """The graph of a ModelProto.

    where: the model's name in errors. folder: where files with tensors of its own may lie. Raises
    ModelError, in one sentence, for every fault.
    """
    onnx, given_proto = package(where), proto
    opsets = {_domain(one.domain): one.version for one in proto.opset_import}
    opsets.setdefault("", 1)
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception as error:
            raise ModelError(f"{where}: its functions cannot be taken in: {error}") from None
    importing = _Importing(onnx, where, opsets, proto.ir_version, folder)
    builder = Builder(proto.graph.name or "model")
    given, values = importing.begin(builder, proto.graph)
    outputs = importing.nodes(builder, proto.graph, values)
    graph = builder.graph(outputs)
    declared = {one.name: type_of(one.type, where) for one in proto.graph.output}
    results = {
        one.name: value.type if value.type.ranked else declared[one.name]
        for one, value in zip(proto.graph.output, outputs, strict=True)
    }
    known = {n: v.data for n, v in values.items() if isinstance(v.data, np.ndarray)}
    source = Source.of(given_proto, known)
    return Imported(graph, given, results, proto.graph.name or "model", source)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


@dataclass(frozen=True)
class _Importing:
    onnx: Any
    where: str
    opsets: Mapping[str, int]
    ir_version: int
    folder: Path | None

    def begin(self, builder: Builder, graph: Any) -> tuple[dict[str, TensorType], dict[str, Value]]:
        """The types of the graph's inputs, and the values of these and of its initialisers."""
        values = self.constants(graph)
        given: dict[str, TensorType] = {}
        for one in graph.input:
            if one.name in values:
                continue  # up to version 3 of the format initialisers are inputs, too
            type = type_of(one.type, f"{self.where}: input {one.name!r}")
            given[one.name] = type
            values[one.name] = builder.input(one.name, type)
        return given, values

    def constants(self, graph: Any) -> dict[str, Value]:
        """The initialisers by name."""
        arrays = {one.name: self.array(one) for one in graph.initializer}
        for sparse in graph.sparse_initializer:
            arrays[sparse.values.name] = self._dense(sparse)
        return {
            name: Value(name, TensorType.of(array), Kind.CONSTANT, array)
            for name, array in arrays.items()
        }

    def array(self, tensor: Any) -> Array:
        """A tensor's numbers."""
        what = f"{self.where}: tensor {tensor.name!r}"
        dtype_of(tensor.data_type, what)
        try:
            base = str(self.folder) if self.folder is not None else ""
            array = np.asarray(self.onnx.numpy_helper.to_array(tensor, base))
        except Exception as error:  # it raises many kinds
            raise ModelError(f"{what}: {error}") from None
        return array.astype(object) if array.dtype.kind in "SU" else array

    def _dense(self, sparse: Any) -> Array:
        values, at = self.array(sparse.values), self.array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        if at.ndim == 1:
            dense.reshape(-1)[at] = values
        else:
            dense[tuple(at.T)] = values
        return dense

    def nodes(self, builder: Builder, graph: Any, values: dict[str, Value]) -> list[Value]:
        """Put all nodes of `graph` into `builder`. values: what is there; added to. The outputs."""
        for number, node in enumerate(graph.node):
            self._node(builder, node, node.name or f"{node.op_type}_{number}", values)
        outputs = []
        for one in graph.output:
            if one.name not in values:
                raise ModelError(f"{self.where}: nothing makes the output {one.name!r}")
            outputs.append(values[one.name])
        return outputs

    def _node(self, builder: Builder, node: Any, name: str, values: dict[str, Value]) -> None:
        domain = _domain(node.domain)
        if domain not in DOMAINS:
            raise ModelError(
                f"{self.where}: node {name!r} is {node.op_type} of the operator set {domain!r}, "
                "which is not known"
            )
        for one in node.input:
            if one and one not in values:
                raise ModelError(
                    f"{self.where}: node {name!r} reads {one!r}, which nothing before it makes"
                )
        operands = [values[one] if one else None for one in node.input]
        while operands and operands[-1] is None:
            operands.pop()
        names = [one for one in node.output if one]
        try:
            found = self._results(builder, node, name, operands, names)
        except (ShapeError, UnsupportedOpError) as error:
            raise ModelError(f"{self.where}: node {name!r}: {error}") from None
        for one, value in zip(names, found, strict=True):
            if one in values:
                raise ModelError(f"{self.where}: the tensor {one!r} is made twice")
            values[one] = value

    def _results(
        self,
        builder: Builder,
        node: Any,
        name: str,
        operands: Sequence[Value | None],
        names: Sequence[str],
    ) -> Sequence[Value]:
        if node.op_type == "Constant" and not node.domain:
            return (self._constant(node, names[0]),)
        operator = self.operator(node)
        return builder.add(operator, *operands, name=name, outputs=names)

    def _constant(self, node: Any, name: str) -> Value:
        (attribute,) = node.attribute
        value = self._attribute(attribute)
        kinds = {"value_float": np.float32, "value_floats": np.float32}
        kinds |= {"value_int": np.int64, "value_ints": np.int64}
        kinds |= {"value_string": np.object_, "value_strings": np.object_}
        array = np.asarray(value, kinds.get(attribute.name))
        return Value(name, TensorType.of(array), Kind.CONSTANT, array)

    def operator(self, node: Any) -> OnnxOperator:
        """What computes `node`."""
        domain = _domain(node.domain)
        version = self.opsets.get(domain, 1)
        attributes = {one.name: self._attribute(one) for one in node.attribute}
        single = self.onnx.NodeProto()
        single.CopyFrom(node)
        for i, one in enumerate(node.input):
            single.input[i] = f"x{i}" if one else ""
        for i, one in enumerate(node.output):
            single.output[i] = f"y{i}" if one else ""
        return OnnxOperator(
            node.op_type,
            version,
            attributes,
            tuple(map(bool, node.output)),
            find(domain, node.op_type, version),
            Delegate(single, self.opsets, self.ir_version),
        )

    def _attribute(self, attribute: Any) -> Any:
        """An attribute's value, as `Call` has it."""
        proto = self.onnx.AttributeProto
        if attribute.type == proto.TENSOR:
            return self.array(attribute.t)
        if attribute.type == proto.SPARSE_TENSOR:
            return self._dense(attribute.sparse_tensor)
        value = self.onnx.helper.get_attribute_value(attribute)
        if attribute.name in ("to", "dtype", "output_dtype") and isinstance(value, int) and value:
            return dtype_of(value, f"{self.where}: attribute {attribute.name!r}")
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, (list, tuple)):
            return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        return value

"""Models of .onnx files, their weights as variables, and writing of .onnx files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

from glnn.core.cached_property import cached_property
from glnn.core.fileio import atomic_write
from glnn.core.tensor_info import TensorInfo, show
from glnn.core.types import UNKNOWN, Array, DType, TensorType, as_one_of, of_tensor, to_float32
from glnn.errors import ModelError, ShapeError, UnsupportedOpError, fault, shown
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.graph import Node as GraphNode
from glnn.graph.passes.inlining import expand_composites
from glnn.model.formats import check_metadata, find
from glnn.model.model import Model, ModelParameters
from glnn.model.node import Content, Node
from glnn.model.onnx_layers import convert_to_layers
from glnn.model.summary import InferredTypes, LayerSummary, node_summaries
from glnn.onnx.export import TABLE
from glnn.onnx.export.writer import LayerWriter, Writer
from glnn.onnx.importing import ImportedModel, import_model
from glnn.onnx.model_proto import ModelSource, package, parse, read
from glnn.onnx.node import OnnxOperator
from glnn.onnx.operators.dtypes import CODES
from glnn.version import VERSION

STATISTICS = {"BatchNormalization": slice(3, 5)}
"""Operands that are running statistics, the mean and the variance, by operator."""


@dataclass(frozen=True, eq=False)
class ConstantVariable:
    """A constant with the interface of a `graph.Variable`."""

    array: Array
    """The array."""
    revision: int = 0
    """Always 0: it is never assigned."""

    @property
    def type(self) -> TensorType:
        """The array's type."""
        return TensorType.from_array(self.array)

    def read(self) -> Array:
        """Return the array."""
        return self.array


def weights(graph: Graph) -> tuple[Value, ...]:
    """Return the constants of `graph` that training changes, in the order in which nodes read them.

    They are float32 and have at least one dimension: a single number is an epsilon, a bound or a
    scale of the model's author. Running statistics are left out, and constants that decide sizes.
    """
    result: dict[Value, None] = {}
    excluded: set[Value] = set()
    for node in graph.nodes:
        result |= dict.fromkeys(value for value in node.reads if _is_trainable(value))
        excluded.update(_statistics(node))
        shape_inputs = node.operator.all_shape_inputs
        named = node.operator.named(node.inputs) if shape_inputs else {}
        excluded.update(named[name] for name in shape_inputs if name in named)
    return tuple(value for value in result if value not in excluded)


def with_variables(graph: Graph, constants: tuple[Value, ...]) -> Graph:
    """Return `graph` with variables of the same names in place of `constants`."""
    variables: Mapping[Value | None, Value] = {
        value: replace(value, kind=Kind.VARIABLE, data=ConstantVariable(value.data))  # type: ignore[arg-type]
        for value in constants
    }
    nodes = tuple(
        replace(node, inputs=tuple(variables.get(value, value) for value in node.inputs))
        for node in graph.nodes
    )
    outputs = tuple(variables.get(value, value) for value in graph.outputs)
    return Graph(nodes, graph.inputs, outputs, graph.name)


def _is_trainable(value: Value) -> bool:
    plain = value.kind is Kind.CONSTANT and value.type.dtype is DType.float32
    return plain and len(value.type.dims) > 0


def _statistics(node: GraphNode) -> tuple[Value, ...]:
    kind = node.operator.op_type if isinstance(node.operator, OnnxOperator) else ""
    return tuple(v for v in node.inputs[STATISTICS.get(kind, slice(0))] if v is not None)


@dataclass(frozen=True, eq=False)
class GraphModel(Model):
    """A model that was imported as a graph of operators, without layers."""

    nodes: tuple[Node, ...] = ()
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[str, ...] = ()
    name: str = "model"
    imported_graph: Graph | None = None
    """The graph."""
    types: Mapping[str, TensorType] = field(default_factory=dict)
    """Types of the outputs; sizes may be unknown."""
    source: ModelSource | None = None
    """The ModelProto that it was read from."""
    passed: frozenset[str] = frozenset()
    """Names in a state dict that are skipped, as nothing computes with them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", check_metadata(self.metadata, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        model = (self.nodes, self.inputs, self.outputs, self.name, self.metadata)
        return GraphModel, (*model, self.imported_graph, self.types, self.source, self.passed)

    @cached_property
    def graph(self) -> Graph:
        assert self.imported_graph is not None
        return self.imported_graph

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write the model to `path`: see `Model.save`.

        An .onnx file has the content of the one that was read, with this model's `metadata`. Any
        other format needs a layer of glnn's for each node; a ModelError names the first node
        without one.
        """
        assert self.source is not None
        if find(path, format) != "onnx":
            convert_to_layers(self).save(path, format)
            return
        check_size(str(path), self.source.nbytes)
        model = self.source.model(str(path))
        describe(model, self.metadata)
        write(Path(path), model)

    def begin(self, seed: int) -> None:
        raise ModelError(f"{self.name}: an .onnx file does not say how its parameters begin")

    def parameters(self) -> dict[str, Array]:
        """Return every constant that a node reads, by its name in the file; not those of bodies."""
        read = (value for node in self.graph.nodes for value in node.reads)
        return {v.name: v.data for v in read if v.kind is Kind.CONSTANT}  # type: ignore[misc]

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the parameters that training changes: see `weights`. Those inside functions
        of the file are left out.
        """
        return tuple(value.name for value in self._weights)

    @cached_property
    def _weights(self) -> tuple[Value, ...]:
        assert self.source is not None
        names = self.source.names
        return tuple(value for value in weights(self.graph) if value.name in names)

    def batched(self, batch: int, training: object = None) -> Graph:
        """Return the graph for `batch` samples, whose trainable parameters are variables.

        Nodes compute as at inference, also with `training`: normalisations use the statistics of
        the file. Raises ShapeError where the model does not take so many samples, ModelError where
        sizes other than the batch are open, there is nothing to train, or the trained model could
        not be saved.
        """
        constants = self._weights
        if training is not None:
            if not constants:
                dtypes = (f": {n!r} is {a.dtype}" for n, a in self.parameters().items() if a.ndim)
                raise ModelError(f"{self.name}: there is no parameter to train{next(dtypes, '')}")
            assert self.source is not None
            self.source.check(self.name)  # before training, not in `with_parameters` after it
        types = {}
        for info in self.inputs:
            if any(isinstance(size, str) for size in info.shape[1:]):
                what = f"{self.name}: input {info.name!r}"
                raise ModelError(f"{what} must have known sizes, got {show(info.shape)}")
            shape = (batch, *info.with_batch(batch)[1:])
            info.check(shape)
            types[info.name] = TensorType(shape, info.dtype)
        return expand_composites(with_variables(self.graph, constants), types)

    def state_dict(self) -> dict[str, Array]:
        assert self.source is not None
        names = self.source.initializers
        return {name: array for name, array in self.parameters().items() if name in names}

    def _model_parameters(self) -> ModelParameters:
        former = self.state_dict()
        shapes = {name: array.shape for name, array in former.items()}

        def convert(name: str, what: str, value: Any) -> Array:
            dtype = former[name].dtype
            if dtype.kind == "f":
                return to_float32(what, value).astype(dtype)
            return as_one_of(what, of_tensor(what, value), (DType(dtype.name),))

        return ModelParameters(self.name, shapes, {}, convert, self.passed)

    def hold(self) -> None:
        vars(self)["_held"] = True

    def _assign(self, arrays: Mapping[str, Array]) -> None:
        if "_held" in vars(self):
            raise ModelError(
                f"{self.name}: its session keeps the numbers of the .onnx file; others are for "
                "what glnn.load gives, before a session is made of that"
            )
        result = self.with_parameters(arrays)
        for name in ("graph", "tensors", "_weights"):
            vars(self).pop(name, None)
        self._calls.clear()
        vars(self).update(
            imported_graph=result.imported_graph, types=result.types, source=result.source
        )

    def with_parameters(self, arrays: Mapping[str, Array]) -> GraphModel:
        """Return the model with other arrays for some parameters, of the same shapes and types.

        arrays: by the names of `parameters`. An .onnx file that the result is saved to has them in
        place of the former ones. Raises ModelError for an unknown name, and for a parameter inside
        a function of the file; ShapeError for an array that does not fit.
        """
        assert self.source is not None
        known = self.parameters()
        parameters: dict[str, Array] = {}
        for name, array in arrays.items():
            if name not in known:
                near = ", ".join(map(repr, get_close_matches(str(name), known, 3) or known))
                raise ModelError(f"{self.name} has no parameter {shown(name)}: it has {near}")
            former = known[name]
            parameters[name] = as_one_of(f"parameter {name!r}", array, (DType.from_array(former),))
            if (shape := parameters[name].shape) != former.shape:
                raise ShapeError(f"parameter {name!r} must have shape {former.shape}, got {shape}")
        proto = self.source.with_arrays(parameters, self.name).model(self.name)
        return replace(
            _imported_model(import_model(proto, self.name), self.name), metadata=self.metadata
        )

    def _layer_summaries(self, types: InferredTypes) -> tuple[LayerSummary, ...]:
        named = self.source.initializers if self.source else ()
        return node_summaries(self.graph, named, types)

    def _trainable_count(self) -> int:
        return sum(prod(value.type.shape) for value in self._weights) if self.source else 0

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        values = {v.name: v.type for node in self.graph.nodes for v in node.outputs}
        types = {**{i.name: i.tensor_type for i in self.inputs}, **values}
        return {
            name: TensorInfo.from_type(name, t, True) for name, t in {**types, **self.types}.items()
        }


def load(path: Path) -> GraphModel:
    """Load the model in an .onnx file. Raises ModelError, in one sentence, for every fault."""
    proto = read(path)
    return _imported_model(
        import_model(proto, str(path), path.parent, path.resolve().parent), str(path)
    )


def load_bytes(content: bytes) -> GraphModel:
    """Load the model in `content`, that of an .onnx file, which must not refer to other files."""
    where = "model given as bytes"
    return _imported_model(import_model(parse(content, where), where), where)


def model_from_proto(proto: Any, where: str) -> GraphModel:
    """Return the model of a ModelProto without external files. where: its name in errors."""
    return _imported_model(import_model(proto, where), where)


def _imported_model(imported: ImportedModel, where: str) -> GraphModel:
    try:
        inputs = tuple(
            TensorInfo.from_type(name, type, True) for name, type in imported.inputs.items()
        )
        outputs = imported.outputs
        metadata = {one.key: one.value for one in imported.source.proto.metadata_props}
        names, graph, source = tuple(outputs), imported.graph, imported.source
        model = GraphModel((), inputs, names, imported.name, metadata, graph, outputs, source)
        _ = model.tensors  # checks the sizes
    except ShapeError as error:
        raise ModelError(f"{where}: {error}") from None
    return model


OPSET, IR = 21, 10
"""Versions of ONNX 1.16, of 2024, the oldest with GroupNormalization and Gelu as PyTorch's."""
MOST = (1 << 31) - (1 << 20)
"""The most bytes of weights: a protobuf message has fewer than 2^31, with all else in it."""


def save(path: Path, content: Content) -> None:
    """Write the .onnx file `path`: see `Model.save`."""
    write(path, message(content, str(path)))


def message(content: Content, where: str) -> Any:
    """Return the ModelProto of a model of layers.

    where: its name in errors. Raises ModelError for a layer that ONNX cannot express.
    """
    nodes, tensors = content.nodes, content.tensors
    check_size(where, 4 * sum(prod(n) for node in nodes for n in node.layer.shapes.values()))
    writer = Writer(package(where, "writing"), set(tensors))
    types = {name: TensorType(info.shape, info.dtype) for name, info in tensors.items()}
    try:
        for node in nodes:
            _write(writer, node, types)
        inputs = [_info(writer.onnx, info) for info in content.inputs]
        outputs = [_info(writer.onnx, tensors[name]) for name in content.outputs]
        graph = writer.onnx.helper.make_graph(
            writer.nodes, content.name, inputs, outputs, writer.weights
        )
        opset = writer.onnx.helper.make_opsetid("", OPSET)
        model = writer.onnx.helper.make_model(graph, opset_imports=[opset], ir_version=IR)
    except UnicodeEncodeError as error:  # half of a surrogate pair in a name
        raise ModelError(f"{where}: a name that ONNX cannot have: {error}") from None
    model.producer_name, model.producer_version = "glnn", VERSION
    describe(model, content.metadata)
    model.doc_string = f"{len(nodes)} layers; the last node of each has its name and arguments"
    return model


def describe(model: Any, metadata: Mapping[str, str]) -> None:
    """Replace the metadata of a ModelProto. Raises ModelError for texts UTF-8 cannot encode."""
    del model.metadata_props[:]
    for key, text in metadata.items():
        try:
            model.metadata_props.add(key=key, value=text)
        except (UnicodeEncodeError, ValueError):  # half of a surrogate pair
            raise ModelError(f"metadata {key!r:.60}: a text that ONNX cannot have") from None


def write(path: Path, model: Any) -> None:
    """Write a ModelProto, whole or not at all. Raises ModelError where it cannot be written."""
    try:
        content = model.SerializeToString()
        with atomic_write(path) as stream:
            stream.write(content)
    except (OSError, ValueError) as error:  # a full disk, a path that holds a zero byte
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None


def check_size(where: str, nbytes: int) -> None:
    """Raise ModelError where weights of `nbytes` are too large for an .onnx file."""
    if nbytes > MOST:
        raise ModelError(
            f"{where}: its weights are {nbytes} bytes, an .onnx file holds {MOST}: "
            "save a .json file"
        )


def _write(writer: Writer, node: Node, types: Mapping[str, TensorType]) -> None:
    """Write the nodes that compute the layer of `node`."""
    kind = type(node.layer)
    if kind not in TABLE:
        raise ModelError(f"layer {node.name!r}: {kind.__name__} cannot be written as ONNX")
    if not node.output:
        raise ModelError(f"layer {node.name!r}: ONNX takes no tensor that is called ''")
    operand_types = tuple(types[name] for name in node.inputs)
    layer_writer = LayerWriter(
        writer, node.layer, node.name, node.output, operand_types, types[node.output]
    )
    try:
        results = TABLE[kind](layer_writer, *node.inputs)
        layer_writer.finish(*((results,) if isinstance(results, str) else results))
    except UnsupportedOpError as error:
        what = f"layer {node.name!r}: {kind.__name__}"
        raise ModelError(f"{what} cannot be written as ONNX: {error}") from None


def _info(onnx: Any, info: TensorInfo) -> Any:
    dims = [None if dim == UNKNOWN else dim for dim in info.shape]
    return onnx.helper.make_tensor_value_info(info.name, CODES[info.dtype], dims)

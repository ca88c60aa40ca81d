"""Reading the ModelProto of an .onnx file, and keeping it so that it can be written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glnn.core import fileio
from glnn.core.types import Array
from glnn.errors import ModelError, extra
from glnn.onnx.schemas import domain_of

MOST = 2**31 - 1  # bytes of a .onnx file: protobuf reads no more


def package(where: str, doing: str = "reading") -> Any:
    """Return the `onnx` package. Raises ModelError where it is not installed.

    where, doing: for the error, what the package is needed for.
    """
    try:
        import onnx
    except ImportError:
        needs = f"{doing} ONNX needs the package onnx: {extra('onnx')}"
        raise ModelError(f"{where}: {needs}") from None
    return onnx


def read(path: Path) -> Any:
    """Return the ModelProto in the file."""
    fileio.check_file(path)
    try:
        content = fileio.read_bytes(path, MOST)
    except (OSError, ValueError) as error:
        fault = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path}: cannot be read: {fault}") from None
    return parse(content, str(path))


def parse(content: bytes, where: str) -> Any:
    """Return the ModelProto that `content` encodes. where: its name in errors."""
    onnx = package(where)
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # of protobuf's own classes
        raise ModelError(f"{where}: not an ONNX model: {error}") from None
    if not model.HasField("graph"):
        raise ModelError(f"{where}: not an ONNX model: it has no graph")
    return model


LARGE = 1024  # bytes: a tensor of so many is removed from the ModelProto


@dataclass(frozen=True, eq=False)
class ModelSource:
    """A ModelProto without the large tensors, which are arrays of the graph's constants."""

    proto: Any
    arrays: Mapping[str, Array]
    """The initialisers of which `proto` has the name only."""

    @classmethod
    def from_proto(cls, proto: Any, arrays: Mapping[str, Array]) -> ModelSource:
        """Return the source of a ModelProto. arrays: by name, at least those of all
        initialisers.
        """
        graph = _without(proto.graph, "initializer")
        large: dict[str, Array] = {}
        for tensor in proto.graph.initializer:
            array = arrays[tensor.name]
            is_external = tensor.data_location == tensor.EXTERNAL
            if (array.nbytes < LARGE and not is_external) or array.dtype.hasobject:
                graph.initializer.append(tensor)
            else:
                attributes = {"doc_string": tensor.doc_string} if tensor.doc_string else {}
                graph.initializer.add(name=tensor.name, **attributes)
                large[tensor.name] = array
        model = _without(proto, "graph")
        model.graph.CopyFrom(graph)
        return cls(model, large)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def with_arrays(self, arrays: Mapping[str, Array], where: str) -> ModelSource:
        """Return the source with new numbers in constants of the model's own graph.

        arrays: by the names of initialisers or of results of Constant nodes. Sparse initialisers
        become dense. where: the model's name in errors. Raises ModelError for any other name.
        """
        onnx = package(where, "writing")
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        large = {name: arrays.get(name, array) for name, array in self.arrays.items()}
        messages = dict(_tensors(model.graph))
        for name in (name for name in arrays if name not in large):
            if name not in messages:
                raise ModelError(
                    f"{where}: the tensor {name!r} is made inside a function, which is not changed"
                )
            _store(messages[name], onnx.numpy_helper.from_array(arrays[name], name), model.graph)
        return ModelSource(model, large)

    def model(self, where: str) -> Any:
        """Return the ModelProto with all its tensors. where: the file's name in errors.

        Raises ModelError where a tensor is in a file of external data.
        """
        self.check(where)
        onnx = package(where, "writing")
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        for tensor in model.graph.initializer:
            if tensor.name in self.arrays:
                full_tensor = onnx.numpy_helper.from_array(self.arrays[tensor.name], tensor.name)
                tensor.MergeFrom(full_tensor)
        return model

    def check(self, where: str) -> None:
        """Raise ModelError where a tensor is in a file of external data."""
        external = package(where, "writing").TensorProto.EXTERNAL
        for tensor in _messages(self.proto):
            if getattr(tensor, "data_location", 0) == external:
                raise ModelError(f"{where}: the tensor {tensor.name!r} lies in a file of its own")

    @property
    def names(self) -> frozenset[str]:
        """The constants whose numbers `with_arrays` replaces."""
        return frozenset(name for name, _ in _tensors(self.proto.graph))

    @property
    def initializers(self) -> frozenset[str]:
        """The names of constants that are initialisers, not results of nodes."""
        graph = self.proto.graph
        dense = (tensor.name for tensor in graph.initializer)
        return frozenset([*dense, *(sparse.values.name for sparse in graph.sparse_initializer)])


def _tensors(graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield the protos that hold a GraphProto's constants, with the constants' names."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    yield from ((sparse.values.name, sparse) for sparse in graph.sparse_initializer)
    for node in graph.node:
        if node.op_type == "Constant" and domain_of(node.domain) == "":
            yield node.output[0], node


def _store(message: Any, tensor: Any, graph: Any) -> None:
    """Replace the numbers of `message`, which is one of `_tensors`, by those of `tensor`."""
    kind = message.DESCRIPTOR.name
    if kind == "NodeProto":
        del message.attribute[:]
        attribute = message.attribute.add(name="value")
        attribute.type = attribute.TENSOR
        attribute.t.CopyFrom(tensor)
    elif kind == "SparseTensorProto":
        graph.sparse_initializer.remove(message)
        graph.initializer.append(tensor)
    else:
        tensor.doc_string = message.doc_string
        message.CopyFrom(tensor)


def _messages(message: Any) -> Iterator[Any]:
    """Yield a message and all messages nested in it."""
    yield message
    for _, value in message.ListFields():
        children = [value] if hasattr(value, "ListFields") else value
        if not isinstance(children, (str, bytes, int, float)) and hasattr(
            children[0], "ListFields"
        ):
            for child in children:
                yield from _messages(child)


def _without(message: Any, name: str) -> Any:
    """Return a copy of `message` without its field `name`."""
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name == name:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).MergeFrom(value)
    return copy

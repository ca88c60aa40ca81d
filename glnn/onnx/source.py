"""What a model was read from, kept so that it can be written again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from glnn.errors import ModelError
from glnn.onnx.reading import package
from glnn.types import Array

LARGE = 1024  # bytes of a tensor from which on it is not kept twice


@dataclass(frozen=True, eq=False)
class Source:
    """A ModelProto without the large tensors, which the graph has as arrays."""

    proto: Any
    arrays: Mapping[str, Array]
    """The tensors that `proto` has as names only."""

    @classmethod
    def of(cls, proto: Any, arrays: Mapping[str, Array]) -> Source:
        """arrays: those of all initialisers, and others, by name."""
        graph = _without(proto.graph, "initializer")
        large: dict[str, Array] = {}
        for tensor in proto.graph.initializer:
            array = arrays[tensor.name]
            if array.nbytes < LARGE or array.dtype.hasobject:
                graph.initializer.append(tensor)
            else:
                said = {"doc_string": tensor.doc_string} if tensor.doc_string else {}
                graph.initializer.add(name=tensor.name, **said)
                large[tensor.name] = array
        model = _without(proto, "graph")
        model.graph.CopyFrom(graph)
        return cls(model, large)

    @property
    def nbytes(self) -> int:
        """Of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def model(self, where: str) -> Any:
        """The whole ModelProto, all tensors in it. where: what errors call the file.

        Raises ModelError where there is a tensor in a file that the model was read beside.
        """
        onnx = package(where, "writing")
        model = onnx.ModelProto()
        model.CopyFrom(self.proto)
        for tensor in model.graph.initializer:
            if tensor.name in self.arrays:
                whole = onnx.numpy_helper.from_array(self.arrays[tensor.name], tensor.name)
                tensor.MergeFrom(whole)
        for tensor in _messages(model):
            if getattr(tensor, "data_location", 0) == onnx.TensorProto.EXTERNAL:
                raise ModelError(f"{where}: the tensor {tensor.name!r} lies in a file of its own")
        return model


def _messages(message: Any) -> Iterator[Any]:
    """`message` and all that are in it."""
    yield message
    for _, value in message.ListFields():
        listed = [value] if hasattr(value, "ListFields") else value
        if not isinstance(listed, (str, bytes, int, float)) and hasattr(listed[0], "ListFields"):
            for one in listed:
                yield from _messages(one)


def _without(message: Any, name: str) -> Any:
    """A copy of `message` but for its field of that name."""
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name == name:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).MergeFrom(value)
    return copy

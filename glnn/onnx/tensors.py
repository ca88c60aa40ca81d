"""The tensors and attributes of an ONNX model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError
from glnn.graph.graph import Kind, Value
from glnn.onnx.dtypes import dtype_of
from glnn.types import Array, TensorType


@dataclass(frozen=True)
class Tensors:
    """Reads the tensors of one model."""

    onnx: Any
    """The package."""
    where: str
    """The model's name in errors."""
    folder: Path | None
    """Where its files may lie."""

    def constants(self, graph: Any) -> dict[str, Value]:
        """The initialisers of a GraphProto by name."""
        found: dict[str, Value] = {}
        for one in graph.initializer:
            self._new(found, one.name, self.array(one))
        for sparse in graph.sparse_initializer:
            self._new(found, sparse.values.name, self._dense(sparse))
        return found

    def _new(self, found: dict[str, Value], name: str, array: Array) -> None:
        if name in found:
            raise ModelError(f"{self.where}: two initialisers are called {name!r}")
        found[name] = _value(name, array)

    def array(self, tensor: Any) -> Array:
        """The numbers of a TensorProto."""
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

    def constant(self, node: Any, name: str) -> Value:
        """The value, called `name`, of a NodeProto of the operator Constant."""
        if len(node.attribute) != 1:
            raise ModelError(f"{self.where}: the constant {name!r} must have one attribute")
        (attribute,) = node.attribute
        value = self.attribute(attribute)
        kinds: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32}
        kinds |= {"value_int": np.int64, "value_ints": np.int64}
        kinds |= {"value_string": np.object_, "value_strings": np.object_}
        return _value(name, np.asarray(value, kinds.get(attribute.name)))

    def attribute(self, attribute: Any) -> Any:
        """An attribute's value, as `Call` has it."""
        proto = self.onnx.AttributeProto
        if attribute.type == proto.TENSOR:
            return self.array(attribute.t)
        if attribute.type == proto.SPARSE_TENSOR:
            return self._dense(attribute.sparse_tensor)
        try:
            value = self.onnx.helper.get_attribute_value(attribute)
        except ValueError as error:
            raise ModelError(f"{self.where}: attribute {attribute.name!r}: {error}") from None
        if attribute.name in ("to", "dtype", "output_dtype") and isinstance(value, int) and value:
            return dtype_of(value, f"{self.where}: attribute {attribute.name!r}")
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, (list, tuple)):
            return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
        return value


def _value(name: str, array: Array) -> Value:
    return Value(name, TensorType.of(array), Kind.CONSTANT, array)

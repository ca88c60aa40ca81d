"""The tensors and attributes of an ONNX model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from glnn.errors import ModelError, first_line, shown
from glnn.fileio import check_file, open_regular, resolve_inside
from glnn.graph.graph import Kind, Value
from glnn.onnx.operators.dtypes import dtype_of
from glnn.types import MOST, Array, DType, Shape, TensorType

PACKED = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}
"""Numbers per byte, of types that are packed."""
SPANS = ("offset", "length")
DIGITS = 18  # of an offset
TYPES = "to", "dtype", "output_dtype"
"""Attributes that are types of numbers, first the one that must be said."""
MOST_DIMENSIONS = 32  # of an array of NumPy's, whichever version
MOST_DENSE = 1 << 22  # numbers of a sparse tensor, those that are 0 too, and for each that is not:
DENSITY = 1000


@dataclass(frozen=True)
class Tensors:
    """Reads the tensors of one model."""

    onnx: Any
    """The package."""
    where: str
    """The model's name in errors."""
    folder: Path | None
    """The folder where the model's external files may lie."""
    home: Path | None = None
    """The folder where the model itself lies, behind its links; its files may lie there, too."""

    def constants(self, graph: Any) -> dict[str, Value]:
        """The initialisers of a GraphProto by name."""
        found: dict[str, Value] = {}
        for one in graph.initializer:
            self._new(found, one.name, self.array(one))
        for sparse in graph.sparse_initializer:
            self._new(found, sparse.values.name, self._dense(sparse))
        return found

    def _new(self, constants: dict[str, Value], name: str, array: Array) -> None:
        """Add a constant to `constants`. Raises ModelError where the name is in use."""
        if name in constants:
            raise ModelError(f"{self.where}: two initialisers are called {name!r}")
        constants[name] = _value(name, array)

    def array(self, tensor: Any) -> Array:
        """The numbers of a TensorProto."""
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
        except Exception as error:  # it raises many kinds
            raise ModelError(f"{what}: {first_line(error)}") from None
        if array.shape != dims:
            raise ModelError(f"{what}: its numbers are not as many as {dims} says")
        return array.astype(object) if array.dtype.kind in "SU" else array

    def _external(self, tensor: Any, what: str) -> Array:
        """The numbers of a TensorProto that are in a file beside the model's."""
        given = {one.key: one.value for one in tensor.external_data}
        dtype, dims = dtype_of(tensor.data_type, what), tuple(tensor.dims)
        if self.folder is None:
            raise ModelError(f"{what} is in a file, which a model given as bytes cannot name")
        if dtype is DType.object:
            raise ModelError(f"{what}: texts cannot be in a file of their own")
        location, nbytes = given.get("location"), _nbytes(dtype, dims)
        path = resolve_inside(self.folder, self.folder / "model", location, self.home)
        check_file(path)
        offset, length = (self._number(given.get(key, "0"), what, key) for key in SPANS)
        if length not in (0, nbytes):
            raise ModelError(f"{what}: {dims} {dtype.value} take {nbytes} bytes, got {length}")
        try:
            with open(path, "rb", opener=open_regular) as file:
                there = os.fstat(file.fileno()).st_size
                if offset + nbytes > there:
                    fault = f"has {there} bytes, {nbytes} from {offset} on are wanted"
                    raise ModelError(f"{what}: {location} {fault}")
                file.seek(offset)
                content = np.fromfile(file, np.uint8, nbytes)
        except OSError as error:
            raise ModelError(f"{what}: {location} cannot be read: {error.strerror}") from None
        if dtype.value not in PACKED:
            little = dtype.numpy.newbyteorder("<")
            found: Array = np.ndarray(dims, little, content)
            return found
        whole = self.onnx.helper.make_tensor(
            tensor.name, tensor.data_type, dims, content.tobytes(), raw=True
        )
        return np.asarray(self.onnx.numpy_helper.to_array(whole))

    def _number(self, text: str, what: str, key: str) -> int:
        """An offset or a length."""
        if not text.isdecimal() or len(text) > DIGITS:
            raise ModelError(f"{what}: {key} must be a number of bytes, got {shown(text)}")
        return int(text)

    def _dense(self, sparse: Any) -> Array:
        """The numbers of a SparseTensorProto, those that are 0 too."""
        what, dims = f"{self.where}: tensor {sparse.values.name!r}", tuple(sparse.dims)
        values, at = self.array(sparse.values), self.array(sparse.indices)
        most = MOST_DENSE + DENSITY * values.size
        if any(dim < 0 for dim in dims) or prod(dims) > most:
            raise ModelError(f"{what}: its sizes must be up to {most} together, got {dims}")
        if len(dims) > MOST_DIMENSIONS:
            raise ModelError(f"{what}: at most {MOST_DIMENSIONS} dimensions, got {len(dims)}")
        sizes = (prod(dims),) if at.ndim == 1 else dims
        wanted = (values.size,) if at.ndim == 1 else (values.size, len(dims))
        if at.dtype != np.int64 or at.shape != wanted or values.ndim != 1:
            raise ModelError(f"{what}: its indices must be int64 {wanted}, got {at.shape}")
        places = at.reshape(values.size, len(sizes))
        if ((places < 0) | (places >= np.array(sizes, np.int64))).any():
            raise ModelError(f"{what}: an index is not within {dims}")
        dense = np.zeros(dims, values.dtype)
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

    def is_said(self, attribute: Any) -> bool:
        """Return False for a type attribute that is UNDEFINED, which is as if it were left out."""
        kind, undefined = self.onnx.AttributeProto.INT, self.onnx.TensorProto.UNDEFINED
        left_out = attribute.type == kind and attribute.i == undefined
        return attribute.name not in TYPES[1:] or not left_out

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
    return Value(name, TensorType.of(array), Kind.CONSTANT, array)


def _nbytes(dtype: DType, dims: Shape) -> int:
    """Bytes of a tensor's numbers."""
    count, packed = prod(dims), PACKED.get(dtype.value)
    return -(-count // packed) if packed else count * dtype.numpy.itemsize

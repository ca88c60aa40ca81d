"""Cases of the ONNX backend test suite with another type in the place of float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def retyped(model: onnx.ModelProto, dtype: np.dtype[Any]) -> onnx.ModelProto | None:
    """`model` whose inputs, weights and tensors of attributes are `dtype`, none of them float32.

    None where ONNX does not have one of its operators for that type, or no tensor was float32.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    code = helper.np_dtype_to_tensor_dtype(dtype)
    if not sum([*_convert(found.graph, dtype, code)]):
        return None
    for value in found.graph.output:
        value.ClearField("type")
    try:
        inferred = shape_inference.infer_shapes(found, check_type=True, strict_mode=True)
    except Exception:  # it raises many kinds, for types that no operator takes
        return None
    types = {value.name: value.type for value in inferred.graph.value_info}
    types |= {v.name: v.type for v in (*inferred.graph.input, *inferred.graph.output)}
    types |= {
        t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in found.graph.initializer
    }
    versions = {one.domain: one.version for one in model.opset_import}
    if not all(_takes(node, types, versions) for node in found.graph.node):
        return None
    for value in found.graph.output:
        if not types[value.name].WhichOneof("value"):
            return None
        value.type.CopyFrom(types[value.name])
    return found


def through(model: onnx.ModelProto, dtype: np.dtype[Any]) -> onnx.ModelProto:
    """`model` of float32 whose weights and tensors of attributes are rounded to `dtype`."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for tensor in _tensors(found.graph):
        if tensor.data_type == TensorProto.FLOAT:
            array = rounded_float32(numpy_helper.to_array(tensor), dtype)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return found


def rounded(array: Any, dtype: np.dtype[Any]) -> Any:
    """`array`, or arrays of a list, as `dtype` where they are float32."""
    if isinstance(array, list):
        return [rounded(one, dtype) for one in array]
    is_float = getattr(array, "dtype", None) == np.float32
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype) if is_float else array


def rounded_float32(array: Any, dtype: np.dtype[Any]) -> Any:
    """`array`, or arrays of a list, rounded to `dtype` where they are float32, which they stay."""
    if isinstance(array, list):
        return [rounded_float32(one, dtype) for one in array]
    is_float = getattr(array, "dtype", None) == np.float32
    return rounded(array, dtype).astype(np.float32) if is_float else array


def of_type(array: Any, type: onnx.TypeProto, dtype: np.dtype[Any]) -> Any:
    """`array`, or arrays of a list, rounded to `dtype` where `type` says so."""
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner = getattr(type, kind).elem_type
        several = isinstance(array, list) and kind == "sequence_type"
        return (
            [of_type(a, inner, dtype) for a in array] if several else of_type(array, inner, dtype)
        )
    code = helper.np_dtype_to_tensor_dtype(dtype)
    return rounded(array, dtype) if type.tensor_type.elem_type == code else array


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The weights of `graph` and of the graphs in it, and the tensors of their attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _convert(graph: onnx.GraphProto, dtype: np.dtype[Any], code: int) -> Iterator[bool]:
    """Whether each input and tensor of `graph` and of the graphs in it was float32; now `dtype`."""
    for tensor in _tensors(graph):
        yield _convert_tensor(tensor, dtype)
    yield from _convert_types(graph, code)


def _convert_types(graph: onnx.GraphProto, code: int) -> Iterator[bool]:
    """Whether each input of `graph` and of the graphs in it was float32; now of type `code`."""
    for value in graph.input:
        yield _convert_type(value.type, code)
    for value in graph.value_info:
        _convert_type(value.type, code)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                for value in attribute.g.output:
                    _convert_type(value.type, code)
                yield from _convert_types(attribute.g, code)


def _convert_type(type: onnx.TypeProto, code: int) -> bool:
    """Whether `type` was of float32 numbers; now it is of ONNX's type `code`."""
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _convert_type(getattr(type, kind).elem_type, code)
    if kind != "tensor_type" or type.tensor_type.elem_type != TensorProto.FLOAT:
        return False
    type.tensor_type.elem_type = code
    return True


def _convert_tensor(tensor: onnx.TensorProto, dtype: np.dtype[Any]) -> bool:
    """Whether `tensor` was float32; now it is `dtype`."""
    if tensor.data_type != TensorProto.FLOAT:
        return False
    array = rounded(numpy_helper.to_array(tensor), dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _takes(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], versions: Mapping[str, int]
) -> bool:
    """Whether ONNX says that `node` takes operands, and gives results, of their `types`."""
    try:
        schema = defs.get_schema(node.op_type, versions[node.domain], node.domain)
    except Exception:  # of no such operator
        return False
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    for names, formal in ((node.input, schema.inputs), (node.output, schema.outputs)):
        for name, parameter in zip(names, _spread(formal, len(names)), strict=False):
            said = allowed.get(parameter.type_str, [parameter.type_str])
            if name and name in types and _said(types[name]) not in said:
                return False
    return True


def _spread(formal: Iterable[Any], count: int) -> list[Any]:
    """A formal parameter for each of `count` operands: the last one may be for several."""
    found = list(formal)
    return found + found[-1:] * (count - len(found))


def _said(type: onnx.TypeProto) -> str:
    """`type` as schemas say it: tensor(double)."""
    kind = type.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return f"{kind[:-5].replace('sequence', 'seq')}({_said(getattr(type, kind).elem_type)})"
    name = TensorProto.DataType.Name(type.tensor_type.elem_type).lower()
    return f"tensor({name})"

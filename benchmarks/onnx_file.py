"""A sequential model as an ONNX file in memory, for the runtimes that read those."""

from __future__ import annotations

from typing import Any

import glnn
from glnn.errors import GlnnError
from glnn.graph.expression import Call
from glnn.graph.operator import Operator
from glnn.graph.operators import Conv2d, Flatten, Matmul, Pointwise, Pool2d, Softmax

OPSET, IR = 13, 7  # old enough for every runtime
FUNCTIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}
POOLS = {"max": "MaxPool", "average": "AveragePool"}


def serialised(model: glnn.Model, batch: int) -> bytes:
    """`model` for inputs of `batch` samples. Raises GlnnError without the `onnx` package, or where
    the model has an op that is not known here.
    """
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise GlnnError(f"ONNX files need the onnx package: {error}") from None
    (given,) = model.inputs
    (output,) = model.outputs
    nodes, weights = [], []
    for node in model.nodes:
        kind, attributes = _operator(node.layer.op)
        inputs = list(node.inputs)
        for name, array in node.layer.parameters.items():
            inputs.append(f"{node.name}.{name}")
            weights.append(numpy_helper.from_array(array, inputs[-1]))
        nodes.append(helper.make_node(kind, inputs, [node.output], node.name, **attributes))
    shapes = model.infer({given.name: given.with_batch(batch)})
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name])
        for name in (given.name, output)
    ]
    graph = helper.make_graph(nodes, model.name, ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", OPSET)
    whole = helper.make_model(graph, opset_imports=[opset], ir_version=IR)
    data: bytes = whole.SerializeToString()
    return data


def _operator(op: Operator) -> tuple[str, dict[str, Any]]:
    """ONNX's name of `op`, and its attributes."""
    if isinstance(op, Conv2d):
        return "Conv", {
            "strides": op.stride,
            "pads": op.padding,
            "dilations": op.dilation,
            "group": op.groups,
        }
    if isinstance(op, Matmul):
        return "Gemm", {"transB": 1}
    if isinstance(op, Pointwise) and isinstance(op.expr, Call) and op.expr.function in FUNCTIONS:
        return FUNCTIONS[op.expr.function], {}
    if isinstance(op, Pool2d) and op.kernel is not None and op == Pool2d(
        op.mode, op.kernel, op.stride, op.padding
    ):  # fmt: skip
        counted = {"count_include_pad": 1} if op.mode == "average" else {}
        return POOLS[op.mode], {
            "kernel_shape": op.kernel,
            "strides": op.stride,
            "pads": op.padding,
            **counted,
        }
    if isinstance(op, Flatten):
        return "Flatten", {}
    if isinstance(op, Softmax):
        return "Softmax", {"axis": op.axis}
    raise GlnnError(f"no ONNX operator for {op}")

"""Models of one node, held against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from glnn import onnx_backend

BACKENDS = ("cpu", "compute", "feedback")
IR_VERSION = 10


def node_model(
    op: str,
    operands: Sequence[Any],
    outputs: int = 1,
    *,
    opset: int = 22,
    known: Sequence[int] = (),
    kinds: Sequence[Any] = (),
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node. operands: arrays, None for what is left out.

    known: which of them are initialisers. kinds: the results' dtypes, float32 unless said.
    """
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(operands)]
    there = [(i, one) for i, one in enumerate(operands) if one is not None]
    inputs = [
        helper.make_tensor_value_info(
            f"x{i}", helper.np_dtype_to_tensor_dtype(one.dtype), one.shape
        )
        for i, one in there
        if i not in known
    ]
    results = [f"y{i}" for i in range(outputs)]
    types = [np.dtype(kind) for kind in kinds] or [np.dtype(np.float32)] * outputs
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        op,
        inputs,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), None)
            for name, kind in zip(results, types, strict=True)
        ],
        [onnx.numpy_helper.from_array(one, f"x{i}") for i, one in there if i in known],
    )
    opsets = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def runtime(model: onnx.ModelProto, operands: Sequence[Any]) -> list[Any]:
    """ONNX Runtime's results."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {one.name for one in session.get_inputs()}
    feeds = {f"x{i}": one for i, one in enumerate(operands) if f"x{i}" in wanted}
    return session.run(None, feeds)  # type: ignore[no-any-return]


def results_of(model: bytes, inputs: Sequence[Any]) -> list[Any]:
    """Return ONNX Runtime's results of a model for its inputs in order.

    Where it lacks the only operator in the model's version, by the last earlier one that it has.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Missing

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    proto = onnx.ModelProto.FromString(model)
    node = proto.graph.node[0]
    version = next(one for one in proto.opset_import if one.domain == node.domain)
    while True:
        try:
            session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            break
        except Missing:
            schema = onnx.defs.get_schema(node.op_type, version.version, node.domain)
            if len(proto.graph.node) > 1 or schema.since_version == 1:
                raise
            version.version = schema.since_version - 1
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, dict(zip(names, inputs, strict=True)))
    return [_typed(y, one.type) for y, one in zip(found, session.get_outputs(), strict=True)]


def _typed(array: Any, called: str) -> Any:
    """Return `array` with the type that ONNX Runtime says it has: 8-bit floats come as bytes."""
    name = re.sub(r"tensor\(float8(\w+)\)", r"float8_\1", called)
    return array.view(getattr(ml_dtypes, name)) if name != called else array


def check(
    model: onnx.ModelProto,
    operands: Sequence[Any],
    expected: Sequence[Any] | None = None,
    *,
    backends: Sequence[str] = BACKENDS,
    tolerance: float = 1e-5,
) -> list[Any]:
    """What is expected, ONNX Runtime's unless given, after all backends were seen to give it, on
    the GPU those that have one.
    """
    wanted = runtime(model, operands) if expected is None else list(expected)
    inputs = {one.name for one in model.graph.input}
    feeds = [one for i, one in enumerate(operands) if f"x{i}" in inputs]
    for backend in backends:
        prepared = onnx_backend.prepare(model, backend=backend)
        found = prepared.run(feeds)
        assert len(found) == len(wanted)
        for got, right in zip(found, wanted, strict=True):
            assert got.dtype == right.dtype, backend
            np.testing.assert_allclose(got, right, tolerance, tolerance, err_msg=backend)
        if backend != "cpu":
            assert not prepared.session.hosted, prepared.session.hosted
    return wanted

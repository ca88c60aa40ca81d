"""Models of one node, on every backend, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import glnn
from glnn.errors import DeviceError

BACKENDS = ("compute", "feedback")
Arrays = Sequence[np.ndarray | None]


def model(
    operator: str,
    arrays: Arrays,
    fixed: Mapping[int, np.ndarray] | None = None,
    *,
    opset: int = 21,
    outputs: int = 1,
    kinds: Sequence[int] = (),
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """A node of operands x0, x1, ..., None for one that is left out, and results y0, y1, ...

    fixed: those that are initialisers, by number. kinds: ONNX's types of the results.
    """
    fixed = fixed or {}
    there = {i: a for i, a in enumerate(arrays) if a is not None}
    names = [f"x{i}" if i in there or i in fixed else "" for i in range(len(arrays))]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for i, a in there.items()
        if i not in fixed
    ]
    types = kinds or (onnx.TensorProto.FLOAT,) * outputs
    made = [helper.make_tensor_value_info(n, t, None) for n, t in zip(results, types, strict=True)]
    weights = [numpy_helper.from_array(array, f"x{i}") for i, array in fixed.items()]
    graph = helper.make_graph([node], operator, given, made, weights)
    imports = [helper.make_opsetid(domain, opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def feeds(arrays: Arrays, fixed: Mapping[int, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The operands by name, but for those that are fixed."""
    return {f"x{i}": a for i, a in enumerate(arrays) if a is not None and i not in (fixed or {})}


def run(proto: onnx.ModelProto, given: Mapping[str, np.ndarray], backend: str) -> list[Any]:
    """The results, all of which the GPU must compute. Skips a backend that does not open."""
    try:
        session = glnn.InferenceSession(proto.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    found = session.run(None, dict(given))
    assert not session.hosted
    return found


def runtime(proto: onnx.ModelProto, given: Mapping[str, np.ndarray]) -> list[Any]:
    """What ONNX Runtime makes of it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, dict(given))


def check(
    operator: str,
    arrays: Arrays,
    backend: str,
    expected: Sequence[np.ndarray] | np.ndarray | None = None,
    *,
    known: Sequence[int] = (),
    tolerance: float = 1e-5,
    kind: Any = None,
    **more: Any,
) -> None:
    """That a node gives what is expected, ONNX Runtime's results unless said, all on the GPU.

    known: the operands that are initialisers. kind: the results' dtype, that of the first operand
    unless said. more: of `model`.
    """
    fixed = {i: a for i, a in enumerate(arrays) if i in known and a is not None}
    dtype = np.dtype(kind or next(a.dtype for a in arrays if a is not None))
    more["kinds"] = (helper.np_dtype_to_tensor_dtype(dtype),) * more.get("outputs", 1)
    proto, given = model(operator, arrays, fixed, **more), feeds(arrays, fixed)
    wanted = runtime(proto, given) if expected is None else expected
    found = run(proto, given, backend)
    for got, right in zip(
        found, [wanted] if isinstance(wanted, np.ndarray) else wanted, strict=True
    ):
        assert got.dtype == right.dtype and got.shape == right.shape, (got, right)
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, right, tolerance, tolerance, str((operator, more)))
        else:
            np.testing.assert_array_equal(got, right, str((operator, more)))

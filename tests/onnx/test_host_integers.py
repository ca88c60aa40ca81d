"""Nodes of types that no GPU has, which read types alone or scatter; ONNX Runtime's results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import glnn
from glnn.errors import GlnnError
from tests.onnx.runtime import IR_VERSION, node_model, runtime

BACKENDS = ("cpu", "compute")
INTEGERS = (np.uint16, np.int16, np.uint32, np.uint64)
ANY = (*INTEGERS, np.float64, np.bool_, object, np.complex64)
NOT_OF_RUNTIME = (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4)
Array = np.ndarray[Any, Any]


def run(model: Any, operands: list[Array], backend: str = "cpu") -> list[Array]:
    session = glnn.InferenceSession(model.SerializeToString(), backend)
    return list(session.run(None, {f"x{i}": one for i, one in enumerate(operands)}))


def same(found: list[Array], right: list[Array]) -> None:
    for got, expected in zip(found, right, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [*ANY, *NOT_OF_RUNTIME])
def test_shape_and_size(dtype: Any, backend: str) -> None:
    """They read no numbers: every type has them."""
    x = np.arange(6).reshape(2, 3, 1).astype(str if dtype is object else dtype)
    x = x.astype(object) if dtype is object else x
    cases: list[tuple[int, str, dict[str, Any], Any]] = [
        (21, "Shape", {}, [2, 3, 1]),
        (13, "Shape", {}, [2, 3, 1]),
        (21, "Shape", {"start": 1}, [3, 1]),
        (21, "Shape", {"start": -3, "end": -1}, [2, 3]),
        (21, "Size", {}, 6),
    ]
    for opset, op, attributes, right in cases:
        if opset == 13 and dtype in NOT_OF_RUNTIME[1:]:  # newer than the version
            continue
        model = node_model(op, [x], opset=opset, kinds=[np.int64], **attributes)
        same(run(model, [x], backend), [np.array(right, np.int64)])
        if dtype in ANY[:-1]:
            same(runtime(model, [x]), [np.array(right, np.int64)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shape_of_open_sizes_beside_a_move(dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(x.dtype)
    nodes = [
        helper.make_node("Shape", ["x0"], ["s"]),
        helper.make_node(
            "ConstantOfShape", ["s"], ["z"], value=helper.make_tensor("", code, [1], [7])
        ),
        helper.make_node("Identity", ["x0"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x0", code, ["a", "b"])]
    outputs = [helper.make_tensor_value_info(n, code, None) for n in ("y", "z")]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION
    )
    same(run(model, [x]), [x, np.full((2, 3), 7, dtype)])
    same(run(model, [x]), runtime(model, [x]))


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_scatter_with_a_reduction(dtype: Any, reduction: str) -> None:
    """Sums and products keep the low bits."""
    rng, ends = np.random.default_rng(1), np.iinfo(dtype)
    x, updates = (
        rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        for shape in ((3, 4, 5), (3, 2, 5))
    )
    index = rng.integers(-4, 4, (3, 2, 5))
    cases: list[tuple[list[Array], str, dict[str, Any]]] = [
        ([x, index, updates], "ScatterElements", {"axis": 1}),
        ([x, index[:2, :, :4], updates[:2, :, :4]], "ScatterElements", {"axis": -2}),
        ([x[0, 0], index[0, 0] % 5, updates[0, 0]], "ScatterElements", {}),
        ([x, index[:0], updates[:0]], "ScatterElements", {"axis": 1}),
        ([x, np.array([[1], [1], [-3]]), x], "ScatterND", {}),
        ([x, np.array([[[1, -1], [1, 3]]]), x[:1, :2]], "ScatterND", {}),
        ([x, np.array([[0, 1, 2], [0, 1, 2]]), x[0, 0, :2]], "ScatterND", {}),
    ]
    for operands, op, more in cases:
        for opset in (16, 18):
            if opset == 16 and reduction in ("max", "min"):
                continue
            model = node_model(
                op, operands, opset=opset, kinds=[dtype], reduction=reduction, **more
            )
            same(run(model, operands), runtime(model, operands))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_scatter_beyond_its_operand_is_refused(dtype: Any) -> None:
    x = np.arange(4).astype(dtype)
    for op, index in (("ScatterElements", [4]), ("ScatterElements", [-5]), ("ScatterND", [[4]])):
        operands = [x, np.array(index), x[:1]]
        model = node_model(op, operands, opset=18, kinds=[dtype], reduction="add")
        with pytest.raises(GlnnError, match=f"{op}: indices must be from -4 to 3"):
            run(model, operands)


FUNCTIONS = {
    "ReduceL2": lambda x, **along: np.sqrt(np.square(x).sum(**along)),
    "ReduceLogSum": lambda x, **along: np.log(x.sum(**along)),
    "ReduceLogSumExp": lambda x, **along: np.log(np.exp(x).sum(**along)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_roots_and_logarithms_of_sums(op: str, dtype: Any, backend: str) -> None:
    """They are those of float64 without what is behind the point."""
    x = np.array([[[1, 2, 3], [4, 5, 6]], [[9, 1, 0], [7, 7, 2]]], dtype)
    for axes, opset, keepdims in (((1,), 18, 1), ((0, -1), 18, 0), (None, 18, 0), ((2,), 13, 1)):
        along = {} if axes is None else {"axes": list(axes)}
        places = [] if axes is None or opset == 13 else [np.array(axes)]
        attributes: dict[str, Any] = {"keepdims": keepdims, **(along if opset == 13 else {})}
        model = node_model(op, [x, *places], opset=opset, kinds=[dtype], known=(1,), **attributes)
        (found,) = run(model, [x], backend)
        with np.errstate(all="ignore"):
            wide = FUNCTIONS[op](x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.trunc(wide).astype(dtype))
        if dtype in (np.int32, np.int64) and op != "ReduceLogSumExp":
            same([found], runtime(model, [x]))
    x = np.array([[46341, 1], [65536, 0], [40000, 2**30]], dtype)
    model = node_model(op, [x, np.array([1])], opset=18, kinds=[dtype], known=(1,))
    if op == "ReduceL2":  # the squares are beyond 32 bits
        right = np.array([[46341], [65536], [2**30]], dtype)
        same(run(model, [x], backend), [right])
    if op == "ReduceLogSumExp":  # exponentials are infinite
        same(run(model, [x], backend), [np.array([[46341], [65536], [2**30]], dtype)])


@pytest.mark.parametrize("dtype", [*INTEGERS, object, np.float32, np.float64])
def test_pad_of_a_scalar(dtype: Any) -> None:
    """There is nothing to pad; ONNX Runtime has no scalars here."""
    x = np.array("a" if dtype is object else 3, dtype)
    for mode in ("constant", "edge"):
        operands = [x, np.zeros(0, np.int64)]
        model = node_model("Pad", operands, opset=19, kinds=[dtype], known=(1,), mode=mode)
        same(run(model, [x]), [x])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_one_hot_of_indices(dtype: Any) -> None:
    """The numbers are those of the same indices of int64."""
    for values in (np.array([0.5, 2], np.float32), np.array([3, 9], np.int64)):
        for axis, depth in ((-1, 4), (0, 4), (1, np.iinfo(np.int8).max), (-2, 1)):
            index = np.array([[0, 3, 1], [2, 4, 126]]).astype(dtype)
            if np.dtype(dtype).kind == "i":
                index[0, 0], index[1, 0] = -1, -5
            for one in (index, index[0], index[:0]) if axis in (-1, 0) else (index,):
                known = np.array(depth, np.int64)
                kinds = [values.dtype]
                operands = [one, known, values]
                model = node_model("OneHot", operands, opset=11, kinds=kinds, axis=axis)
                wide = [one.astype(np.int64), known, values]
                other = node_model("OneHot", wide, opset=11, kinds=kinds, axis=axis)
                same(run(model, operands), runtime(other, wide))
    odd = [
        np.array([7, 0]).astype(dtype),
        np.array(8).astype(dtype),
        np.array([1, 5]).astype(dtype),
    ]
    model = node_model("OneHot", odd, opset=11, kinds=[dtype])
    right = np.ones((2, 8), dtype)
    right[0, 7] = right[1, 0] = 5
    same(run(model, odd), [right])

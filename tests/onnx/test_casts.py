"""Casts between all types beside NumPy, of inputs, constants and computed values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import glnn
from glnn.errors import DeviceError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = (np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64))
BOOL = np.dtype(bool)
TYPES = (BOOL, *INTEGERS, *FLOATS)
AGAIN = (BOOL, *map(np.dtype, (np.uint8, np.int64, np.float16, np.float32)))
"""The types that casts are cast to; GLNN_EXHAUSTIVE=1 has all of them."""
TABLE = np.arange(10, dtype=np.float32).reshape(5, 2) * 10 + 0.5
BACKENDS = ("cpu", "compute", "feedback")


def numbers(dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers of `dtype` that others have and have not: fractions, signs, ends of the type."""
    if dtype == BOOL:
        return np.array([False, True, True])
    if dtype in FLOATS:
        return np.array([0.75, 1.5, -0.75, -1.5, -0.0, 2.25, 100.5, -127.75, 0.0], dtype)
    # a GPU takes int64 inputs of int32's numbers alone
    ends = np.iinfo(np.int32 if dtype == np.int64 else dtype)
    wide = [ends.max // 2 + 1, ends.min // 2 - 1] if ends.min else [ends.max // 2 + 1]
    return np.array([0, 1, 2, 77, ends.min, ends.max, *wide], dtype)


def indices(dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers from 0 to 3 of `dtype`, with fractions where it has them."""
    if dtype == BOOL:
        return np.array([False, True, True])
    return np.array([0.75, 1.5, 2.25, 0.0, 3.5] if dtype in FLOATS else [0, 1, 2, 0, 3], dtype)


def cast(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """x as ONNX's Cast has it by NumPy; what ONNX leaves undefined is some number."""
    if dtype == BOOL:
        return np.asarray(x != np.zeros((), x.dtype))
    if x.dtype in FLOATS and dtype in INTEGERS:
        x = np.trunc(x.astype(np.float64)).astype(np.int64)
    elif x.dtype in INTEGERS and dtype in FLOATS[:2]:
        x = x.astype(np.float32)
    return x.astype(dtype)


def is_defined(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Where ONNX says what a cast of x to `dtype` is: not of floats beyond an integer type."""
    if x.dtype not in FLOATS or dtype not in INTEGERS:
        return np.ones(x.shape, bool)
    ends, whole = np.iinfo(dtype), np.trunc(x.astype(np.float64))
    return (whole >= float(ends.min)) & (whole < float(ends.max) + (dtype.itemsize < 8))


@dataclass
class Casts:
    """A model of casts of numbers of one type, with what each of its outputs must be."""

    source: np.dtype[Any]
    kind: str
    """How what is cast comes to be: "input", "constant" or "computed"."""
    nodes: list[Any] = field(default_factory=list)
    fixed: list[Any] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    expected: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """By output, the numbers and which of them ONNX defines."""

    def operand(self, name: str, array: np.ndarray) -> str:
        """`array` as the model has it."""
        if self.kind == "constant":
            return self.constant(name, array)
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        fed = array if self.kind == "input" else array.reshape(1, -1)
        self.given.append(helper.make_tensor_value_info(name, code, fed.shape))
        self.feeds[name] = fed
        if self.kind == "input":
            return name
        rows = self.add("Concat", name, name, axis=0)  # no view, so that memory of its own is read
        return self.add("Gather", rows, self.constant(f"{name} row", np.array(1)), axis=0)

    def constant(self, name: str, array: np.ndarray) -> str:
        self.fixed.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"value {len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def to(self, value: str, dtype: np.dtype[Any]) -> str:
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(dtype))

    def output(self, name: str, right: np.ndarray, defined: Any = True) -> None:
        """Expect `right`, where `defined`, of the last node, which becomes the output `name`."""
        self.nodes[-1].output[0] = name
        self.expected[name] = right, np.broadcast_to(np.asarray(defined), right.shape)

    def model(self) -> onnx.ModelProto:
        """The model, which has an input in any case."""
        if not self.given:
            self.given.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, (1,)))
            self.feeds["u"] = np.ones(1, np.float32)
            self.add("Neg", "u")
            self.output("-u", -self.feeds["u"])
        made = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(right.dtype), right.shape
            )
            for name, (right, _) in self.expected.items()
        ]
        graph = helper.make_graph(self.nodes, "casts", self.given, made, self.fixed)
        imports = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def casts_to_outputs(source: np.dtype[Any], kind: str) -> Casts:
    """Casts from `source` to each type, each an output."""
    made, x = Casts(source, kind), numbers(source)
    for dtype in TYPES:
        made.to(made.operand(f"x {dtype}", x), dtype)
        made.output(dtype.name, cast(x, dtype), is_defined(x, dtype))
    return made


def casts_to_readers(source: np.dtype[Any], kind: str) -> Casts:
    """Casts from `source` to each type before each kind of reader, of operands of their own."""
    made, x = Casts(source, kind), numbers(source)
    again = TYPES if os.environ.get("GLNN_EXHAUSTIVE") else AGAIN
    for dtype in TYPES:
        found, defined, called = cast(x, dtype), is_defined(x, dtype), dtype.name
        first = made.to(made.operand(f"x {called}", x), dtype)
        for other in again:
            if other != dtype:
                made.to(first, other)
                there = defined & is_defined(found, other)
                made.output(f"{called} as {other}", cast(found, other), there)
        if dtype != BOOL:
            one = made.constant(f"one {called}", np.array(1, dtype))
            made.add("Add", first, one)
            made.output(f"{called} + 1", found + np.array(1, dtype), defined)
            made.add("Less", first, one)
            made.output(f"{called} < 1", np.asarray(found < np.array(1, dtype)), defined)
    few = indices(source)
    for dtype in map(np.dtype, (np.int32, np.int64)):
        index, called = cast(few, dtype), dtype.name
        first = made.to(made.operand(f"few {called}", few), dtype)
        made.add("Gather", made.constant(f"table {called}", TABLE), first)
        made.output(f"rows {called}", TABLE[index])
        depth = made.constant(f"depth {called}", np.array(4))
        ends = made.constant(f"ends {called}", np.array([0, 1], np.float32))
        made.add("OneHot", first, depth, ends)
        made.output(f"one-hot {called}", np.eye(4, dtype=np.float32)[index])
    first = made.to(made.operand("few", few), np.dtype(np.int64))
    value = numpy_helper.from_array(np.array([7], np.float32))
    made.add("ConstantOfShape", first, value=value)
    made.output("of sizes", np.full(tuple(cast(few, np.dtype(np.int64))), 7, np.float32))
    return made


MODELS = (casts_to_outputs, casts_to_readers)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts(source: np.dtype[Any], backend: str) -> None:
    """Every pair of types, where what is cast is an input, a constant or computed."""
    for kind, casts in product(("input", "constant", "computed"), MODELS):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = casts(source, kind)
        try:
            session = glnn.InferenceSession(made.model().SerializeToString(), backend)
        except DeviceError as error:
            pytest.skip(str(error))
        found = dict(zip(made.expected, session.run(None, made.feeds), strict=True))
        same(found, made.expected, f"{kind} of {source}")


def same(
    found: dict[str, np.ndarray], expected: dict[str, tuple[np.ndarray, np.ndarray]], what: str
) -> None:
    """Assert that `found` has the expected types, shapes and, where these are defined, numbers."""
    for name, (right, defined) in expected.items():
        got, case = found[name], f"{what}: {name}"
        assert got.dtype == right.dtype and got.shape == right.shape, case
        bits: Callable[[np.ndarray], np.ndarray] = (
            (lambda x: x.astype(np.float64)) if right.dtype in FLOATS else np.asarray
        )
        np.testing.assert_array_equal(bits(got)[defined], bits(right)[defined], case)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_beyond_the_type(source: np.dtype[Any], backend: str) -> None:
    """Floats beyond an integer type become its nearest number, NaN 0: ONNX leaves that open."""
    powers = [2.0**bits + step for bits in (7, 8, 15, 16, 31, 32, 63, 64) for step in (0, -1)]
    with np.errstate(over="ignore"):
        x = np.array([np.nan, np.inf, *powers, 0.5, 1e38]).astype(source)
    x = np.concatenate([x, -x])
    exact = x.astype(np.float64)
    whole = [0 if np.isnan(n) else n if np.isinf(n) else int(n) for n in exact]
    for kind in ("input", "constant", "computed"):
        made = Casts(source, kind)
        for dtype in INTEGERS:
            ends = np.iinfo(dtype)
            made.to(made.operand(f"x {dtype}", x), dtype)
            right = [int(min(max(n, ends.min), ends.max)) for n in whole]
            made.output(dtype.name, np.array(right, dtype))
        try:
            session = glnn.InferenceSession(made.model().SerializeToString(), backend)
        except DeviceError as error:
            pytest.skip(str(error))
        found = dict(zip(made.expected, session.run(None, made.feeds), strict=True))
        same(found, made.expected, f"{kind} of {source}")

"""Nodes that only move numbers, of types that no GPU has: each number comes from where ONNX Runtime
takes it in the same node of int64.
"""

from __future__ import annotations

from itertools import accumulate, cycle, islice, product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import defs

import glnn
from glnn.core.types import DType
from glnn.onnx.host_node import MOVES
from glnn.onnx.operators.call import CONVERTED
from glnn.onnx.operators.dtypes import type_from_text
from tests.onnx.move_cases import CASES, Data, Move
from tests.onnx.runtime import node_model, runtime

Array = np.ndarray[Any, Any]
HALVES = (DType.float16, DType.bfloat16)


def versions(op: str) -> list[Any]:
    """The schemas of an operator that glnn has an operator for, the oldest first."""
    found = [
        one for one in defs.get_all_schemas_with_history() if one.name == op and not one.domain
    ]
    return sorted((one for one in found if not one.deprecated), key=lambda one: one.since_version)


def host_types(schema: Any) -> list[DType]:
    """Types of the numbers moved that are the host's."""
    (said,) = (
        one.allowed_type_strs
        for one in schema.type_constraints
        if one.type_param_str == schema.outputs[0].type_str
    )
    known = ("float6e2m3", "float6e3m2")  # newer than glnn
    found = [
        type_from_text(one).dtype
        for one in said
        if one.startswith("tensor(") and one[7:-1] not in known
    ]
    return [one for one in found if one not in CONVERTED and one not in HALVES]


def numbers(dtype: DType, count: int) -> Array:
    """A zero, or an empty text, and `count` numbers of all magnitudes."""
    rng = np.random.default_rng(count)
    if dtype is DType.object:
        found = np.array([f"é{i}" for i in range(count + 1)], object)
        found[0] = ""
        return found
    if dtype.kind == "int":
        ends = ml_dtypes.iinfo(dtype.numpy)
        found = rng.integers(
            ends.min, ends.max, count + 1, np.asarray(ends.max).dtype, endpoint=True
        )
    else:
        found = rng.integers(1, 5, count + 1) * (1 + 0.25j if dtype.kind.startswith("c") else 1.0)
    found = found.astype(dtype.numpy)
    found[:1] = np.zeros(1, dtype.numpy)
    return found


def positions(op: str, move: Move, version: int) -> list[Array]:
    """Where each number of the results is among those of the operands, from 1 on; 0: in none."""
    said = [f"{op} of operator set {version}"]
    for dtype, opset in product((np.int64, np.float32), (version, 25, 21, 13)):
        if opset > version:
            continue
        sizes = [prod(one.shape) if isinstance(one, Data) else 0 for one in move.operands]
        operands = [
            np.arange(start, start + size, dtype=dtype).reshape(one.shape)
            if isinstance(one, Data)
            else one
            for one, size, start in zip(
                move.operands, sizes, accumulate(sizes, initial=1), strict=False
            )
        ]
        kinds = [dtype] * move.outputs
        model = node_model(op, operands, move.outputs, opset=opset, kinds=kinds, **move.attributes)
        try:
            return [one.astype(np.int64) for one in runtime(model, operands)]
        except Exception as error:  # ONNX Runtime has no such kernel
            said.append(str(error))
    raise AssertionError("\n".join(said))


def check(op: str, move: Move, version: int, expected: list[Array], dtype: DType) -> None:
    count = sum(prod(one.shape) for one in move.operands if isinstance(one, Data))
    values, start = numbers(dtype, count), 1
    operands: list[Array | None] = []
    for one in move.operands:
        if isinstance(one, Data):
            operands.append(values[start : start + prod(one.shape)].reshape(one.shape))
            start += prod(one.shape)
        else:
            operands.append(one)
    kinds = [dtype.numpy] * move.outputs
    model = node_model(op, operands, move.outputs, opset=version, kinds=kinds, **move.attributes)
    session = glnn.InferenceSession(model.SerializeToString(), "cpu")
    feeds = {f"x{i}": one for i, one in enumerate(operands) if one is not None}
    found = session.run(None, feeds)
    for got, places in zip(found, expected, strict=True):
        right = np.asarray(values[places], values.dtype)
        assert got.dtype == right.dtype and got.shape == right.shape, (op, version, move, dtype)
        assert (got == right).all(), (op, version, move, dtype, got, right)


def test_cases() -> None:
    assert CASES.keys() == MOVES.keys()


@pytest.mark.parametrize("op", CASES)
def test_each_version(op: str) -> None:
    """Types take turns, but each has some case of each version."""
    for schema in versions(op):
        version, dtypes = schema.since_version, host_types(schema)
        if not dtypes:
            continue
        moves = [(move, positions(op, move, version)) for move in CASES[op](version)]
        count = max(len(moves), len(dtypes))
        for (move, right), dtype in islice(zip(cycle(moves), cycle(dtypes)), count):
            check(op, move, version, right, dtype)


@pytest.mark.parametrize("dtype", [DType.uint64, DType.object], ids=str)
@pytest.mark.parametrize("op", CASES)
def test_all_cases_of_the_newest_version(op: str, dtype: DType) -> None:
    schema = next(one for one in reversed(versions(op)) if dtype in host_types(one))
    for move in CASES[op](schema.since_version):
        right = positions(op, move, schema.since_version)
        check(op, move, schema.since_version, right, dtype)

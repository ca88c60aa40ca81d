"""What no run changes: what is only moved stays as it lies, all else is computed in 64 bits."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.compiler.weights import Ready, Weight, Weights
from glnn.core.layout import parse
from glnn.core.layout.layout import DENSE
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.constant import Leaf, OperatorResult, evaluated
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Kind, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pad, Pointwise, Reshape, Transpose
from glnn.graph.operators.conv2d_lowering import KernelRows

ARRAY = np.random.default_rng(0).random((12, 7, 3, 3), np.float32)


def leaf(array: np.ndarray) -> Leaf:
    return Leaf(Value("weight", TensorType.from_array(array), Kind.CONSTANT, array))


def made(operator: Operator, *of: Leaf | OperatorResult) -> OperatorResult:
    return OperatorResult(operator, of, None, (), 0)


def test_what_is_only_moved_is_the_same_memory() -> None:
    moved = made(Transpose((1, 0)), made(Reshape((12, 63)), leaf(ARRAY)))
    found = evaluated(moved)
    assert found.dtype == np.float32 and np.shares_memory(found, ARRAY)
    assert np.array_equal(found, ARRAY.reshape(12, 63).T)


@pytest.mark.parametrize("layout", ["R", "R4", "C 4 4 C", "IO4i4o"])
def test_a_weight_is_packed_from_where_it_lies(layout) -> None:
    moved = made(Transpose((1, 0)), made(Reshape((12, 63)), leaf(ARRAY)))
    weight = Weight(moved, TensorType((63, 12)))
    ready = Ready.read((weight, parse(layout), False), pack=True)
    assert np.shares_memory(ready.array, ARRAY)
    expected = parse(layout).pack(np.ascontiguousarray(ARRAY.reshape(12, 63).T))
    assert ready.words is not None and np.array_equal(ready.words.view(np.float32), expected)
    array = Ready.read((weight, parse(layout), False), pack=False).array
    assert array.flags.c_contiguous and np.array_equal(array, ARRAY.reshape(12, 63).T)


def test_rows_of_kernels_stay_in_32_bits(monkeypatch) -> None:
    given: list[np.dtype] = []
    reference = KernelRows.reference

    def noted(self, *arrays):
        given.append(arrays[0].dtype)
        return reference(self, *arrays)

    monkeypatch.setattr(KernelRows, "reference", noted)
    found = evaluated(made(KernelRows(), leaf(ARRAY)))
    assert given == [np.float32]
    assert np.array_equal(found, ARRAY.transpose(0, 2, 3, 1).reshape(12, -1))


def test_what_is_computed_of_moved_numbers_is_in_64_bits() -> None:
    third = np.full((1,), 1 / 3, np.float32)
    turned = made(Transpose((3, 2, 1, 0)), leaf(ARRAY))
    product = made(Pointwise(call("mul", Arg(0), Arg(1))), turned, leaf(third))
    total = made(Pointwise(call("sub", Arg(0), Arg(1))), product, turned)
    wide = ARRAY.T.astype(np.float64)
    assert np.array_equal(evaluated(total), (wide * np.float64(third[0]) - wide).astype(np.float32))
    assert ARRAY.dtype == np.float32


def test_what_a_pad_fills_with_is_in_64_bits() -> None:
    padded = made(Pad((1,), (0,), fill=0.1), leaf(np.ones(1, np.float32)))
    tenfold = made(Pointwise(call("mul", Arg(0), Arg(0))), padded)
    assert evaluated(tenfold)[0] == np.float32(0.1 * 0.1)


def test_a_moved_number_that_float16_does_not_hold_is_refused() -> None:
    turned = made(Transpose((0,)), leaf(np.array([70000.0], np.float32)))
    with pytest.raises(ShapeError, match="weight has the number 70000"):
        Weight(turned, TensorType((1,), DType.float16)).read()


def test_parts_of_a_table_go_with_the_plans_that_hold_them() -> None:
    """Of each length there is another one, without an end; what is only moved is one for all."""
    table = leaf(ARRAY)
    node = Node(
        "y", Pointwise(call("relu", Arg(0))), (table.value,), (Value("y", table.value.type),)
    )
    weights = Weights(open_backend("cpu"), Graph((node,), (), node.outputs, "g"))
    moved = Weight(made(Reshape((12, 63)), table), TensorType((12, 63)))
    larger = Weight(made(Pad((0, 0, 0, 0), (1, 0, 0, 0)), table), TensorType((13, 7, 3, 3)))
    keys = [(one, DENSE, False) for one in (moved, larger)]
    held = [weights.keep(*key) for key in keys]
    assert all(key in weights for key in keys)
    held.clear()
    gc.collect()
    assert [key in weights for key in keys] == [True, False]

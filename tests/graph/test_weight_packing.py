"""Quantized weights: their numbers, how they are packed, and which nodes read them so."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.core.types import DType, TensorType
from glnn.graph.builder import Builder
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operators import Gather, Identity, Matmul, QuantizedMatmul, QuantizedRows, Transpose
from glnn.graph.operators.dequantize import Dequantize, PackedWeight
from glnn.graph.passes.weight_packing import pack_weights
from glnn.graph.quantization import FORMATS, INTEGER_FORMATS, integer_format
from tests.quantized import random_integers

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)


@pytest.mark.parametrize("name", INTEGER_FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 127), (7, 129), (5, 256), (2, 600)])
def test_what_is_packed_is_unpacked(name: str, n: int, k: int) -> None:
    packed, numbers = random_integers(name, n, k, seed=k)
    form = FORMATS[name]
    np.testing.assert_allclose(form.unpack(packed, n, k, slice(None)), numbers, 1e-6)
    rows = np.array([n - 1, 0])
    np.testing.assert_allclose(form.unpack(packed, n, k, rows), numbers[rows], 1e-6)


def test_packing_goes_through_large_weights_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = random_integers("uint4_32", 37, 300, seed=1)
    monkeypatch.setattr("glnn.graph.quantization.CHUNK", 96)
    parts, _ = random_integers("uint4_32", 37, 300, seed=1)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    ("bits", "shared", "k", "expected"),
    [
        *((4, 32, 1024, "int4_32"), (8, 128, 1024, "int8_128"), (4, 512, 1024, "int4_256")),
        *((4, 96, 960, "int4_32"), (4, 48, 960, "int4_16"), (4, 1024, 1024, "int4_256")),
        *((4, 256, 300, "int4_64"), (8, 100, 100, "int8_128"), (4, 24, 960, None)),
        *((4, 8, 960, None), (2, 32, 1024, "int2_32"), (1, 32, 1024, None)),
    ],
)
def test_the_smallest_format(bits: int, shared: int, k: int, expected: str | None) -> None:
    """Scales are repeated where that pads rows less, or where no blocks are as large."""
    found = integer_format(bits, shared, FLOAT, 64, k, zeros=False)
    assert (found and found.name) == expected
    if found:
        half = integer_format(bits, shared, HALF, 64, k, zeros=True)
        assert half and half.name.startswith("u") and half.name.endswith("_float16")


@pytest.mark.parametrize(
    ("axis", "block", "scale"),
    [(0, 0, ()), (1, 0, (5,)), (0, 0, (7,)), (0, 3, (3, 5)), (1, 2, (7, 3))],
)
@pytest.mark.parametrize("dtype", [DType.float32, DType.float16])
def test_numbers(axis: int, block: int, scale: tuple[int, ...], dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (7, 5)).astype(np.int8)
    scales = rng.uniform(0.1, 1, scale).astype(dtype.numpy)
    zeros = rng.integers(-128, 128, scale).astype(np.int8)
    expected = np.zeros((7, 5))
    for place in np.ndindex(x.shape):
        at = (place[axis],) if scale else ()
        if block:
            at = tuple(i // block if j == axis else i for j, i in enumerate(place))
        expected[place] = (int(x[place]) - int(zeros[at])) * float(scales[at])
    operator = Dequantize(axis, block, dtype)
    types = [TensorType.from_array(one) for one in (x, scales, zeros)]
    assert operator.infer(types) == (TensorType((7, 5), dtype),)
    (found,) = operator.reference(x, scales, zeros)
    np.testing.assert_array_equal(found, expected.astype(dtype.numpy))


def constant(array: np.ndarray) -> Value:
    return Value("constant", TensorType.from_array(array), Kind.CONSTANT, array)


def packed(graph: Graph) -> list[object]:
    """The operators of `graph` once weights are packed, in order."""
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    return [type(node.operator) for node in pack_weights(graph, types).nodes]


def test_products_and_lookups_share_a_weight_through_views() -> None:
    builder, rng = Builder("g"), np.random.default_rng(0)
    x, index = (
        builder.input("x", TensorType((3, 64))),
        builder.input("i", TensorType((2,), DType.int32)),
    )
    values = constant(rng.integers(-8, 8, (96, 64)).astype(np.int8))
    scales = constant(rng.uniform(size=(96, 2)).astype(np.float32))
    (weight,) = builder.add(Dequantize(1, 32), values, scales, name="w")
    (same,) = builder.add(Identity(), weight, name="same")
    (turned,) = builder.add(Transpose((1, 0)), same, name="turned")
    (back,) = builder.add(Transpose((-1, -2)), turned, name="back")
    (product,) = builder.add(Matmul(), x, back, name="product")
    (rows,) = builder.add(Gather(0), weight, index, name="rows")
    graph = builder.graph([product, rows])
    assert packed(graph) == [PackedWeight, QuantizedMatmul, QuantizedRows]


def test_other_lookups_and_products_stay() -> None:
    """Of columns, of rows whose scales lie across, of constants alone."""
    builder, rng = Builder("g"), np.random.default_rng(0)
    x, index = (
        builder.input("x", TensorType((3, 64))),
        builder.input("i", TensorType((2,), DType.int32)),
    )
    values = constant(rng.integers(-8, 8, (64, 64)).astype(np.int8))
    scales = constant(rng.uniform(size=(64, 2)).astype(np.float32))
    (weight,) = builder.add(Dequantize(1, 32), values, scales, name="w")
    (turned,) = builder.add(Transpose((1, 0)), weight, name="turned")
    results = [
        builder.add(Gather(1), weight, index, name="columns")[0],
        builder.add(Gather(0), turned, index, name="rows")[0],
        builder.add(Matmul(), x, turned, name="across")[0],
        builder.add(Matmul(), weight, weight, name="fixed")[0],
    ]
    graph = builder.graph(results)
    assert packed(graph) == [type(node.operator) for node in graph.nodes]

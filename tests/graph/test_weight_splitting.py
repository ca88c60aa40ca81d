"""Packed weights in parts of some rows."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends import open_backend
from glnn.compiler import Executor
from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.graph import Graph, Value
from glnn.graph.operators import Concat, QuantizedMatmul, QuantizedRows
from glnn.graph.operators.weight_part import WeightPart
from glnn.graph.passes.weight_splitting import part_rows, split_weights
from glnn.graph.quantization import FORMATS, GGML_FORMATS
from tests.quantized import INTEGERS, fitting, random_blocks, random_integers, unpacked


def weight_of(format: str, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A packed weight and its numbers."""
    if format not in GGML_FORMATS:
        return random_integers(format, n, k, seed=n)
    blocks = random_blocks(format, n, k, seed=n)
    return FORMATS[format].pack(blocks, n, k), unpacked(format, blocks, n, k)


@pytest.mark.parametrize("format", [*GGML_FORMATS, *INTEGERS])
@pytest.mark.parametrize(("start", "end"), [(0, 7), (2, 5), (6, 7)])
def test_a_part_has_rows_of_each_matrix(format: str, start: int, end: int) -> None:
    k = fitting(format, 127) if format in GGML_FORMATS else 127
    packed, numbers = weight_of(format, 14, k)
    operator = WeightPart(format, 7, k, start, end, stacked=2)
    (part,) = operator.reference(packed)
    assert operator.infer([TensorType.from_array(packed)]) == (TensorType.from_array(part),)
    count = 2 * (end - start)
    found = FORMATS[format].unpack(part, count, k, slice(None))
    expected = np.concatenate((numbers[start:end], numbers[7 + start : 7 + end]))
    np.testing.assert_allclose(found, expected, 1e-6)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3), (0, 8)])
def test_rows_that_there_are_not(start: int, end: int) -> None:
    with pytest.raises(ShapeError, match=f"rows must be from 0 to 7, got {start} to {end}"):
        WeightPart("f32", 7, 3, start, end)


def test_another_weight_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"x must be int32 .448,., got int32 .5,."):
        WeightPart("f32", 7, 64, 0, 3, 1).infer([TensorType((5,), DType.int32)])


@pytest.mark.parametrize("format", ["f32", "f16", "q4_0", "q6_k"])
@pytest.mark.parametrize("stacked", [1, 2])
@pytest.mark.parametrize("n", [1, 3, 7, 127, 129, 1000])
@pytest.mark.parametrize("most", [1 << 8, 5000, 1 << 14, 1 << 20])
def test_parts_fit_and_are_few(format: str, stacked: int, n: int, most: int) -> None:
    k, form = 256, FORMATS[format]
    rows = part_rows(form, n, k, stacked, most)

    def nbytes(count: int) -> int:
        return 4 * form.words(stacked * count, k)

    assert 1 <= rows <= n
    if nbytes(n) <= most or nbytes(1) > most:
        assert rows == n
        return
    assert nbytes(rows) <= most
    fitting_rows = max(count for count in range(1, n + 1) if nbytes(count) <= most)
    assert -(-n // rows) == -(-n // fitting_rows)  # no fewer parts would do
    assert rows % 4 == 0 or -(-rows // 4) * 4 > fitting_rows


def split(graph: Graph, most: int) -> Graph:
    types = graph.infer_types({value.name: value.type for value in graph.inputs})
    return split_weights(graph, types, most)


def tied(table: Value, n: int, k: int) -> Graph:
    builder = Builder("tied")
    index = builder.input("index", TensorType((2,), DType.int32))
    (rows,) = builder.add(QuantizedRows("f32", n, k), index, table, name="rows")
    (scores,) = builder.add(QuantizedMatmul("f32", n, k), rows, table, name="scores")
    return builder.graph([rows, scores])


def test_a_graph_with_small_weights_stays() -> None:
    packed, _ = weight_of("f32", 9, 32)
    graph = tied(constant(packed), 9, 32)
    assert split(graph, packed.nbytes) is graph
    assert split(graph, 127) is graph  # not even a row fits


def test_a_graph_in_parts_computes_the_same() -> None:
    packed, numbers = weight_of("f32", 9, 32)
    graph = split(tied(constant(packed), 9, 32), packed.nbytes // 2)
    operators = [type(node.operator) for node in graph.nodes]
    assert [operators.count(one) for one in (QuantizedRows, QuantizedMatmul, Concat)] == [3, 3, 1]
    assert [value.name for value in graph.outputs] == ["rows", "scores"]
    executor = Executor(graph, open_backend("cpu"))
    for index in ([0, 8], [3, 4], [7, -1], [-9, 100], [-100, 5]):
        found = executor.run({"index": np.array(index, np.int32)}, ["rows", "scores"])
        at = np.clip([one + 9 if one < 0 else one for one in index], 0, 8)
        np.testing.assert_allclose(found["rows"], numbers[at], 1e-6)
        np.testing.assert_allclose(found["scores"], numbers[at] @ numbers.T, 1e-4, 1e-5)

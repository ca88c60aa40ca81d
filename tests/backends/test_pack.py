from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import run as run_graph
from glnn.compiler.plan import Plan
from glnn.core.types import TensorType
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pack, Pointwise, Reshape
from glnn.graph.passes.output_rewrites import LEAST_PACKED
from tests.backends.harness import kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("pack"))
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (7, 17), (2, 127, 5)])
def test_any_shape(opened, name, kernel, dtype, shape) -> None:
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(dtype)
    np.testing.assert_array_equal(run(opened(name), Pack(), {"x": x}, kernel), x)


@pytest.mark.parametrize(
    "count", [LEAST_PACKED - 1, LEAST_PACKED, LEAST_PACKED + 1, 5 * LEAST_PACKED + 3]
)
def test_outputs_of_bytes_come_back_packed(backend, count) -> None:
    """Large ones; whoever else reads them reads words."""
    builder = Builder("bytes")
    x = builder.input("x", TensorType((count,)))
    (y,) = builder.add(Pointwise(call("cast_uint8", call("mul", Arg(0), 3.0))), x, name="y")
    (z,) = builder.add(Pointwise(call("greater", call("cast_int32", Arg(0)), 99)), y, name="z")
    (seen,) = builder.add(Reshape((1, count)), z, name="seen")
    graph = builder.graph([y, z, seen])
    given = {"x": np.random.default_rng(0).random(count, np.float32) * 85}
    bytes_of = (given["x"] * np.float32(3)).astype(np.uint8)
    found = run_graph(graph, given, backend)
    np.testing.assert_array_equal(found["y"], bytes_of)
    np.testing.assert_array_equal(found["z"], bytes_of > 99)
    np.testing.assert_array_equal(found["seen"], [bytes_of > 99])
    assert (found["y"].dtype, found["z"].dtype) == (np.uint8, np.bool_)
    plan = Plan(graph, backend, {"x": (count,)})
    packed = sum(entry.lowered.op.name == "pack" for entry in plan.outline.schedule.entries)
    assert packed == (2 if count >= LEAST_PACKED else 0)

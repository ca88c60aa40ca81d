"""Batches that exceed a storage block, or the workgroups of a dispatch, are computed in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glnn.backends.compute import Compute
from glnn.compiler import evaluate
from glnn.compiler.plan import Plan
from glnn.core.types import DType, TensorType
from glnn.errors import DeviceError, LimitError
from glnn.gl import Device
from glnn.graph.builder import Builder
from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Conv2d,
    LocalResponseNorm,
    Pad,
    Pointwise,
    Pool2d,
    Reduce,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.op_spec import OpSpec
from tests.backends.epilogues import finish
from tests.oracle import error

PADDED = (1, 1, 1, 1)
ADD = call("add", Arg(0), Arg(1))
CASES: list[tuple[Operator, dict[str, tuple[int, ...]], Epilogue | None]] = [
    (Conv2d(padding=PADDED), {"x": (37, 5, 9, 9), "weight": (8, 5, 3, 3), "e1": (8,)}, BIASED),
    (Conv2d(padding=PADDED), {"x": (37, 5, 8, 8), "weight": (36, 5, 3, 3), "e1": (36,)}, BIASED),
    (
        Conv2d(padding=PADDED),
        {"x": (19, 8, 8, 8), "weight": (32, 8, 3, 3), "e1": (19, 32, 8, 8)},
        finish(full=True, activation="relu"),
    ),
    (Pool2d(), {"x": (37, 5, 9, 9)}, None),
    (Pointwise(call("tanh", Arg(0))), {"x0": (150, 100)}, None),
    (Softmax(), {"x": (150, 100)}, None),
    (Pointwise(ADD), {"x0": (41, 3, 7, 16), "x1": (3, 1, 16)}, None),
    (Pointwise(ADD), {"x0": (41, 3, 7, 16), "x1": (41, 1, 7, 16)}, None),
    (LocalResponseNorm(5), {"x": (33, 7, 5, 9)}, None),
    (Reorder("R4", "nhwC4c"), {"x": (37, 5, 9, 9)}, None),
    (Transpose((0, 3, 1, 2)), {"x": (41, 5, 6, 10)}, None),
    (Transpose((0, 2, 1)), {"x": (29, 20, 18)}, None),
    (Pad((0, 1, 2), (0, 0, 1), "reflect"), {"x": (41, 7, 60)}, None),
    (Slice((1,), (12,), (2,), (3,)), {"x": (200, 7, 13)}, None),
    (Reduce("sum", (2,)), {"x0": (200, 7, 12)}, None),
    (Reduce("sum", (1,)), {"x0": (41, 7, 60)}, None),
    (Reduce("mean", (1, -1), True, prologue=ADD), {"x0": (130, 3, 6, 8), "x1": (3, 1, 1)}, None),
    (Reduce("max", (1,), True), {"x0": (700, 20)}, None),
]


@pytest.fixture(scope="module")
def small() -> Iterator[Compute]:
    """A device whose storage blocks hold 32 KiB, and that takes 40 workgroups a dimension."""
    try:
        with Device(limits="es31-minimum") as device:
            device.capabilities = replace(
                device.capabilities,
                max_shader_storage_block_size=1 << 15,
                max_compute_work_group_count=(40, 40, 40),
            )
            if reason := Compute.why_not_device(device):
                pytest.skip(reason)
            yield Compute(device)
    except DeviceError as failed:
        pytest.skip(str(failed))


@pytest.mark.parametrize(("op", "shapes", "epilogue"), CASES, ids=lambda v: getattr(v, "name", ""))
def test_in_parts(small, rng, op, shapes, epilogue) -> None:
    operands: dict[str, Any] = {name: rng(shape) for name, shape in shapes.items()}
    whole = max(np.prod(shape) for shape in shapes.values())
    assert 4 * whole > 1 << 15, "one block would hold it"
    spec = OpSpec.create(op, shapes, {}, epilogue)
    expected = spec.compute({name: a.astype(np.float64) for name, a in operands.items()})
    assert error(evaluate(op, operands, small, epilogue=epilogue), expected) <= 1e-5


@pytest.mark.parametrize("dtype", [DType.int8, DType.float16])
@pytest.mark.parametrize("shape", [(40, 256), (100, 94)])
def test_packed_inputs(small, dtype, shape) -> None:
    """Where no few samples of bytes begin where a buffer may be bound, they go up as words."""
    samples = 256 // np.gcd(256, shape[1] * dtype.numpy.itemsize)
    packed = 4 * samples * shape[1] <= 1 << 15
    builder = Builder("bytes")
    x = builder.input("x", TensorType(shape, dtype))
    (y,) = builder.add(Pointwise(call("cast_float32", Arg(0))), x, name="y")
    plan = Plan(builder.graph([y]), small, {"x": shape})
    layout = plan.outline.schedule.tensors["x"].layout
    assert (layout.name == "packed") == packed
    given = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape).astype(dtype.numpy)
    np.testing.assert_array_equal(plan.run({"x": given})["y"], given.astype(np.float32))


def test_arrays_without_samples(small, rng) -> None:
    with pytest.raises(LimitError, match="a storage block has 32768"):
        evaluate(Pointwise(call("relu", Arg(0))), {"x0": rng((9000,))}, small)
    one = np.full((), -2, np.float32)
    assert evaluate(Pointwise(call("relu", Arg(0))), {"x0": one}, small) == 0
    assert evaluate(Pointwise(ADD), {"x0": one, "x1": one}, small) == -4


def test_one_sample_beyond_a_block_is_refused(small, rng) -> None:
    with pytest.raises(LimitError, match="a storage block has 32768"):
        evaluate(Pointwise(call("relu", Arg(0))), {"x0": rng((2, 9000))}, small)

"""Operators that move numbers, look them up or put them, where the suite does not look."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.single import BACKENDS, check

RNG = np.random.default_rng(13)
MOST, LEAST = 2**63 - 1, -(2**63)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((MOST, -1), (LEAST, -9), (0, 1), (-1, -3)),
        ((LEAST, 2), (MOST, MOST), (-1, 0), (2**62, 1)),
        ((3,), (1,), (0,), (1,)),
        ((-7, 1), (7, -1), (1, 0), (2, 1)),
    ],
)
def test_slices(backend: str, starts, ends, axes, steps) -> None:
    x = floats(3, 7)
    check("Slice", [x, *map(np.array, (starts, ends, axes, steps))], backend, opset=13)
    if min(steps) > 0 and max(steps) == 1:
        check("Slice", [x], backend, opset=1, starts=starts, ends=ends, axes=axes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("start", "end", "count"), [(-5, -9, 1), (-4, MOST, 0), (-9, 1, 0)])
def test_slices_backwards_from_before_the_first_place(backend: str, start, end, count) -> None:
    """They begin at the first place, as ONNX Runtime's do: it had been the last one."""
    x = floats(3, 7)
    operands = [x, *map(whole, (start, end, 0, -2))]
    check("Slice", operands, backend, x[:count], opset=13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding(backend: str) -> None:
    x, pads = floats(3, 5) * 9, whole(-1, 1, 1, -1)
    for mode in ("reflect", "edge", "wrap"):
        check("Pad", [x, pads], backend, opset=19, mode=mode)
    for dtype in (np.float32, np.int32, np.uint8, np.bool_):
        fill = np.array(3, dtype)
        for known in ((), (2,)):  # a number that is computed stays where it is
            check("Pad", [x.astype(dtype), pads, fill], backend, opset=18, known=known)
    check("Pad", [x, whole(1, 2), np.array(-np.inf, np.float32), whole(-1)], backend, opset=18)
    check("Pad", [x], backend, opset=2, pads=[0, 2, 1, 0], value=2.5)
    check("Pad", [x], backend, np.pad(x, 1, mode="edge"), opset=1, paddings=[1] * 4, mode="edge")
    check("CenterCropPad", [floats(7, 4, 3), whole(4, 9)], backend, opset=18, axes=[0, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces(backend: str) -> None:
    x = floats(7, 3)
    check("Split", [x, whole(0, 5, 2)], backend, opset=13, outputs=3, axis=-2)
    check("Split", [x], backend, opset=2, outputs=2, axis=0, split=[6, 1])
    check("Split", [x], backend, opset=18, outputs=3, num_outputs=3)
    parts = [floats(2, 0), floats(2, 3), floats(2, 1)]
    check("Concat", parts, backend, opset=13, axis=-1)
    check("Concat", [floats(2, 0), floats(2, 0)], backend, opset=13, axis=1)
    tiled = np.tile(x, (1, 2))
    check(
        "Tile", [x, np.array(2.0, np.float32), np.array(1.0, np.float32)], backend, tiled, opset=1
    )
    check("Tile", [x, whole(0, 2)], backend, opset=13)
    check("Expand", [floats(3, 1), whole(2, 1, 4)], backend, opset=13)
    blocks = floats(1, 8, 3, 2)
    expected = blocks.reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 6, 4)
    check("DepthToSpace", [blocks], backend, expected, opset=1, blocksize=2)
    check("Range", [np.array(n, np.float32) for n in (3, -1, -0.5)], backend, opset=11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_looking_up_and_putting(backend: str, axis: int) -> None:
    x = floats(3, 5, 7)
    size = x.shape[axis]
    index = RNG.integers(-size, size, (2, 3))
    check("Gather", [x, index], backend, opset=13, axis=axis)
    check("Gather", [x.astype(np.int64), index[0, :1].reshape(())], backend, opset=13, axis=axis)
    each = RNG.integers(-size, size, (2, 4, 3))
    check("GatherElements", [x, each], backend, opset=13, axis=axis)
    order = np.argsort(floats(3, 5, 7), axis)
    for dtype in (np.float32, np.uint8, np.bool_):
        updates = floats(3, 5, 7).astype(dtype)
        check("ScatterElements", [x.astype(dtype), order, updates], backend, opset=11, axis=axis)
    few = RNG.integers(-2, 2, (2, 4, 3))
    for reduction in ("add", "mul", "max", "min"):
        for dtype in (np.float32, np.int32, np.uint8):
            updates = np.abs(floats(2, 4, 3) * 9)
            operands = [np.abs(x * 9).astype(dtype), few, updates.astype(dtype)]
            more = {"axis": axis, "reduction": reduction, "opset": 18, "tolerance": 1e-4}
            check("ScatterElements", operands, backend, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tuples_of_indices(backend: str) -> None:
    x = floats(3, 5, 7)
    check("GatherND", [x, RNG.integers(-3, 3, (3, 2, 1))], backend, opset=13, batch_dims=1)
    check("GatherND", [x, RNG.integers(-3, 3, (4, 3))], backend, opset=13)
    for reduction in ("add", "max"):
        operands = [x, RNG.integers(-3, 3, (4, 2)), floats(4, 7)]
        check("ScatterND", operands, backend, opset=18, reduction=reduction)
    lengths = whole(1, 5, 3)
    check("ReverseSequence", [floats(5, 3, 2), lengths], backend, opset=10)
    check("ReverseSequence", [floats(3, 5), lengths], backend, opset=10, batch_axis=0, time_axis=1)

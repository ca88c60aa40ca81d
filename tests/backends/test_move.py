"""Numbers moved on the GPU, against NumPy's indexing; exactly, whatever their dtype."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.errors import UnsupportedOpError
from glnn.graph.operators.move import Expand, Flip, Pad, Roll, Slice, Tile, Transpose
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import run

CASES = [
    (Transpose((1, 0)), (127, 129), lambda x: x.T),
    (Transpose((1, 0)), (64, 32), lambda x: x.T),
    (Transpose((1, 0)), (1, 7), lambda x: x.T),
    (Transpose((0, 2, 1)), (3, 33, 7), lambda x: np.swapaxes(x, 1, 2)),
    (Transpose((0, 2, 1, 3)), (2, 5, 3, 8), lambda x: np.moveaxis(x, 2, 1)),
    (Transpose((-1, 0, 2, 1)), (3, 4, 5, 40), lambda x: np.transpose(x, (3, 0, 2, 1))),
    (Transpose((2, 1, 0)), (2, 0, 3), lambda x: np.transpose(x)),
    (Transpose((2, 3, 1, 0)), (37, 13, 3, 3), lambda x: np.transpose(x, (2, 3, 1, 0))),
    (Transpose((0, 3, 2, 1)), (2, 33, 11, 3), lambda x: np.transpose(x, (0, 3, 2, 1))),
    (
        Transpose((7, 0, 6, 1, 5, 2, 4, 3)),
        (2, 1, 3, 2, 1, 2, 3, 2),
        lambda x: np.transpose(x, (7, 0, 6, 1, 5, 2, 4, 3)),
    ),
    (Expand((3, 7)), (7,), lambda x: np.broadcast_to(x, (3, 7))),
    (Expand((2, 3, 4, 5)), (3, 1, 5), lambda x: np.broadcast_to(x, (2, 3, 4, 5))),
    (Expand((129, 4)), (129, 1), lambda x: np.broadcast_to(x, (129, 4))),
    (Expand((2, 8, 8)), (8, 8), lambda x: np.broadcast_to(x, (2, 8, 8))),
    (Expand(()), (), lambda x: x),
    (Slice((1,), (10**9,), (0,), (2,)), (129,), lambda x: x[1::2]),
    (Slice((4, -8), (12, 8), (0, 1), (1, 1)), (16, 16), lambda x: x[4:12, -8:8]),
    (Slice((4, 8), (12, 16), (0, 1), (2, 1)), (16, 20), lambda x: x[4:12:2, 8:16]),
    (Slice((-1, 2), (-(10**9), 5), (2, 0), (-2, 1)), (7, 3, 5), lambda x: x[2:5, :, ::-2]),
    (Slice((3,), (3,), (1,), (1,)), (2, 7), lambda x: x[:, 3:3]),
    (Flip((0, -1)), (3, 4, 7), lambda x: x[::-1, :, ::-1]),
    (
        Pad((0, 1, 2), (3, 0, 1), "constant", 7),
        (2, 3, 5),
        lambda x: np.pad(x, ((0, 3), (1, 0), (2, 1)), constant_values=7),
    ),
    (Pad((0, 4), (1, 4), "constant", 0), (3, 8), lambda x: np.pad(x, ((0, 1), (4, 4)))),
    (
        Pad((1, -1), (-1, 2), "constant", 5),
        (3, 4),
        lambda x: np.pad(x[:-1, 1:], ((1, 0), (0, 2)), constant_values=5),
    ),
    (Pad((2,), (2,), "constant", 3), (0,), lambda x: np.full(4, 3, x.dtype)),
    (Pad((2, 9), (1, 7), "reflect"), (3, 4), lambda x: np.pad(x, ((2, 1), (9, 7)), mode="reflect")),
    (Pad((2, 3), (1, 2), "reflect"), (1, 4), lambda x: np.pad(x, ((2, 1), (3, 2)), mode="reflect")),
    (
        Pad((2, 0, 3), (1, 0, 5), "edge"),
        (3, 4, 2),
        lambda x: np.pad(x, ((2, 1), (0, 0), (3, 5)), mode="edge"),
    ),
    (Pad((1, 5), (4, 0), "wrap"), (3, 4), lambda x: np.pad(x, ((1, 4), (5, 0)), mode="wrap")),
    (Tile((2, 3)), (3, 5), lambda x: np.tile(x, (2, 3))),
    (Tile((1, 4, 1)), (2, 3, 4), lambda x: np.tile(x, (1, 4, 1))),
    (Tile((0, 2)), (3, 5), lambda x: np.tile(x, (0, 2))),
    (Roll((2, -9), (0, 1)), (3, 7), lambda x: np.roll(x, (2, -9), (0, 1))),
]

KERNELS = {"compute": ("words", "tiled_transpose"), "feedback": ("feedback",)}


@pytest.mark.parametrize(
    ("op", "shape", "expected"), CASES, ids=lambda v: "" if callable(v) else str(v)
)
def test_any_map(backend: GlBackend, op, shape, expected) -> None:
    x = np.arange(1, 1 + np.prod(shape), dtype=np.int32).reshape(shape)
    for kernel in KERNELS[backend.name]:
        try:
            got = run(backend, op, {"x": x}, kernel)
        except UnsupportedOpError as error:
            assert kernel == "tiled_transpose" and "it transposes matrices" in str(error)
            continue
        np.testing.assert_array_equal(got, expected(x))


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "int8", "bool"])
def test_any_dtype_exactly(backend: GlBackend, dtype) -> None:
    x = np.random.default_rng(3).integers(0, 256, (33, 37)).astype(dtype)
    if dtype == "float32":  # what a GPU that computed with it might change
        x[0, :6] = [-0.0, np.inf, -np.inf, np.nan, 1e-42, 3.4e38]
    if dtype == "int32":
        x[0, :4] = [-(2**31), 2**31 - 1, 1, -1]
    for kernel in KERNELS[backend.name]:
        got = run(backend, Transpose((1, 0)), {"x": x}, kernel)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, x.T)
        assert (np.signbit(got) == np.signbit(x.T)).all() if dtype == "float32" else True
    fill = {"float32": -1.5, "bool": True}.get(dtype, 7)
    got = run(backend, Pad((1, 0), (0, 3), fill=fill), {"x": x}, KERNELS[backend.name][0])
    np.testing.assert_array_equal(got, np.pad(x, ((1, 0), (0, 3)), constant_values=fill))


def test_what_turns_matrices_goes_by_tiles(opened) -> None:
    def kernel(op: Transpose, *shape: int) -> str:
        return opened("compute").choose(OpSpec.create(op, {"x": shape}, {})).name

    assert kernel(Transpose((1, 0)), 64, 64) == "tiled_transpose"
    assert kernel(Transpose((1, 0)), 64, 3) == "words"
    assert kernel(Transpose((1, 0, 2)), 64, 64, 8) == "words"
    # what is read is a row of windows of three numbers
    assert kernel(Transpose((2, 1, 0)), 64, 64, 3) == "tiled_transpose"


@pytest.mark.parametrize("channels", [3, 8, 17])
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Pad((0, 0, 1, 0), (0, 0, 2, 3)), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 3)))),
        (Pad((0, 1, 0, 0), (0, 2, 0, 0)), lambda x: np.pad(x, ((0, 0), (1, 2), (0, 0), (0, 0)))),
        (Flip((2,)), lambda x: x[:, :, ::-1]),
        (Transpose((0, 1, 3, 2)), lambda x: np.swapaxes(x, 2, 3)),
        (Slice((1, 2), (3, 5), (1, 3), (1, 2)), lambda x: x[:, 1:3, :, 2:5:2]),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_images_with_their_channels_last(opened, rng, op, expected, channels) -> None:
    x = rng((2, channels, 5, 7))
    x[0, 0, 0, 0] = np.nan  # what lies beside it must be as it was
    got = run(opened("compute"), op, {"x": x}, "nhwc", layouts={"x": "nhwC4c"})
    np.testing.assert_array_equal(got, expected(x))

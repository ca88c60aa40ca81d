from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import UnsupportedOpError
from glnn.graph.operators.reorder import Reorder
from glnn.kernels import library
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import run

FIXED = [k for k in library() if k.op == "reorder" and k.wants("x") != ("any",)]
IMAGES = [k for k in FIXED if not k.document]
TURNED = [k for k in FIXED if k.document]  # Cheng's, of matrices
MATRICES = [
    "R",
    "R4",
    "C",
    "R 1 1 R",
    "C 1 1 C",
    "C 4 2 C",
    "R 2 4 R",
    "R 4 4 R 2 2 R",
    "C 8 4 R 4 2 C 2 1 R",
]


@pytest.mark.parametrize("kernel", IMAGES, ids=lambda k: k.name)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 4, 2, 2), (1, 17, 3, 1), (5, 6, 7, 3)]
)
def test_images_stay(opened, rng, kernel, shape) -> None:
    x = rng(shape)
    for source in kernel.wants("x"):
        op = Reorder(source, *kernel.wants("out"))
        np.testing.assert_array_equal(run(opened(kernel.backend), op, {"x": x}, kernel.name), x)


@pytest.mark.parametrize("kernel", TURNED, ids=lambda k: k.name)
def test_matrices_are_transposed(opened, rng, kernel) -> None:
    for shape in [(1, 1), (7, 3), (4, 129), (33, 16), (127, 257)]:
        x = rng(shape)
        got = run(opened(kernel.backend), Reorder("C", "R4"), {"x": x}, kernel.name)
        np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("source", MATRICES)
@pytest.mark.parametrize("target", MATRICES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (16, 8), (13, 29)])
def test_matrices_stay(backend, rng, source, target, shape) -> None:
    x = rng(shape)
    np.testing.assert_array_equal(run(backend, Reorder(source, target), {"x": x}, None), x)


def test_layouts_that_no_kernel_joins_are_refused(backend) -> None:
    with pytest.raises(UnsupportedOpError, match="reorder"):
        backend.choose(
            OpSpec.create(Reorder("nChw4c", "nChw8c"), {"x": (1, 8, 2, 2)}, {"x": "nChw4c"})
        )

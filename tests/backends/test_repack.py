from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import UnsupportedOpError
from glnn.kernels import library
from glnn.ops.repack import Repack
from tests.backends.harness import run

KERNELS = [k for k in library() if k.op == "repack"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 5, 7), (3, 4, 2, 2), (1, 17, 3, 1), (5, 6, 7, 3)]
)
def test_values_stay(opened, rng, kernel, shape) -> None:
    x = rng(shape)
    op = Repack(kernel.layouts["x"], kernel.layouts["out"])
    np.testing.assert_array_equal(run(opened(kernel.backend), op, {"x": x}, kernel.name), x)


def test_layouts_that_no_kernel_joins_are_refused(backend) -> None:
    with pytest.raises(UnsupportedOpError, match="repack"):
        backend.choose(Repack("nChw4c", "nChw8c"), {"x": (1, 8, 2, 2)}, {"x": "nChw4c"})

from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.core.types import TensorType
from glnn.errors import ShapeError
from glnn.graph.operators.conv2d_lowering import Im2row, Zero
from tests import oracle
from tests.backends.harness import kernels, run

# (x, attributes)
CASES = [
    ((1, 1, 1, 1), {"kernel": (1, 1)}),
    ((2, 3, 1, 1), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    ((2, 3, 7, 5), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
    ((1, 7, 9, 5), {"kernel": (3, 2), "stride": (2, 1), "padding": (0, 1, 0, 0)}),
    ((3, 17, 5, 3), {"kernel": (2, 2), "padding": (1, 0, 0, 0)}),
    ((1, 17, 3, 3), {"kernel": (1, 1), "stride": (2, 2)}),
    ((2, 1, 11, 13), {"kernel": (5, 5), "padding": (0, 0, 2, 2)}),
    ((1, 4, 8, 9), {"kernel": (3, 3), "dilation": (2, 3), "padding": (2, 3, 1, 0)}),
    ((2, 5, 4, 4), {"kernel": (1, 3), "stride": (3, 2), "padding": (2, 0, 2, 4)}),
    ((1, 3, 2, 2), {"kernel": (7, 7), "padding": (3, 3, 3, 3)}),  # more taps than pixels
    ((1, 8, 6, 35), {"kernel": (2, 2)}),  # whole quads only
]


@pytest.mark.parametrize(("name", "kernel"), kernels("im2row"))
@pytest.mark.parametrize(("shape", "attributes"), CASES)
def test_any_shape(opened, rng, name, kernel, shape, attributes) -> None:
    x = rng(shape)
    got = run(opened(name), Im2row(**attributes), {"x": x}, kernel)
    np.testing.assert_array_equal(got, oracle.im2row(x, **attributes))


@pytest.mark.parametrize(("name", "kernel"), [k for k in kernels("im2row") if k[0] == "compute"])
def test_it_overwrites_what_was_there(opened, rng, name, kernel) -> None:
    op, x = Im2row((3, 3), padding=(1, 0, 0, 1)), rng((2, 3, 5, 7))
    into = np.full(op.shape_of({"x": x.shape}), np.nan, np.float32)
    got = run(opened(name), op, {"x": x, "into": into}, kernel)
    np.testing.assert_array_equal(got, oracle.im2row(x, op.kernel, padding=op.padding))


@pytest.mark.parametrize(("name", "kernel"), kernels("im2row"))
def test_not_a_number_stays_where_it_is(opened, rng, name, kernel) -> None:
    x = rng((2, 5, 4, 3))
    x[0, 0, 0, 0], x[1, 4, 3, 2] = np.nan, -np.inf  # where a tap outside must not look
    got = run(opened(name), Im2row((3, 3), padding=(1, 1, 1, 1)), {"x": x}, kernel)
    np.testing.assert_array_equal(got, oracle.im2row(x, (3, 3), padding=(1, 1, 1, 1)))


def test_more_rows_than_workgroups(opened, rng) -> None:
    x = rng((1, 1, 700, 400))  # 280000 rows: the dispatch is cut short on the least of devices
    got = run(opened("compute"), Im2row((1, 1)), {"x": x}, "rows")
    np.testing.assert_array_equal(got, x.reshape(-1, 1))


def test_the_result_lies_where_the_zeros_did(opened) -> None:
    schedule, op = Schedule(opened("compute")), Im2row((2, 2))
    schedule.add_input("x", TensorType((1, 3, 4, 5)))
    rows = op.shape_of({"x": (1, 3, 4, 5)})
    schedule.add(LoweredOp("zeros", Zero(rows, "R 2 4 R"), {}, {}, "zeros", "zeros", "vec4"))
    operands = {"x": "x", "into": "zeros"}
    schedule.add(LoweredOp("patches", op, operands, {}, "patches", "patches", "morton_2_4"))
    assert schedule.tensors["patches"].memory == "zeros"
    assert [e.lowered.op.name for e in schedule.entries] == ["zero", "reorder", "im2row"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"the kernel \(3, 3\) is larger than x"):
        Im2row((3, 3)).shape_of({"x": (1, 1, 2, 3)})
    with pytest.raises(ShapeError, match=r"into must have shape \(6, 12\)"):
        Im2row((2, 2)).shape_of({"x": (1, 3, 3, 4), "into": (6, 13)})
    with pytest.raises(ShapeError, match="x must have shape"):
        Im2row((2, 2)).shape_of({"x": (3, 4)})
    with pytest.raises(ShapeError, match="kernel must be 2 integers of at least 1"):
        Im2row((0, 2))

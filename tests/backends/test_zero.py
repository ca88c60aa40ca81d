from __future__ import annotations

import numpy as np
import pytest

from glnn.compiler import evaluate
from glnn.core.layout import parse
from glnn.gl import Buffer
from glnn.graph.operators.conv2d_lowering import Zero
from glnn.kernels.op_spec import OpSpec
from tests.backends.harness import kernels, run


@pytest.mark.parametrize(("name", "kernel"), kernels("zero"))
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (7, 17), (129, 127), (3, 5, 2), (1, 7, 3, 5)])
def test_any_shape(opened, name, kernel, shape) -> None:
    np.testing.assert_array_equal(run(opened(name), Zero(shape), {}, kernel), np.zeros(shape))


@pytest.mark.parametrize(("name", "kernel"), kernels("zero"))
@pytest.mark.parametrize("layout", ["R", "C", "R 2 4 R", "C 4 2 C"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 7), (40, 12)])
def test_the_padding_is_zero_too(opened, name, kernel, layout, shape) -> None:
    backend, op = opened(name), Zero(shape, layout)
    run(backend, op, {}, kernel)  # with a guard zone behind it
    backend.activate()
    spec = OpSpec.create(op, {}, {})
    choice = backend.choose(spec, kernel)
    assert backend.layouts(choice, spec)["out"].name == layout
    out = Buffer(shape, parse(layout))
    backend.device.write_buffer(out.push(backend.device), np.full(out.size, np.nan, np.float32))
    backend.prepare(choice, spec, {}, out)()
    memory = np.frombuffer(out.push(backend.device).read(), np.float32)
    assert memory.size == parse(layout).size(shape) and not memory.any()


def test_images_have_layouts_of_their_own(opened) -> None:
    got = run(opened("compute"), Zero((2, 5, 3, 3), "nhwC4c"), {}, "vec4")
    np.testing.assert_array_equal(got, np.zeros((2, 5, 3, 3)))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_zeros(opened, shape) -> None:
    assert evaluate(Zero(shape), {}, opened("compute")).shape == shape

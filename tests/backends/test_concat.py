"""Tensors behind one another on the GPU, against NumPy; exactly."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.errors import UnsupportedOpError
from glnn.graph.operators import Concat
from glnn.kernels.op_spec import OpSpec
from glnn.layers import Concat as Layer
from tests.backends.harness import run

R = {"compute": "per_operand", "feedback": "feedback"}
IMAGES = {"compute": ("nhwc", "nhwC4c"), "feedback": ("feedback_nc4hw4", "nChw4c")}
CASES = [  # axis, the sizes along it, the others
    (0, (3, 1, 7), ()),
    (0, (3, 4), (5,)),
    (1, (3, 7), (1,)),
    (1, (127, 129), (3,)),
    (1, (4, 8, 12), (2,)),
    (-1, (1, 2, 3, 4), (2, 3)),
    (2, (8, 4), (3, 5)),
    (1, (3, 5), (2, 3, 2)),
    (3, (1, 2), (2, 3, 5)),
    (1, (0, 3, 0, 2), (3, 4)),
    (0, (0, 2), (3,)),
    (1, (1,), (3,)),
    (1, (1, 2) * 8, (3, 2)),
]


def arrays(axis, sizes, rest, dtype="int32") -> list[np.ndarray]:
    """Arrays of these sizes along `axis`, each of other numbers."""
    made, first = [], 1
    for size in sizes:
        shape = list(rest)
        shape.insert(axis % (len(rest) + 1), size)
        made.append(np.arange(first, first + np.prod(shape)).reshape(shape).astype(dtype))
        first += made[-1].size
    return made


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("axis", "sizes", "rest"), CASES, ids=str)
def test_along_any_axis(backend: GlBackend, axis, sizes, rest, dtype) -> None:
    given = arrays(axis, sizes, rest, dtype)
    named = {f"x{i}": array for i, array in enumerate(given)}
    got = run(backend, Concat(axis), named, R[backend.name])
    np.testing.assert_array_equal(got, np.concatenate(given, axis))


@pytest.mark.parametrize("channels", [(4, 8), (3, 5, 17), (1,), (8, 4, 12, 4)])
def test_images(backend: GlBackend, rng, channels) -> None:
    kernel, layout = IMAGES[backend.name]
    given = {f"x{i}": rng((2, c, 3, 5)) for i, c in enumerate(channels)}
    layouts = dict.fromkeys(given, layout)
    spec = OpSpec.create(Concat(), {name: x.shape for name, x in given.items()}, layouts)
    if kernel == "feedback_nc4hw4" and any(c % 4 for c in channels):
        with pytest.raises(UnsupportedOpError, match="whole groups of four"):
            run(backend, Concat(), given, kernel, layouts=layouts)
        assert backend.choose(spec).name == R[backend.name]
        return
    assert backend.choose(spec).name == kernel
    got = run(backend, Concat(), given, kernel, layouts=layouts)
    np.testing.assert_array_equal(got, np.concatenate(list(given.values()), 1))


@pytest.mark.parametrize("backend_name", ["compute", "feedback", "cpu"])
@pytest.mark.parametrize("count", [2, 40])
def test_the_layer_takes_any_count(opened, rng, backend_name, count) -> None:
    backend = backend_name if backend_name == "cpu" else opened(backend_name)
    given = [rng((2, i % 3 + 1, 3)) for i in range(count)]
    got = Layer(count)(*given, backend=backend)
    np.testing.assert_array_equal(got, np.concatenate(given, 1))


def test_a_vertex_shader_has_sixteen_textures(opened) -> None:
    spec = OpSpec.create(Concat(), {f"x{i}": (1, 2, 3) for i in range(17)}, {})
    assert "at most 16 operands" in str(opened("feedback").why_not(spec))
    assert opened("compute").why_not(spec) is None


def test_a_verdict_covers_the_launches_of_all_operands(opened) -> None:
    """The largest is of whole groups; the other one is cut short."""
    backend = opened("compute")
    many = 1 << 19  # numbers, in whole groups

    def cut(*sizes: int) -> int:
        spec = OpSpec.create(Concat(0), {f"x{i}": (size,) for i, size in enumerate(sizes)}, {})
        kernel = backend.choose(spec)
        assert kernel.name == "per_operand"
        return backend.cut_axes(kernel, spec)

    assert cut(many, 1024) == 0
    assert cut(many, 1028) == cut(many + 4, 4) == 1

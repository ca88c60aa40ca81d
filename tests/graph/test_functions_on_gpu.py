"""Every scalar function on the GPU against float64, over its domain and at special values."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.compute import Compute
from glnn.backends.gl import GlBackend
from glnn.core.types import DType
from glnn.doctor.checks import Checks
from glnn.doctor.function_accuracy import (
    FunctionCheck,
    check_functions,
    function_checks,
    run,
)
from glnn.errors import DeviceError
from glnn.gl import Device
from glnn.graph.expression import Arg, call
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS
from glnn.graph.gradients.pointwise import differentiate_expression
from glnn.kernels.codegen.expression import function, uniforms
from tests.backends.harness import BACKENDS
from tests.backends.test_hostile import DRIVERS, PRELUDE

CONTEXTS = {
    "ES": (("compute", "feedback"), {}),
    "GL 4.3": (("compute",), {"version": (4, 3)}),
    "GL 3.3": (("feedback",), {"version": (3, 3)}),
}
LOOKS = function_checks()


@pytest.fixture(scope="module", params=CONTEXTS)
def opened(request):
    """The backends to try on a device of each kind."""
    stages, how = CONTEXTS[request.param]
    try:
        with Device(**how) as device:
            yield [BACKENDS[s](device) for s in stages if not BACKENDS[s].why_not_device(device)]
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("looks", LOOKS, ids=lambda some: f"{some[0].name}-{some[0].dtype.value}")
def test_functions(opened, looks) -> None:
    """Of floats in units of the last place; of integers in the 32 bits that they lie in, narrower
    ones keep their own bits; bools lie as 0 and 1, and are true where they are anything else.
    """
    for backend in opened:
        _check(backend, looks)


def _check(backend: GlBackend, looks: list[FunctionCheck]) -> None:
    found = check_functions(backend, looks, Checks())
    wrong = {one.name: one.wrong or one.ulps for one in found if one.wrong or one.imprecise}
    assert not wrong, backend.name
    assert all(one.values == len(look.arguments) for one, look in zip(found, looks, strict=True))


@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_hostile_driver(device, driver, monkeypatch) -> None:
    """Whose built-in functions do with special values what GLSL allows: anything."""
    if not device.capabilities.compute:
        pytest.skip(device.capabilities.why_no_compute())
    words = "".join(f"#define {name} {word}\n" for name, word in DRIVERS[driver].items())
    header = type(device.capabilities).header
    monkeypatch.setattr(
        type(device.capabilities), "header", lambda *own: header(*own) + words + PRELUDE
    )
    for looks in LOOKS:
        if looks[0].dtype is DType.float32:
            _check(Compute(device), looks)


def test_a_row_that_is_added(opened, monkeypatch) -> None:
    """One row is all that a function needs, bodies and numbers included."""
    cube = Function("cube", 1, lambda x: x**3, "a * a * a", gradient="3.0 * a * a * da")
    monkeypatch.setitem(FUNCTIONS, "cube", cube)
    monkeypatch.setitem(FUNCTIONS, "shifted", Function("shifted", 2, body="cube(a) - 0.5 * b"))
    whole = call("where", call("less", Arg(1), 0.5), call("shifted", Arg(0), 3.0), Arg(0))
    x = np.array([[1, 0, 0, 0], [2, 0, 0, 0], [3, 1, 0, 0]], np.float32)
    text = function(whole, [DType.float32] * 2, "mine")
    assert uniforms(whole) == {"scalar_0": 0.5, "scalar_1": 3.0}
    text = text.replace("uniform float scalar_0;", "const float scalar_0 = 0.5;")
    text = text.replace("uniform float scalar_1;", "const float scalar_1 = 3.0;")
    for backend in opened:
        (got,) = run(backend, [(text, "mine(v.xxxx, v.yyyy).w")], [x])
        assert got.tolist() == [-0.5, 6.5, 3.0]
    assert whole.evaluate(x[:, 0], x[:, 1]).tolist() == [-0.5, 6.5, 3.0]
    slope = differentiate_expression(whole, 0)
    assert slope is not None and slope.evaluate(x[:, 0], x[:, 1]).tolist() == [3.0, 12.0, 1.0]


def test_every_function_is_looked_at() -> None:
    """But those of the host, and threefry_uniform by tests/training/test_generator.py."""
    names = {look.name for looks in LOOKS for look in looks}
    assert set(FUNCTIONS) - names == {"cast_int64", "cast_float64", "threefry_uniform"}

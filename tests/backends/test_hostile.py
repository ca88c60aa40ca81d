"""Special values on drivers whose built-in functions do with them what GLSL allows: anything.

The built-in functions are replaced by some that are right for ordinary numbers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.backends import programs
from glnn.backends.gl import GlBackend
from glnn.gl import Device
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Conv2d,
    LocalResponseNorm,
    Matmul,
    Pointwise,
    Pool2d,
    Softmax,
)
from glnn.graph.operators.attention import Attention, StridedView
from tests.backends.epilogues import function as activated
from tests.backends.harness import BACKENDS, kernels, run

Array = NDArray[np.float32]
# What the functions return for what is no ordinary number, and which operand max and min keep.
DRIVERS = {
    "gives 0, drops NaN": {"STRANGE": "0.0", "A_IS_NAN": "b", "B_IS_NAN": "a"},
    "gives much, keeps the first": {"STRANGE": "3.0e38", "A_IS_NAN": "b", "B_IS_NAN": "b"},
    "gives 1, keeps the last": {"STRANGE": "1.0", "A_IS_NAN": "a", "B_IS_NAN": "a"},
    "gives NaN": {"STRANGE": "uintBitsToFloat(0x7fc00000u)", "A_IS_NAN": "b", "B_IS_NAN": "a"},
}
PRELUDE = """
bool no_number(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
bool ordinary(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }
float hostile_exp(float x) {
    return ordinary(x) && x < 88.7 && x >= -104.0 ? exp(x) : STRANGE;
}
float hostile_pow(float x, float y) {
    return ordinary(x) && ordinary(y) && x > 0.0 ? pow(x, y) : STRANGE;
}
float hostile_abs(float x) { return no_number(x) ? STRANGE : abs(x); }
float hostile_max(float a, float b) {
    return no_number(a) ? A_IS_NAN : no_number(b) ? B_IS_NAN : max(a, b);
}
float hostile_min(float a, float b) {
    return no_number(a) ? A_IS_NAN : no_number(b) ? B_IS_NAN : min(a, b);
}
vec4 hostile_exp(vec4 v) {
    return vec4(hostile_exp(v.x), hostile_exp(v.y), hostile_exp(v.z), hostile_exp(v.w));
}
vec4 hostile_max(vec4 a, vec4 b) {
    for (int j = 0; j < 4; ++j) a[j] = hostile_max(a[j], b[j]);
    return a;
}
vec4 hostile_min(vec4 a, vec4 b) {
    for (int j = 0; j < 4; ++j) a[j] = hostile_min(a[j], b[j]);
    return a;
}
int hostile_max(int a, int b) { return max(a, b); }
uvec4 hostile_max(uvec4 a, uvec4 b) { return max(a, b); }
ivec4 hostile_min(ivec4 a, ivec4 b) { return min(a, b); }
int hostile_min(int a, int b) { return min(a, b); }
#if defined(GL_ES) || __VERSION__ >= 420
uint hostile_pack(vec2 v) {
    for (int j = 0; j < 2; ++j) if (!(abs(v[j]) < 65520.0)) v[j] = 0.25;
    return packHalf2x16(v);
}
#define packHalf2x16 hostile_pack
#endif
#define exp hostile_exp
#define pow hostile_pow
#define abs hostile_abs
#define max hostile_max
#define min hostile_min
"""
SPECIAL = np.array(
    [
        *(np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 0.5, -0.5, 3e38, -3e38, 1e30),
        *(88.6, 88.7, 88.8, 89, 103.9, 104, 104.1, 1000),
        *(-88.6, -88.7, -88.8, -89, -103.9, -104, -104.1, -1000),
    ],
    np.float32,
)


@pytest.fixture(params=DRIVERS)
def hostile(request, device: Device, monkeypatch):
    """Gives the backend of a name, on such a driver."""
    prelude = "".join(f"#define {key} {value}\n" for key, value in DRIVERS[request.param].items())
    real = programs.assemble

    def assemble(kernel, header: str, *rest) -> Any:
        return real(kernel, header + prelude + PRELUDE, *rest)

    monkeypatch.setattr(programs, "assemble", assemble)

    def opened(name: str) -> GlBackend:
        if reason := BACKENDS[name].why_not_device(device):
            pytest.skip(reason)
        return BACKENDS[name](device)

    return opened


def check(
    backend: GlBackend,
    op: Operator,
    operands: Mapping[str, Array],
    kernel: str | None,
    function: str = "identity",
) -> None:
    got = run(backend, op, operands, kernel, activated(function))
    with np.errstate(all="ignore"):
        expected = op.compute(dict(operands))
        if finishing := activated(function):
            expected = finishing.evaluate(expected)
    np.testing.assert_allclose(got, expected, rtol=3e-5, atol=1e-37)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_activations(hostile, name, function) -> None:
    op = Pointwise(call(function, Arg(0)))
    check(hostile(name), op, {"x0": SPECIAL.reshape(2, -1)}, None)


def scores() -> Array:
    """Rows of seven with every special value, of nothing else, and of large numbers."""
    found = np.tile(np.linspace(-1, 1, 7, dtype=np.float32), (len(SPECIAL) + 5, 1))
    found[: len(SPECIAL), 3] = SPECIAL
    found[-1], found[-2], found[-3, 5:] = -np.inf, np.nan, np.inf
    found[-4] = [-1000, -89, 0, 1000, 912, 896, 1000]
    return found


@pytest.mark.parametrize(("name", "kernel"), kernels("softmax"))
def test_softmax(hostile, name, kernel) -> None:
    if kernel == "columns":
        check(hostile(name), Softmax(0), {"x": np.ascontiguousarray(scores().T)}, kernel)
        return
    check(hostile(name), Softmax(), {"x": scores()}, kernel)


@pytest.mark.parametrize("kernel", ["flash_masked", "flash_split_masked", "direct_masked"])
def test_attention(hostile, kernel) -> None:
    mask = scores()
    queries, keys = mask.shape
    views = tuple(StridedView(token=n) for n in (4, 4, 8, keys))
    op = Attention(1, 1, queries, keys, 4, 8, views)
    q, k = np.zeros((queries, 4), np.float32), np.ones((keys, 4), np.float32)
    v = np.eye(keys, 8, dtype=np.float32)
    check(hostile("compute"), op, {"q": q, "k": k, "v": v, "mask": mask}, kernel)


@pytest.mark.parametrize(("name", "kernel"), kernels("pool2d"))
@pytest.mark.parametrize("mode", ["max", "average"])
def test_pools(hostile, name, kernel, mode) -> None:
    step = (1, 1) if kernel == "nhwc_columns" else (2, 2)  # there is one window either way
    op = Pool2d(mode, None) if "global" in kernel else Pool2d(mode, (2, 2), step)
    x = np.tile(np.linspace(-1, 1, 4, dtype=np.float32), (len(SPECIAL), 1)).reshape(-1, 4, 2, 2)
    x = np.resize(x, (len(SPECIAL), 4, 2, 2))
    for lane in range(4):  # every place of the window
        x[:, lane].reshape(-1, 4)[:, lane] = SPECIAL
    x[-1], x[-2] = -np.inf, np.nan
    check(hostile(name), op, {"x": x}, kernel)


@pytest.mark.parametrize(("name", "kernel"), kernels("local_response_norm"))
@pytest.mark.parametrize("beta", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("k", [0.0, 1.0])
def test_local_response_norm(hostile, name, kernel, beta, k) -> None:
    x = np.ones((len(SPECIAL), 9, 1, 1), np.float32)
    x[:, 4, 0, 0] = np.where(np.abs(SPECIAL) < 1e-30, 0, SPECIAL)  # squares may be flushed
    check(hostile(name), LocalResponseNorm(3, 1.5, beta, k), {"x": x}, kernel)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("function", ["sigmoid", "relu", "tanh"])
def test_what_follows_a_product(hostile, name, function) -> None:
    weight = np.ones((3, 1), np.float32)
    check(hostile(name), Matmul(), {"x": SPECIAL[:, None], "weight": weight}, None, function)
    x, weight = SPECIAL.reshape(-1, 1, 1, 1), np.ones((3, 1, 1, 1), np.float32)
    check(hostile(name), Conv2d(), {"x": x, "weight": weight}, None, function)

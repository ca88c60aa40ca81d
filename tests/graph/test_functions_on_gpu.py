"""Every scalar function on the GPU against float64, over its domain and at special values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from glnn.device import Buffer, Device, Program, Source
from glnn.doctor.cases import CASES, Case, points
from glnn.errors import DeviceError
from glnn.glsl import included, shaders_folder
from glnn.graph.expression import Arg, Call, call
from glnn.graph.function import Function
from glnn.graph.functions import FUNCTIONS
from glnn.graph.gradient import gradient
from glnn.kernels.generate.expression import function, uniforms
from glnn.layout import parse
from glnn.types import DType
from tests.backends.test_hostile import DRIVERS, PRELUDE

SOME = 16  # functions of one program: a vertex captures as many numbers
COMPUTE = """
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer In { vec4 x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
void main() {
    int i = int(gl_GlobalInvocationID.x);
    vec4 v = x[i];
"""
FEEDBACK = """
in highp vec4 x;
out highp vec4 result[4];
void main() {
    vec4 v = x;
"""
CONTEXTS = {
    "ES": (("compute", "feedback"), {}),
    "GL 4.3": (("compute",), {"version": (4, 3)}),
    "GL 3.3": (("feedback",), {"version": (3, 3)}),
}


def run(
    device: Device,
    stage: str,
    functions: list[tuple[str, str]],
    given: np.ndarray,
    prelude: str = "",
) -> np.ndarray:
    """Each of `functions`, texts and calls of v, for each row of `given` (n, 4): (n, functions)."""
    body = "".join(text for text, _ in functions)
    body += COMPUTE if stage == "compute" else FEEDBACK
    for i, (_, value) in enumerate(functions):
        place = f"result[i * {SOME} + {i}]" if stage == "compute" else f"result[{i // 4}][{i % 4}]"
        body += f"    {place} = {value};\n"
    for i in range(len(functions), SOME if stage == "feedback" else 0):
        body += f"    result[{i // 4}][{i % 4}] = 0.0;\n"
    lines = included(body + "}\n", "test", shaders_folder(), set())
    body = "\n".join(line for line, _, _ in lines) + "\n"
    text = device.capabilities.header(stage) + prelude + body
    source = Source("test", text, tuple(("test", i) for i, _ in enumerate(text.splitlines())))
    count = -(-len(given) // 64) * 64
    padded = np.zeros((count, 4), np.float32)
    padded[: len(given)] = given
    x, out = Buffer((count, 4), parse("R")), Buffer((count, SOME), parse("R"))
    x.set(padded)
    if stage == "compute":
        x.push(device).bind_to_storage_buffer(0)
        out.push(device).bind_to_storage_buffer(1)
        Program.compute(device, source).dispatch((count // 64, 1, 1))
        device.barrier()
    else:
        program = Program.feedback(device, source, ("result",))
        array = program.vertices({"x": (x.push(device), 4)})
        program.capture(array, count, 1, out.push(device))
    out.wrote()
    return out.pull()[: len(given), : len(functions)].copy()


@cache
def _looked_at(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arguments (n, 4), and what is expected of them, and of them with subnormals as 0."""
    arity = FUNCTIONS[case.name].arity
    given = np.zeros((len(points(case, arity)[0]), 4), np.float32)
    for i, one in enumerate(points(case, arity)):
        given[:, i] = one
    flushed = np.where(np.abs(given) < 2.0**-126, np.copysign(0, given), given)
    with np.errstate(all="ignore"):
        exact, other = (
            np.asarray(case.expected(*some.T[:arity].astype(np.float64)), np.float64)
            for some in (given, flushed)
        )
    return given, exact, other


def _off(got: np.ndarray, exact: np.ndarray, least: float) -> np.ndarray:
    """How far off, in units of the last place of what is exact."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(near), np.float32(max(least, 2.0**-126))))
        unit = np.where(np.isinf(near), 2.0**104, unit).astype(np.float64)
        away = np.abs(got.astype(np.float64) - exact) / unit
    tiny = (np.abs(exact) < 2.0**-126) & (np.abs(got) <= 2.0**-126)
    away[tiny | (np.isinf(got) & (got == near)) | (np.isnan(got) & np.isnan(exact))] = 0.0
    close = np.isinf(near) & np.isfinite(exact)  # rounds to infinity: the largest number is near
    away[close] = np.where(np.abs(got[close]) >= 3.40282e38, 0.0, np.inf)
    away[np.isnan(away)] = np.inf
    return away


@pytest.fixture(scope="module", params=CONTEXTS)
def opened(request):
    """A device of each kind, and the stages to try there."""
    stages, how = CONTEXTS[request.param]
    try:
        with Device(**how) as device:
            yield device, [s for s in stages if s == "feedback" or device.capabilities.compute]
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("first", range(0, len(CASES), SOME))
def test_functions_of_floats(opened, first) -> None:
    device, stages = opened
    for stage in stages:
        _check(device, stage, CASES[first : first + SOME])


def _check(device: Device, stage: str, cases: Sequence[Case], prelude: str = "") -> None:
    found = [_looked_at(case) for case in cases]
    ends = np.cumsum([len(given) for given, _, _ in found])
    functions = []
    for case in cases:
        arity = FUNCTIONS[case.name].arity
        text = function(_call(case.name), [DType.float32] * arity, f"f_{case.name}")
        arguments = ", ".join(f"v.{lane}" for lane in "xyzw"[:arity])
        functions.append((text, f"float(f_{case.name}({arguments}))"))
    got = run(device, stage, functions, np.concatenate([given for given, _, _ in found]), prelude)
    wrong = []
    for i, (case, end, (given, exact, other)) in enumerate(zip(cases, ends, found, strict=True)):
        mine = got[end - len(given) : end, i]
        away = np.minimum(_off(mine, exact, case.least), _off(mine, other, case.least))
        worst = int(away.argmax())
        if away[worst] > case.ulps:
            wrong.append(
                f"{case.name}{tuple(given[worst])}: {mine[worst]}, not {exact[worst]}: "
                f"{away[worst]:.2f} ulp; {(away > case.ulps).sum()} such"
            )
    assert not wrong, stage + "\n" + "\n".join(wrong)


def _call(name: str) -> Call:
    return call(name, *(Arg(i) for i in range(FUNCTIONS[name].arity)))


INTS = np.array(
    [*range(-9, 10), 31, 32, 33, 100, 127, 128, 255, 256, 46341, 2**31 - 1, -(2**31), -(2**31) + 1],
    np.int64,
)
INTEGER = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: np.where(b == 0, 0, np.sign(a * b) * (abs(a) // np.maximum(abs(b), 1))),
    "fmod": lambda a, b: np.where(b == 0, 0, np.sign(a) * (abs(a) % np.maximum(abs(b), 1))),
    "remainder": lambda a, b: np.where(
        b == 0, 0, a - b * np.floor(a / np.where(b, b, 1)).astype(int)
    ),
    "pow": lambda a, b: np.array(
        [
            pow(int(x), int(y), 2**32) if y >= 0 else int(x) ** abs(int(y)) if abs(x) == 1 else 0
            for x, y in zip(a, b)
        ]
    ),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "left_shift": lambda a, b: np.where((b < 0) | (b > 31), 0, a << np.clip(b, 0, 31)),
    "right_shift": lambda a, b: a >> np.where((b < 0) | (b > 31), 31, b),
    "equal": lambda a, b: a == b,
    "less": lambda a, b: a < b,
    "greater_equal": lambda a, b: a >= b,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": np.sign,
    "square": lambda a: a * a,
    "bitwise_not": lambda a: -1 - a,
    "cast_float32": lambda a: a.astype(np.float32).view(np.int32),
    "cast_bool": lambda a: a != 0,
    "cast_int8": lambda a: a,
    "cast_uint8": lambda a: a,
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_on_a_hostile_driver(device, driver) -> None:
    """Whose built-in functions do with special values what GLSL allows: anything."""
    if not device.capabilities.compute:
        pytest.skip(device.capabilities.why_no_compute())
    words = "".join(f"#define {name} {word}\n" for name, word in DRIVERS[driver].items())
    for first in range(0, len(CASES), SOME):
        _check(device, "compute", CASES[first : first + SOME], words + PRELUDE)


@pytest.mark.parametrize("dtype", [DType.int32, DType.uint8, DType.int8], ids=lambda d: d.value)
def test_functions_of_integers(opened, dtype) -> None:
    """In the 32 bits that they lie in; narrower ones keep their own bits."""
    device, stages = opened
    limits = np.iinfo(dtype.numpy)
    inside = INTS[(limits.min <= INTS) & (limits.max >= INTS)]
    a, b = (grid.reshape(-1) for grid in np.meshgrid(inside, inside))
    given = np.zeros((len(a), 4), np.int32)
    given[:, 0], given[:, 1] = a, b
    names = list(INTEGER)
    for first in range(0, len(names), SOME):
        some = names[first : first + SOME]
        functions, expected = [], []
        for name in some:
            arity = FUNCTIONS[name].arity
            text = function(_call(name), [dtype] * arity, f"f_{name}")
            arguments = ", ".join(f"floatBitsToInt(v.{c})" for c in "xy"[:arity])
            value = f"f_{name}({arguments})"
            whole = FUNCTIONS[name].gives != "float32"
            functions.append((text, f"intBitsToFloat({value})" if whole else value))
            result = _call(name).infer([dtype] * arity)
            exact = np.asarray(INTEGER[name](*(a, b)[:arity])).astype(np.int64)
            width = result.numpy if result.kind == "int" else np.dtype(np.int32)
            expected.append(exact.astype(width).astype(np.int32))
            with np.errstate(all="ignore"):
                numpy = _call(name).evaluate(*(one.astype(dtype.numpy) for one in (a, b)))
            numpy = numpy.view(np.int32) if not whole else numpy.astype(np.int32)
            shifts = (b >= 0) if "shift" in name else slice(None)
            assert np.array_equal(numpy[shifts], expected[-1][shifts]), name
        for stage in stages:
            got = run(device, stage, functions, given.view(np.float32)).view(np.int32)
            for i, name in enumerate(some):
                wrong = np.flatnonzero(got[:, i] != expected[i])
                assert not len(wrong), (stage, name, a[wrong[0]], b[wrong[0]], got[wrong[0], i])


def test_a_row_that_is_added(opened, monkeypatch) -> None:
    """One row is all that a function needs, bodies and numbers included."""
    device, stages = opened
    cube = Function("cube", 1, lambda x: x**3, "a * a * a", gradient="3.0 * a * a * da")
    monkeypatch.setitem(FUNCTIONS, "cube", cube)
    monkeypatch.setitem(FUNCTIONS, "shifted", Function("shifted", 2, body="cube(a) - 0.5 * b"))
    whole = call("where", call("less", Arg(1), 0.5), call("shifted", Arg(0), 3.0), Arg(0))
    x = np.array([[1, 0, 0, 0], [2, 0, 0, 0], [3, 1, 0, 0]], np.float32)
    text = function(whole, [DType.float32] * 2, "mine")
    assert uniforms(whole) == {"scalar_0": 0.5, "scalar_1": 3.0}
    text = text.replace("uniform float scalar_0;", "const float scalar_0 = 0.5;")
    text = text.replace("uniform float scalar_1;", "const float scalar_1 = 3.0;")
    for stage in stages:
        got = run(device, stage, [(text, "mine(v.xxxx, v.yyyy).w")], x)
        assert got[:, 0].tolist() == [-0.5, 6.5, 3.0]
    assert whole.evaluate(x[:, 0], x[:, 1]).tolist() == [-0.5, 6.5, 3.0]
    slope = gradient(whole, 0)
    assert slope is not None and slope.evaluate(x[:, 0], x[:, 1]).tolist() == [3.0, 12.0, 1.0]


BOOLS = {
    "logical_and": lambda a, b, c: a & b,
    "logical_or": lambda a, b, c: a | b,
    "logical_xor": lambda a, b, c: a ^ b,
    "logical_not": lambda a, b, c: 1 - a,
    "equal": lambda a, b, c: a == b,
    "not_equal": lambda a, b, c: a != b,
    "where": lambda a, b, c: np.where(a, b, c),
    "cast_int32": lambda a, b, c: a,
    "cast_bool": lambda a, b, c: a,
}


def test_functions_of_bools(opened) -> None:
    """Which lie as 0 and 1, and are true where they are anything else."""
    device, stages = opened
    given = np.array([[i & 1, (i >> 1) & 1, (i >> 2) & 1, 0] for i in range(8)], np.int32)
    functions = []
    for name in BOOLS:
        arity = FUNCTIONS[name].arity
        text = function(_call(name), [DType.bool] * arity, f"f_{name}")
        arguments = ", ".join(f"7 * floatBitsToInt(v.{lane})" for lane in "xyz"[:arity])
        functions.append((text, f"float(f_{name}({arguments}))"))
    for stage in stages:
        got = run(device, stage, functions, given.view(np.float32))
        for i, (name, expected) in enumerate(BOOLS.items()):
            assert np.array_equal(got[:, i], expected(*given.T[:3])), (stage, name)


def test_every_function_is_looked_at() -> None:
    hosts = {"cast_int64", "cast_float64"}
    elsewhere = {"threefry_uniform"}  # tests/training/test_generator.py
    known = {case.name for case in CASES} | set(INTEGER) | set(BOOLS)
    assert known | hosts | elsewhere == set(FUNCTIONS)

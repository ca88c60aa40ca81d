"""Every scalar function by itself, held against float64, or against whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glnn.backends.gl import GlBackend
from glnn.device import Buffer, Source
from glnn.doctor.checks import Checks
from glnn.doctor.looks import LEAST, Look
from glnn.errors import ShaderError, first_line, raised
from glnn.glsl import included, shaders_folder
from glnn.layout import parse
from glnn.types import Array, DType

GROUP = 64  # invocations
MOST = 1024  # of a launch: larger ones may be wrong, which no function is to blame for
CLOSE = 1e-5  # of a result: what is off by less is not precise, and not wrong
COMPUTE = """
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer In { vec4 x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int which;
uniform int first;
void main() {
    int i = first + int(gl_GlobalInvocationID.x);
    vec4 v = x[i];
    float found = 0.0;
"""
FEEDBACK = """
in highp vec4 x;
out highp float result;
uniform int which;
void main() {
    vec4 v = x;
    float found = 0.0;
"""
ENDS = {"compute": "    result[i] = found;\n}\n", "feedback": "    result = found;\n}\n"}


@dataclass(frozen=True)
class FunctionFault:
    """A value of a function that is wrong."""

    given: tuple[float, ...]
    """Its arguments."""
    got: float
    """What came."""
    expected: float
    """What should."""
    count: int
    """How many values are wrong, of those that were looked at."""

    @property
    def text(self) -> str:
        """What is wrong, in a few words."""
        given = ", ".join(f"{one:.9g}" for one in self.given)
        others = "" if self.count < 2 else f", and {self.count - 1} other values are wrong"
        return f"of {given} it is {self.got:.9g}, not {self.expected:.9g}{others}"


@dataclass(frozen=True)
class FunctionResult:
    """What was seen of a function on one backend."""

    backend: str
    """Which."""
    name: str
    """The function's."""
    dtype: str
    """Of its arguments."""
    values: int
    """How many were looked at."""
    ulps: float
    """How far off the farthest right one is, in units of the last place; 0 for integers."""
    allowed: float
    """How far off they are on drivers that are known."""
    flushes: bool
    """Whether subnormal numbers are 0 to it, as GL allows."""
    fault: FunctionFault | None
    """What is wrong; None where nothing is."""
    failure: str | None = None
    """Why it could not be run; None where it could."""

    @property
    def wrong(self) -> str | None:
        """Why it is not used; None where it is."""
        return self.failure or (self.fault.text if self.fault else None)

    @property
    def imprecise(self) -> bool:
        """Whether it is less precise than elsewhere, and right within 1e-5."""
        return self.wrong is None and self.ulps > self.allowed


def look_at_functions(
    backend: GlBackend, looks: Sequence[Look], checks: Checks
) -> list[FunctionResult]:
    """What is seen of `looks`, in one program; each in one of its own where that fails.

    Only in the thread that opened the device. checks: run the single ones. Raises DeviceError
    where the device is lost, and MemoryError, which says nothing of a function.
    """
    try:
        found = run(backend, [look.text for look in looks], [look.given for look in looks])
    except Exception as error:  # a driver may fail at anything; each is looked at by itself then
        if backend.device.lost is not None:
            raise
        if len(looks) > 1:
            return list(_one_by_one(backend, looks, checks))
        if isinstance(error, MemoryError):
            raise
        refused = isinstance(error, ShaderError)
        why = f"it does not compile: {first_line(error)}" if refused else raised(error)
        return [_result(backend.name, looks[0], 0.0, False, None, why)]
    return [_judged(backend.name, look, got) for look, got in zip(looks, found, strict=True)]


def _one_by_one(
    backend: GlBackend, looks: Sequence[Look], checks: Checks
) -> Iterator[FunctionResult]:
    """What is seen of each of `looks` in a program of its own, until the device is lost."""
    for look in looks:
        step = step_of([look], backend.name)
        yield from checks.run(step, partial(look_at_functions, backend, [look], checks), [])
        if backend.device.lost is not None:
            return


def step_of(looks: Sequence[Look], backend: str) -> str:
    """Return what looking at these functions in one program is called."""
    if len(looks) == 1:
        return f"{looks[0].name} of {looks[0].dtype.value} on {backend}"
    return f"{len(looks)} functions of {looks[0].dtype.value} on {backend}"


def run(
    backend: GlBackend,
    functions: Sequence[tuple[str, str]],
    given: Sequence[Array],
    prelude: str = "",
) -> list[Array]:
    """The value of each of `functions`, (n,), for each row of what it is `given`, (n, 4).

    functions: texts, and calls of v. Raises ShaderError where they do not compile.
    """
    device, stage = backend.device, backend.name
    device.activate()
    program = backend.compile(_source(backend, functions, prelude))
    found = []
    for which, rows in enumerate(given):
        count = -(-len(rows) // GROUP) * GROUP
        padded = np.zeros((count, 4), np.float32)
        padded[: len(rows)] = rows
        x, out = Buffer((count, 4), parse("R")), Buffer((count,), parse("R"))
        x.set(padded)
        out.push(device).write(np.full(out.size, np.nan, np.float32))
        if stage == "compute":
            x.push(device).bind_to_storage_buffer(0)
            out.push(device).bind_to_storage_buffer(1)
        else:
            array = program.vertices({"x": (x.push(device), 4)})
        for first in range(0, count, MOST):
            part, told = min(MOST, count - first), {"which": which, "first": first}
            program.set({name: told[name] for name in told if name in program.uniforms})
            if stage == "compute":
                program.dispatch((part // GROUP, 1, 1))
            else:
                program.capture(array, part, 1, out.push(device), first, first * program.stride)
        device.barrier()
        out.wrote()
        found.append(out.pull()[: len(rows)].copy())
    return found


def _source(backend: GlBackend, functions: Sequence[tuple[str, str]], prelude: str) -> Source:
    """All of `functions` in one shader, of which `which` says what is computed."""
    body = "".join(text for text, _ in functions)
    body += COMPUTE if backend.name == "compute" else FEEDBACK
    for i, (_, value) in enumerate(functions):
        body += f"    if (which == {i}) found = {value};\n"
    header = backend.device.capabilities.header(backend.name) + prelude
    lines = [(line, "(header)", i) for i, line in enumerate(header.splitlines(), 1)]
    lines += included(body + ENDS[backend.name], "functions", shaders_folder(), set())
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Source("functions", text, tuple((file, number) for _, file, number in lines))


def _judged(backend: str, look: Look, got: Array) -> FunctionResult:
    """What `got` says of the function."""
    if look.case is None:
        bits = got.astype(np.int32) if look.dtype is DType.bool else got.view(np.int32)
        wrong = bits != look.expected[0]
        return _result(backend, look, 0.0, False, _first(look, bits, wrong))
    exact, flushed = look.expected
    case = look.case
    own, other = off(got, exact, case.least), off(got, flushed, case.least)
    away = np.minimum(own, other)
    close = np.zeros(len(got), bool)
    if case.ulps >= 1:  # of what is rounded or compared every bit counts
        for one in look.expected:
            with np.errstate(all="ignore"):
                scale = np.maximum(np.abs(one), max(case.least, LEAST))
                close |= np.isfinite(got) & (np.abs(got - one) <= CLOSE * scale)
    wrong = (away > case.ulps) & ~close
    flushes = bool(((own > case.ulps) & (other <= case.ulps)).any())
    ulps = float(away[~wrong].max(initial=0.0))
    return _result(backend, look, ulps, flushes, _first(look, got, wrong, away))


def _result(
    backend: str,
    look: Look,
    ulps: float,
    flushes: bool,
    fault: FunctionFault | None,
    failure: str | None = None,
) -> FunctionResult:
    allowed = look.case.ulps if look.case else 0.0
    own = look.name, look.dtype.value, len(look.given)
    return FunctionResult(backend, *own, ulps, allowed, flushes, fault, failure)


def _first(look: Look, got: Array, wrong: Array, away: Array | None = None) -> FunctionFault | None:
    """The value that is farthest off, or the first of those that are `wrong`."""
    if not wrong.any():
        return None
    place = int(np.argmax(wrong if away is None else np.where(wrong, away, -1.0)))
    floats = look.dtype.kind == "float"
    given = look.given[place] if floats else look.given.view(np.int32)[place]
    arguments = tuple(float(one) for one in given[: look.arity])
    expected = float(look.expected[0][place])
    return FunctionFault(arguments, float(got[place]), expected, int(wrong.sum()))


def off(got: Array, exact: Array, least: float) -> Array:
    """How far `got` is off, in units of the last place of what is `exact`, or of `least`."""
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(near), np.float32(max(least, LEAST))))
        unit = np.where(np.isinf(near), 2.0**104, unit).astype(np.float64)
        away = np.abs(got.astype(np.float64) - exact) / unit
    tiny = (np.abs(exact) < LEAST) & (np.abs(got) <= LEAST)
    away[tiny | (np.isinf(got) & (got == near)) | (np.isnan(got) & np.isnan(exact))] = 0.0
    close = np.isinf(near) & np.isfinite(exact)  # rounds to infinity: the largest number is near
    away[close] = np.where(np.abs(got[close]) >= 3.40282e38, 0.0, np.inf)
    away[np.isnan(away)] = np.inf
    return np.asarray(away)

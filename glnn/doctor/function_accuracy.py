"""The accuracy of every scalar function, against float64 or integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from glnn.backends.gl import GlBackend
from glnn.core.glsl import included, shaders_folder
from glnn.core.layout import parse
from glnn.core.types import Array, DType
from glnn.doctor.checks import Checks
from glnn.errors import ShaderError, first_line, raised
from glnn.gl import Buffer, Source
from glnn.graph.expression import Arg, Call, call
from glnn.graph.function import Accuracy, Function
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.codegen.expression import function

LARGEST = 3.4028234663852886e38

SPECIAL = np.array(
    [
        *(0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 2.5, 0.25, 7.0, 1e-3, 1e-20, 1e-40, 1.2e-38, 0.99999994),
        *(1.0000001, 4194303.5, 8388607.5, 8388609.0, 16777217.0, 2.1474836e9, 2.1474837e9, 3e9),
        *(1e5, 1e10, 1e20, 1e30, LARGEST, np.inf, np.nan, 127.5, 128.0, 255.4, 88.72283, 88.72284),
        *(89.4, 103.97, 104.1, 65504.0, 65519.0, 65520.0, 2.9802322e-8, 2.9802326e-8, 6.1e-5),
    ],
    np.float32,
)


INTS = np.array(
    [*range(-9, 10), 31, 32, 33, 100, 127, 128, 255, 256, 46341, 2**31 - 1, -(2**31), -(2**31) + 1],
    np.int64,
)


def points(row: Function) -> list[np.ndarray[Any, Any]]:
    """Return the arguments that a function is tested with, float32, one array each."""
    assert row.accuracy is not None
    arguments = row.arity
    generator = np.random.default_rng(len(row.name))
    domain = row.accuracy.domain or ((-20.0, 20.0),) * arguments
    inside = [np.linspace(*ends, 8191) for ends in domain]
    result = [
        np.asarray(generator.permutation(i) if n else i, np.float32) for n, i in enumerate(inside)
    ]
    if row.accuracy.bounded:
        return result
    signed = np.concatenate([SPECIAL, -SPECIAL])
    if arguments == 1:
        whole = np.arange(0, 2**32, 2**32 // 24571, dtype=np.uint64).astype(np.uint32)
        quarters = (np.arange(1, 4000) * (np.pi / 2)).astype(np.float32)
        more = [[signed, whole.view(np.float32), quarters, SPECIAL + 1]]
    else:
        some = np.array(np.meshgrid(*[signed] * min(arguments, 2)), np.float32).reshape(2, -1)
        any_bits = generator.integers(0, 2**32, (arguments, 4096), np.uint32).view(np.float32)
        more = [[*([some[n]] if n < 2 else [some[0][::-1]]), any_bits[n]] for n in range(arguments)]
    return [np.concatenate([one, *others]) for one, others in zip(result, more, strict=True)]


MOST_FUNCTIONS = 16  # of one program, as compiling takes longest
LEAST = 2.0**-126  # the least normal number: GL may flush smaller ones to 0
INTEGERS = (DType.int32, DType.uint8, DType.int8)


@dataclass(frozen=True)
class FunctionCheck:
    """A test of a function with arguments of one type: arguments and expected values."""

    name: str
    """The function's name in the table."""
    dtype: DType
    """The type of its arguments."""
    arguments: Array
    """(n, 4), float32: the bits of its arguments."""
    expected: tuple[Array, ...]
    """Allowed values, (n,) each; for floats the second has subnormal arguments flushed to 0."""
    accuracy: Accuracy | None = None
    """The tolerances of floats; None where all bits must agree."""

    @property
    def arity(self) -> int:
        """The number of arguments."""
        return FUNCTIONS[self.name].arity

    @property
    def text(self) -> tuple[str, str]:
        """The GLSL of the function, and that of a float of its value for the arguments `v`."""
        name = f"f_{self.name}"
        definition = function(_call(self.name), [self.dtype] * self.arity, name)
        lanes = [f"v.{lane}" for lane in "xyzw"[: self.arity]]
        if self.dtype.kind == "float":
            return definition, f"float({name}({', '.join(lanes)}))"
        bits = [f"floatBitsToInt({lane})" for lane in lanes]
        if self.dtype is DType.bool:  # true is anything but 0
            return definition, f"float({name}({', '.join(f'7 * {one}' for one in bits)}))"
        value = f"{name}({', '.join(bits)})"
        is_integer = FUNCTIONS[self.name].gives != "float32"
        return definition, f"intBitsToFloat({value})" if is_integer else value


def function_checks(names: Sequence[str] | None = None) -> list[list[FunctionCheck]]:
    """Return the checks to run, one list for each program. names: of these functions alone."""
    rows = [row for row in FUNCTIONS.values() if row.accuracy is not None]
    integers = [row for row in rows if takes(row, "int")]
    kinds = (
        [_of_floats(row.name) for row in rows if takes(row, "float")],
        *([_of_integers(row.name, dtype) for row in integers] for dtype in INTEGERS),
        [_of_bools(row.name) for row in rows if takes(row, "bool")],
    )
    selected = ([case for case in kind if names is None or case.name in names] for kind in kinds)
    return [
        cases[i : i + MOST_FUNCTIONS]
        for cases in selected
        for i in range(0, len(cases), MOST_FUNCTIONS)
    ]


def takes(row: Function, kind: str) -> bool:
    """Return True where a function is checked with arguments of a kind: "float", "int" or "bool".

    A function of a condition is checked with bools alone. A cast to float16 is checked with floats
    alone, since NumPy rounds integers once and a GPU twice.
    """
    if row.body is not None:
        return kind == "float"
    only = "bool" if row.condition else "float" if row.gives == "float16" else kind
    return kind in row.forms and kind == only


def _call(name: str) -> Call:
    return call(name, *(Arg(i) for i in range(FUNCTIONS[name].arity)))


@cache
def _of_floats(name: str) -> FunctionCheck:
    row = FUNCTIONS[name]
    columns = points(row)
    arguments = np.zeros((len(columns[0]), 4), np.float32)
    for i, column in enumerate(columns):
        arguments[:, i] = column
    flushed = np.where(np.abs(arguments) < LEAST, np.copysign(0, arguments), arguments)
    call = _call(name)
    doubles = (one.T[: row.arity].astype(np.float64) for one in (arguments, flushed))
    with np.errstate(all="ignore"):
        exact, of_flushed = (np.asarray(call.evaluate(*one), np.float64) for one in doubles)
    return FunctionCheck(name, DType.float32, arguments, (exact, of_flushed), row.accuracy)


@cache
def _of_integers(name: str, dtype: DType) -> FunctionCheck:
    limits = np.iinfo(dtype.numpy)
    inside = INTS[(limits.min <= INTS) & (limits.max >= INTS)]
    a, b = (grid.reshape(-1) for grid in np.meshgrid(inside, inside))
    arguments = np.zeros((len(a), 4), np.int32)
    arguments[:, 0], arguments[:, 1] = a, b
    result = _evaluate(name, arguments, dtype)
    expected = result.view(np.int32) if result.dtype == np.float32 else result.astype(np.int32)
    return FunctionCheck(name, dtype, arguments.view(np.float32), (expected,))


@cache
def _of_bools(name: str) -> FunctionCheck:
    bits = [[i & 1, (i >> 1) & 1, (i >> 2) & 1, 0] for i in range(8)]
    arguments = np.array(bits, np.int32)
    expected = _evaluate(name, arguments, DType.bool).astype(np.int32)
    return FunctionCheck(name, DType.bool, arguments.view(np.float32), (expected,))


def _evaluate(name: str, argument: Array, dtype: DType) -> Array:
    """Return the function's values by NumPy for the rows of `argument`, integers (n, 4)."""
    return _call(name).evaluate(*argument.T[: FUNCTIONS[name].arity].astype(dtype.numpy))


GROUP = 64  # invocations
MOST = 1024  # invocations of a launch: larger launches may be wrong whatever the function
CLOSE = 1e-5  # a result with a smaller relative error is imprecise, not wrong
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
    """The arguments."""
    got: float
    """The value on the device."""
    expected: float
    """The right value."""
    count: int
    """The number of wrong values among those that were tested."""
    ulps: float | None = None
    """Its error in units in the last place; None for integers, and where it has no such error."""

    @property
    def text(self) -> str:
        """The fault in a few words."""
        arguments = ", ".join(f"{one:.9g}" for one in self.given)
        off = "" if self.ulps is None else f", off by {self.ulps:.3g} units in the last place"
        others = "" if self.count < 2 else f", and {self.count - 1} other values are wrong"
        return f"of {arguments} it is {self.got:.9g}, not {self.expected:.9g}{off}{others}"


@dataclass(frozen=True)
class FunctionResult:
    """The accuracy of one function on one backend."""

    backend: str
    """The backend's name."""
    name: str
    """The function's."""
    dtype: str
    """The type of its arguments."""
    values: int
    """The number of values tested."""
    ulps: float
    """The greatest error of the right ones, in units in the last place; 0 for integers."""
    allowed: float
    """The greatest error on known drivers."""
    flushes: bool
    """Whether subnormal numbers are 0 to it, as GL allows."""
    fault: FunctionFault | None
    """The fault; None where there is none."""
    failure: str | None = None
    """The error by which it could not be run; None where it was run."""

    @property
    def wrong(self) -> str | None:
        """Why it is not used; None where it is."""
        return self.failure or (self.fault.text if self.fault else None)

    @property
    def imprecise(self) -> bool:
        """True where it is right within 1e-5, and less precise than on known drivers."""
        return self.wrong is None and self.ulps > self.allowed


def check_functions(
    backend: GlBackend, cases: Sequence[FunctionCheck], checks: Checks
) -> list[FunctionResult]:
    """Run all `cases` in one program, or each in its own where that fails, and return the results.

    Only in the thread that opened the device. checks: runs the cases one by one. Raises DeviceError
    where the device is lost, and MemoryError, which says nothing of a function.
    """
    try:
        values = run(backend, [case.text for case in cases], [case.arguments for case in cases])
    except Exception as error:  # a driver may fail at anything; then each case runs by itself
        if backend.device.lost is not None:
            raise
        if len(cases) > 1:
            return list(_one_by_one(backend, cases, checks))
        if isinstance(error, MemoryError):
            raise
        refused = isinstance(error, ShaderError)
        why = f"it does not compile: {first_line(error)}" if refused else raised(error)
        return [_result(backend.name, cases[0], 0.0, False, None, why)]
    return [_judge(backend.name, case, got) for case, got in zip(cases, values, strict=True)]


def _one_by_one(
    backend: GlBackend, cases: Sequence[FunctionCheck], checks: Checks
) -> Iterator[FunctionResult]:
    """Run each of `cases` in a program of its own, until the device is lost."""
    for case in cases:
        step = step_of([case], backend.name)
        yield from checks.run(step, partial(check_functions, backend, [case], checks), [])
        if backend.device.lost is not None:
            return


def step_of(cases: Sequence[FunctionCheck], backend: str) -> str:
    """Return the name of the check of these functions in one program."""
    if len(cases) == 1:
        return f"{cases[0].name} of {cases[0].dtype.value} on {backend}"
    return f"{len(cases)} functions of {cases[0].dtype.value} on {backend}"


def run(
    backend: GlBackend,
    functions: Sequence[tuple[str, str]],
    arguments: Sequence[Array],
    prelude: str = "",
) -> list[Array]:
    """Evaluate each of `functions` for each row of its `arguments`, (n, 4), and return the values,
    (n,).

    functions: texts, and calls of v. Raises ShaderError where they do not compile.
    """
    device, stage = backend.device, backend.name
    device.activate()
    program = backend.compile(_source(backend, functions, prelude))
    result = []
    for which, rows in enumerate(arguments):
        count = -(-len(rows) // GROUP) * GROUP
        padded = np.zeros((count, 4), np.float32)
        padded[: len(rows)] = rows
        x, out = Buffer((count, 4), parse("R")), Buffer((count,), parse("R"))
        x.set(padded)
        device.write_buffer(out.push(device), np.full(out.size, np.nan, np.float32))
        if stage == "compute":
            x.push(device).bind_to_storage_buffer(0)
            out.push(device).bind_to_storage_buffer(1)
        else:
            array = program.vertex_array({"x": (x.push(device), 4)})
        for first in range(0, count, MOST):
            part, values = min(MOST, count - first), {"which": which, "first": first}
            program.set({name: values[name] for name in values if name in program.uniforms})
            if stage == "compute":
                program.dispatch((part // GROUP, 1, 1))
            else:
                program.capture(array, part, 1, out.push(device), first, first * program.stride)
        device.barrier()
        out.mark_written()
        result.append(out.pull()[: len(rows)].copy())
    return result


def _source(backend: GlBackend, functions: Sequence[tuple[str, str]], prelude: str) -> Source:
    """Return a shader with all `functions`, where the uniform `which` selects one."""
    body = "".join(text for text, _ in functions)
    body += COMPUTE if backend.name == "compute" else FEEDBACK
    for i, (_, value) in enumerate(functions):
        body += f"    if (which == {i}) found = {value};\n"
    header = backend.device.capabilities.header(backend.name) + prelude
    lines = [(line, "(header)", i) for i, line in enumerate(header.splitlines(), 1)]
    lines += included(body + ENDS[backend.name], "functions", shaders_folder(), set())
    text = "\n".join(line for line, _, _ in lines) + "\n"
    return Source("functions", text, tuple((file, number) for _, file, number in lines))


def _judge(backend: str, case: FunctionCheck, got: Array) -> FunctionResult:
    """Compare the values `got` with the expected ones."""
    if case.accuracy is None:
        bits = got.astype(np.int32) if case.dtype is DType.bool else got.view(np.int32)
        wrong = bits != case.expected[0]
        return _result(backend, case, 0.0, False, _worst(case, bits, wrong))
    exact, flushed = case.expected
    accuracy = case.accuracy
    error = ulp_error(got, exact, accuracy.least)
    flushed_error = ulp_error(got, flushed, accuracy.least)
    least_error = np.minimum(error, flushed_error)
    close = np.zeros(len(got), bool)
    if accuracy.ulps >= 1:  # functions that round or compare must be exact
        for one in case.expected:
            with np.errstate(all="ignore"):
                scale = np.maximum(np.abs(one), max(accuracy.least, LEAST))
                close |= np.isfinite(got) & (np.abs(got - one) <= CLOSE * scale)
    wrong = (least_error > accuracy.ulps) & ~close
    flushes = bool(((error > accuracy.ulps) & (flushed_error <= accuracy.ulps)).any())
    ulps = float(least_error[~wrong].max(initial=0.0))
    return _result(backend, case, ulps, flushes, _worst(case, got, wrong, least_error))


def _result(
    backend: str,
    case: FunctionCheck,
    ulps: float,
    flushes: bool,
    fault: FunctionFault | None,
    failure: str | None = None,
) -> FunctionResult:
    allowed = case.accuracy.ulps if case.accuracy else 0.0
    what = case.name, case.dtype.value, len(case.arguments)
    return FunctionResult(backend, *what, ulps, allowed, flushes, fault, failure)


def _worst(
    case: FunctionCheck, got: Array, wrong: Array, errors: Array | None = None
) -> FunctionFault | None:
    """Return the `wrong` value with the greatest error, or the first without `errors`."""
    if not wrong.any():
        return None
    index = int(np.argmax(wrong if errors is None else np.where(wrong, errors, -1.0)))
    floats = case.dtype.kind == "float"
    numbers = case.arguments[index] if floats else case.arguments.view(np.int32)[index]
    arguments = tuple(float(one) for one in numbers[: case.arity])
    expected = float(case.expected[0][index])
    ulps = None if errors is None or not np.isfinite(errors[index]) else float(errors[index])
    return FunctionFault(arguments, float(got[index]), expected, int(wrong.sum()), ulps)


def ulp_error(got: Array, exact: Array, least: float) -> Array:
    """Return the error of `got` in units in the last place of `exact`, or of `least` where that is
    greater.
    """
    with np.errstate(all="ignore"):
        near = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(near), np.float32(max(least, LEAST))))
        unit = np.where(np.isinf(near), 2.0**104, unit).astype(np.float64)
        ulps = np.abs(got.astype(np.float64) - exact) / unit
    tiny = (np.abs(exact) < LEAST) & (np.abs(got) <= LEAST)
    ulps[tiny | (np.isinf(got) & (got == near)) | (np.isnan(got) & np.isnan(exact))] = 0.0
    close = np.isinf(near) & np.isfinite(
        exact
    )  # it rounds to infinity, and the largest number is as good
    ulps[close] = np.where(np.abs(got[close]) >= 3.40282e38, 0.0, np.inf)
    ulps[np.isnan(ulps)] = np.inf
    return np.asarray(ulps)

"""GLSL of pointwise expressions: alone, as an epilogue and as a prologue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template

from glnn.core.glsl import expanded, shaders_folder
from glnn.core.types import DType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.epilogue import ROWWISE, Epilogue, Extent, Prologue, Spread
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call
from glnn.graph.formula import read_formula
from glnn.graph.function import Function, Number, kind_of
from glnn.graph.functions import FUNCTIONS

STORED = {"float": "float", "int": "int", "bool": "int"}
VECTORS = {"float": "vec4", "int": "ivec4", "bool": "ivec4"}
_ARGUMENT = re.compile(r"\b[abcd]\b")
# uint8, int8 and float16 are computed in 32 bits; each function's value is wrapped to 8 or 16 bits.
WRAPPED = {
    DType.uint8: "({}) & 255",
    DType.int8: "({}) << 24 >> 24",
    DType.float16: "to_half({})",
}


def types_on_gpu(expr: Expr, dtypes: Sequence[DType]) -> list[DType]:
    """Return the type of each part of the expanded `expr` for arguments of these types.

    int64 is allowed between int32 operands and an int32 value. Raises ShapeError where a function
    does not take such arguments, and UnsupportedOpError where a shader lacks one of the types.
    """
    types = expr.expanded.infer_parts(dtypes)
    if missing := [dtype.value for dtype in types if not dtype.on_gpu]:
        raise UnsupportedOpError(f"{expr.text()}: no GPU computes with {missing[0]}")
    return types


def lines(
    expr: Expr, arguments: Sequence[str], scalars: Sequence[str], dtypes: Sequence[DType] = ()
) -> list[str]:
    """Return the GLSL statements of `expr`, ending in a return of a float, an int or a bool.

    arguments: the names of the arguments, of the same kinds. scalars: the names of the expression's
    constants, in the order of `expr.scalars`: uniforms, declared by `declarations`. dtypes: the
    arguments' types, float32 unless given. Variables declared by lines are t0, t1, ...

    Raises ShapeError where a function does not take such arguments, and UnsupportedOpError where a
    shader lacks the type.
    """
    expanded_expr = expr.expanded
    types = types_on_gpu(expr, dtypes or [DType.float32] * len(arguments))
    numbers = dict(zip(map(id, expr.numbers), scalars, strict=True))
    statements: list[str] = []
    remaining_types = iter(types)

    def named(part: Expr, operands: tuple[tuple[str, DType], ...]) -> tuple[str, DType]:
        dtype = next(remaining_types)
        if isinstance(part, Arg):
            return arguments[part.index], dtype
        if isinstance(part, Scalar):
            number = numbers[id(part)]
            return f"({number} != 0)" if dtype is DType.bool else number, dtype
        if not isinstance(part, Call):
            assert isinstance(part, Constant)
            return _literal(part.value), dtype
        names = dict(zip("abcd", (name for name, _ in operands), strict=False))
        kind, repeated = operands[-1][1].kind, len({*operands}) < len(operands)
        form = part.row.same if repeated and kind == "float" else None
        form = part.row.forms[kind] if form is None else form
        value = _ARGUMENT.sub(lambda match: names[match[0]], form)
        value = WRAPPED.get(dtype, "{}").format(value)
        statements.append(f"{dtype.kind} t{len(statements)} = {value};")
        return f"t{len(statements) - 1}", dtype

    value, _ = expanded_expr.fold(named)[-1]
    return [*statements, f"return {value};"]


def includes(*expressions: Expr) -> list[str]:
    """Return the `#include` lines of the GLSL files that functions of the expressions need."""
    rows = [row for expr in expressions for row in expr.expanded.functions]
    sources = dict.fromkeys(row.source for row in rows if row.source)  # a float16 was cast to it
    return [f'#include "functions/{source}.glsl"' for source in sources]


def uniforms(expr: Expr, prefix: str = "scalar_") -> dict[str, float | int]:
    """Return the uniforms of an expression's constants, in order, with their values."""
    return {f"{prefix}{i}": _value(number) for i, number in enumerate(expr.scalars)}


def declarations(expr: Expr, prefix: str = "scalar_") -> list[str]:
    """Return the GLSL lines that declare `uniforms`."""
    kinds = [STORED[kind_of(number)] for number in expr.scalars]
    return [f"uniform {kind} {prefix}{i};" for i, kind in enumerate(kinds)]


def function(expr: Expr, dtypes: Sequence[DType], name: str, prefix: str = "scalar_") -> str:
    """Return a GLSL function `name` of scalars and its overload for vectors of four.

    The template is `shaders/common/expression.glsl`. Arguments and value have their storage type:
    float or vec4, int or ivec4, bools as 0 and 1. The text begins with the includes and uniforms
    that it needs. Raises as `lines`.
    """
    if not dtypes:
        raise ShapeError(f"{expr.text()}: a function of no arguments")
    result = expr.infer(dtypes)
    names = [f"x{i}" for i in range(len(dtypes))]
    read = [f"({n} != 0)" if d is DType.bool else n for n, d in zip(names, dtypes, strict=True)]
    body = lines(expr, read, list(uniforms(expr, prefix)), dtypes)
    parameters = dict(zip(names, dtypes, strict=True))
    lanes = [f"{name}({', '.join(f'{x}.{lane}' for x in names)})" for lane in "xyzw"]
    last = body.pop().removeprefix("return ").removesuffix(";")
    value = f"{STORED[result.kind]}({last})"
    if result is DType.bool:  # no int() of it: NVIDIA's compiler may take that for -1
        value = _ARGUMENT.sub(lambda _: last, FUNCTIONS["cast_int32"].forms["bool"])
    return _template().substitute(
        includes="\n".join(includes(expr)),
        uniforms="\n".join(declarations(expr, prefix)),
        name=name,
        scalar=STORED[result.kind],
        scalars=", ".join(f"{STORED[d.kind]} {n}" for n, d in parameters.items()),
        lines="\n    ".join([*body, f"return {value};"]),
        vector=VECTORS[result.kind],
        vectors=", ".join(f"{VECTORS[d.kind]} {n}" for n, d in parameters.items()),
        lanes=f"{', '.join(lanes[:2])},\n        {', '.join(lanes[2:])}",
    )


def fingerprint(expr: Expr, dtypes: Sequence[DType] = ()) -> str:
    """Return a hash of an expression's GLSL: its structure, its functions and their files.

    dtypes: the arguments' types, float32 unless given: `lines` of a uint8 differ from an int's.
    """
    names = dict.fromkeys(row.name for row in expr.functions)
    others = () if all(one is DType.float32 for one in dtypes) else (d.value for d in dtypes)
    return _hashed(expr.structure, *others, *map(function_fingerprint, names))


def function_fingerprint(name: str) -> str:
    """Return a hash of the function `name`: its GLSL, its file, and the functions of its body."""
    row = FUNCTIONS[name]
    if row.body is None:
        return _row_hash(row)
    return _hashed(_row_hash(row), *map(function_fingerprint, _used(row.body)))


@cache
def _row_hash(row: Function) -> str:
    """Return a hash of the function's row in the table, without the functions that it calls."""
    forms = repr(sorted(row.forms.items())) + (row.same or "")
    file = "" if row.source is None else expanded(_folder() / f"{row.source}.glsl")
    return _hashed(row.name, forms, repr((row.gives, row.condition, row.body)), file)


@cache
def _used(body: str) -> tuple[str, ...]:
    """Return the names of the functions in a formula."""
    used: dict[str, None] = {}
    read_formula(body, str, str, lambda name, _: str(used.setdefault(name)))
    return tuple(used)


def _folder() -> Path:
    return shaders_folder() / "functions"


def _hashed(*texts: str) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def _value(number: Number) -> float | int:
    return int(number) if isinstance(number, bool) else number


def _literal(number: Number) -> str:
    if isinstance(number, bool):
        return "true" if number else "false"
    return f"({number!r})" if number < 0 else repr(number)


@cache
def _template() -> Template:
    return Template((shaders_folder() / "common" / "expression.glsl").read_text("utf-8"))


EPILOGUE_TEMPLATE = "common/epilogue.glsl"
# NVIDIA's compiler (580) makes products of 4096 by 5% slower where sums are stored as they are.
IDENTITY = Epilogue(call("mul", 1.0, Arg(0)))
WORDS = {"float": "uint", "vec4": "uvec2"}
"""GLSL's type by which float16 memory is declared, by the epilogue's form."""
SHORT = 6
"""Operations on a number up to which an epilogue is short: NVIDIA's compiler (580) unrolls a loop
of six operations on 32 vec4, and of ten on 16 vec4 but not on 24."""
NAN_TEST = 3
"""Operations of the test for NaN, of each argument but a literal, in functions of extremes.glsl."""
COLUMNS = "epilogue_columns"  # uniform: numbers in a row of the result
EPILOGUE_PREFIX = "epilogue_scalar"  # of the uniforms of the expression's constants


@dataclass(frozen=True)
class Bound:
    """The bindings of an epilogue's operands.

    bindings: the storage-buffer binding of each operand in a buffer. in_place: the operand in the
    result's own memory. samplers: the sampler type of each operand fetched from a texture. halves:
    the float16 operands in buffers or in the result's memory. integers: the int32 operands.
    """

    bindings: Mapping[str, int] = field(default_factory=dict)
    in_place: str | None = None
    samplers: Mapping[str, str] = field(default_factory=dict)
    halves: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()


def scalars(epilogue: Epilogue | None) -> dict[str, float | int]:
    """Return the uniforms of an epilogue's constants."""
    applied = epilogue or IDENTITY
    result = uniforms(applied.expr, EPILOGUE_PREFIX)
    for name, expr in applied.updated.items():
        result |= uniforms(expr, f"{name}_scalar")
    return result


def is_long(epilogue: Epilogue) -> bool:
    """Return True where the code is too long to repeat for each sum: see common/tile.glsl."""
    expanded = [expr.expanded for expr in epilogue.exprs]
    tested = sum(
        not isinstance(argument, Constant)
        for expr in expanded
        for part in expr.parts()
        if isinstance(part, Call) and part.row.source == "extremes"
        for argument in part.arguments[1:]
    )
    return sum(expr.flops for expr in expanded) + NAN_TEST * tested > SHORT


def generated(epilogue: Epilogue | None, form: str, bound: Bound) -> dict[str, str]:
    """Return the texts that `assemble` inserts for an epilogue, the identity without one.

    form: "float" where a kernel calls it for each number, "vec4" for four channels at once.
    """
    applied = epilogue or IDENTITY
    operands = [
        f"#define EPILOGUE_QUADS {int(form == 'vec4')}",
        f"#define EPILOGUE_LONG {int(is_long(applied))}",
        *(['#include "common/texel.glsl"'] if bound.samplers else []),
        *(['#include "common/half.glsl"'] if bound.halves else []),
        *([f"uniform int {COLUMNS};"] if {*ROWWISE} & {*applied.extents} else []),
        *(_declaration(name, form, bound) for name in applied.names if name != bound.in_place),
        *(f"uniform int {name}_row;" for name in applied.named("padded")),
    ]
    numbers, call = ["value"], list[str]()
    for name, extent in applied.named_extents.items():
        number = _fetch(name, extent, form, bound)
        if applied.updates:  # all operands are read before any is written
            kind = "int" if name in bound.integers else form
            call.append(f"    {kind} {name}_number = {number};")
            number = f"{name}_number"
        numbers.append(number)
    arguments = ", ".join(numbers)
    dtypes = [DType.int32 if n in bound.integers else DType.float32 for n in applied.names]
    dtypes.insert(0, DType.float32)
    functions = [function(applied.expr, dtypes, "epilogue_of", EPILOGUE_PREFIX)]
    for name, expr in applied.updated.items():
        functions.append(function(expr, dtypes, f"{name}_of", f"{name}_scalar"))
        index = _index(name, applied.named_extents[name], form)
        call.append(f"    {name}[{index}] = {name}_of({arguments});")
    return {
        "epilogue": f'#include "{EPILOGUE_TEMPLATE}"',
        "epilogue operands": "\n".join(operands),
        "epilogue function": "\n".join(functions),
        "epilogue call": "\n".join([*call, f"    return epilogue_of({arguments});"]),
    }


def reads_as(epilogue: Epilogue | None) -> str:
    """Return a key of an epilogue's code in a program: its structure, and a hash of the source."""
    structure, reads = "none", expanded(shaders_folder() / EPILOGUE_TEMPLATE)
    if epilogue is not None:
        structure = epilogue.structure.replace(" ", "")
        prints = " ".join(map(fingerprint, epilogue.exprs))
        reads = f"{prints} {is_long(epilogue)} {reads}"
    return f"{structure}@{sha256(reads.encode()).hexdigest()[:16]}"


def _declaration(name: str, form: str, bound: Bound) -> str:
    if name in bound.samplers:
        return f"uniform highp {bound.samplers[name]} {name};"
    block = f"layout(std430, binding = {bound.bindings[name]}) buffer {name.upper()}"
    kind = WORDS[form] if name in bound.halves else form
    kind = "int" if name in bound.integers else kind
    return f"{block} {{ {kind} {name}[]; }};"


def _fetch(name: str, extent: Extent, form: str, bound: Bound) -> str:
    """Return the GLSL expression that reads the operand `name`, a float or a vec4."""
    index = _index(name, extent, form)
    if name in bound.samplers:
        four = f"texel({name}, {index})"
    else:
        memory = "result" if name == bound.in_place else name
        four = _stored(memory, index, form) if name in bound.halves else f"{memory}[{index}]"
    if form == "float":
        return f"{four}.x" if name in bound.samplers else four
    return f"vec4({four}.x)" if extent == "one" else four


def _index(name: str, extent: Extent, form: str) -> str:
    """Return the GLSL expression of the index of an operand's number, or vec4.

    Only kernels that compute single numbers have operands of row extents.
    """
    row, column = f"at / {COLUMNS}", f"at % {COLUMNS}"
    places = {"one": "0", "row": row, "column": column, "padded": f"{row} * {name}_row + {column}"}
    return places.get(
        extent, ("quad" if form == "vec4" else "channel") if extent == "channel" else "at"
    )


def _stored(memory: str, index: str, form: str) -> str:
    """Return the GLSL expression that reads float16 `memory` at `index`, a float or a vec4."""
    if form == "float":
        return f"one_half({memory}[{index} / 2], {index})"
    return f"four_halves({memory}[{index}])"


PROLOGUE_TEMPLATE = "common/prologue.glsl"
NONE = "#define HAS_PROLOGUE 0\n#define prologue(value, quad, image) (value)"
PROLOGUE_PREFIX = "prologue_scalar"  # of the uniforms of the expression's constants
OPERAND_INDEX: Mapping[Spread, str] = {
    "channel": "[quad]",
    "image": "[image * ((PROLOGUE_CHANNELS + 3) / 4) + quad]",
    "one": "[0].xxxx",
}
"""The GLSL index of an operand's four numbers, by its broadcast extent against x."""


def names_of(prologue: Prologue | None) -> tuple[str, ...]:
    """Return the operands' names of a prologue; none without one."""
    return () if prologue is None else prologue.names


def scalars_before(prologue: Prologue | None) -> dict[str, float | int]:
    """Return the uniforms of a prologue's constants."""
    return {} if prologue is None else uniforms(prologue.expr, PROLOGUE_PREFIX)


def generated_before(prologue: Prologue | None, bindings: Mapping[str, int]) -> dict[str, str]:
    """Return the texts that `assemble` inserts for a prologue, the identity without one.

    bindings: the storage-buffer binding of each operand.
    """
    if prologue is None:
        return {"prologue": NONE}
    numbers = ["value"]
    for name, extent in prologue.named_extents.items():
        numbers.append(f"{name}{OPERAND_INDEX[extent]}")
    dtypes = [DType.float32] * len(numbers)
    return {
        "prologue": f'#include "{PROLOGUE_TEMPLATE}"',
        "prologue operands": "\n".join(
            f"layout(std430, binding = {binding}) buffer {name.upper()} {{ vec4 {name}[]; }};"
            for name, binding in bindings.items()
            if name in prologue.names
        ),
        "prologue function": function(prologue.expr, dtypes, "prologue_of", PROLOGUE_PREFIX),
        "prologue call": f"    return prologue_of({', '.join(numbers)});",
    }


def reads_before(prologue: Prologue | None) -> str:
    """Return a key of a prologue's code in a program: its structure, and a hash of the source."""
    if prologue is None:
        return "none"
    structure = prologue.structure.replace(" ", "")
    reads = fingerprint(prologue.expr) + expanded(shaders_folder() / PROLOGUE_TEMPLATE)
    return f"{structure}@{sha256(reads.encode()).hexdigest()[:16]}"

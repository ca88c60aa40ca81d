"""Translation of expressions to GLSL, a line for each function call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from string import Template

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.glsl import expanded, shaders_folder
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.formula import read_formula
from glnn.graph.function import Function, Number, kind_of
from glnn.graph.functions import FUNCTIONS
from glnn.types import DType

STORED = {"float": "float", "int": "int", "bool": "int"}
VECTORS = {"float": "vec4", "int": "ivec4", "bool": "ivec4"}
_ARGUMENT = re.compile(r"\b[abcd]\b")
# uint8, int8 and float16 are computed in 32 bits: what a function makes of them keeps 8, or 16.
WRAPPED = {
    DType.uint8: "({}) & 255",
    DType.int8: "({}) << 24 >> 24",
    DType.float16: "to_half({})",
}


def types_on_gpu(expr: Expr, dtypes: Sequence[DType]) -> list[DType]:
    """Return the type of each part of the expanded `expr` for arguments of these types.

    Raises ShapeError where a function does not take such, UnsupportedOpError where a shader has not
    one of the types: int64 may stand between int32 and int32.
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

    Raises ShapeError where a function does not take such arguments, UnsupportedOpError where a
    shader has not the type.
    """
    whole = expr.expanded
    types = types_on_gpu(expr, dtypes or [DType.float32] * len(arguments))
    numbers = dict(zip(map(id, expr.numbers), scalars, strict=True))
    written: list[str] = []
    left = iter(types)

    def named(part: Expr, given: tuple[tuple[str, DType], ...]) -> tuple[str, DType]:
        dtype = next(left)
        if isinstance(part, Arg):
            return arguments[part.index], dtype
        if isinstance(part, Scalar):
            number = numbers[id(part)]
            return f"({number} != 0)" if dtype is DType.bool else number, dtype
        if not isinstance(part, Call):
            assert isinstance(part, Constant)
            return _literal(part.value), dtype
        names = dict(zip("abcd", (name for name, _ in given), strict=False))
        kind, alike = given[-1][1].kind, len({*given}) < len(given)
        form = part.row.same if alike and kind == "float" else None
        form = part.row.forms[kind] if form is None else form
        value = _ARGUMENT.sub(lambda found: names[found[0]], form)
        value = WRAPPED.get(dtype, "{}").format(value)
        written.append(f"{dtype.kind} t{len(written)} = {value};")
        return f"t{len(written) - 1}", dtype

    found, _ = whole.fold(named)[-1]
    return [*written, f"return {found};"]


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
    given = dict(zip(names, dtypes, strict=True))
    lanes = [f"{name}({', '.join(f'{x}.{lane}' for x in names)})" for lane in "xyzw"]
    last = body.pop().removeprefix("return ").removesuffix(";")
    return _template().substitute(
        includes="\n".join(includes(expr)),
        uniforms="\n".join(declarations(expr, prefix)),
        name=name,
        scalar=STORED[result.kind],
        scalars=", ".join(f"{STORED[d.kind]} {n}" for n, d in given.items()),
        lines="\n    ".join([*body, f"return {STORED[result.kind]}({last});"]),
        vector=VECTORS[result.kind],
        vectors=", ".join(f"{VECTORS[d.kind]} {n}" for n, d in given.items()),
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
        return _own(row)
    return _hashed(_own(row), *map(function_fingerprint, _used(row.body)))


@cache
def _own(row: Function) -> str:
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

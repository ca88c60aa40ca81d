"""An expression as lines of GLSL, one for each function that it calls."""

from __future__ import annotations

import re
from collections.abc import Sequence

from glnn.graph.expression import Arg, Call, Expr
from glnn.graph.functions import FUNCTIONS

_ARGUMENT = re.compile(r"\b[abcd]\b")


def lines(expr: Expr, arguments: Sequence[str], scalars: Sequence[str]) -> list[str]:
    """Statements that end in a return of the value.

    arguments: what the arguments are called. scalars: what the numbers in it are called, in the
    order of `expr.scalars`. What a line declares is called t0, t1, ...
    """
    written: list[str] = []
    left = list(scalars)

    def name(part: Expr) -> str:
        if isinstance(part, Arg):
            return arguments[part.index]
        if not isinstance(part, Call):
            return left.pop(0)
        names = dict(zip("abcd", map(name, part.arguments), strict=False))
        glsl = FUNCTIONS[part.function].forms["float"]
        value = _ARGUMENT.sub(lambda found: names[found[0]], glsl)
        written.append(f"float t{len(written)} = {value};")
        return f"t{len(written) - 1}"

    found = name(expr)
    return [*written, f"return {found};"]


def includes(expr: Expr) -> list[str]:
    """The lines that bring in what the functions of `expr` need besides GLSL."""
    sources = dict.fromkeys(row.source for row in expr.functions if row.source)
    return [f'#include "functions/{source}.glsl"' for source in sources]

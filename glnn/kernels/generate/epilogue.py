"""The text that stands for `#include <epilogue>`: see shaders/common/epilogue.glsl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.expression import Arg
from glnn.kernels.generate.expression import fingerprint, includes, lines

TEMPLATE = "common/epilogue.glsl"
IDENTITY = Epilogue(Arg(0))


@dataclass(frozen=True)
class Bound:
    """How a kernel gets at the operands of an epilogue.

    places: the storage-buffer binding of each that has one. in_place: the one that lies in the
    result's own memory. samplers: what each is to the shader that fetches it from a texture.
    """

    places: Mapping[str, int] = field(default_factory=dict)
    in_place: str | None = None
    samplers: Mapping[str, str] = field(default_factory=dict)


def scalars(epilogue: Epilogue | None) -> dict[str, float]:
    """The uniforms of an epilogue's numbers."""
    numbers = () if epilogue is None else epilogue.expr.scalars
    return {f"epilogue_scalar{i}": float(number) for i, number in enumerate(numbers)}


def generated(epilogue: Epilogue | None, form: str, bound: Bound) -> dict[str, str]:
    """What `assemble` puts in for an epilogue, the identity where there is none.

    form: float where a kernel calls it number by number, vec4 where for four channels at once.
    """
    found = epilogue or IDENTITY
    names = ("value", *found.names)
    quads = form == "vec4"
    numbers = ("value", *(f"{name}_number" for name in found.names))
    each = ", ".join(f"{number}.lane" if quads else number for number in numbers)
    macro = "EPILOGUE_NUMBERS(lane)" if quads else "EPILOGUE_NUMBERS"
    operands = [
        *includes(found.expr),
        *(['#include "common/texel.glsl"'] if bound.samplers else []),
        f"#define EPILOGUE_QUADS {int(quads)}",
        f"#define EPILOGUE_ARGUMENTS {', '.join(f'float {name}' for name in names)}",
        f"#define {macro} {each}",
        *(_declaration(name, form, bound) for name in found.names if name != bound.in_place),
        *(f"uniform float {name};" for name in scalars(found)),
    ]
    fetches = [
        f"{form} {name}_number = {_fetch(name, extent, form, bound)};"
        for name, extent in zip(found.names, found.extents, strict=True)
    ]
    return {
        "epilogue": f'#include "{TEMPLATE}"',
        "epilogue operands": "\n".join(operands),
        "epilogue fetches": _indented(fetches),
        "epilogue expression": _indented(lines(found.expr, names, list(scalars(found)))),
    }


def reads_as(epilogue: Epilogue | None) -> str:
    """What an epilogue makes of a program, in a word: its structure, and how its functions read."""
    if epilogue is None:
        return "none"
    structure = epilogue.structure.replace(", ", ",").replace(" ", ";")
    return f"{structure}@{fingerprint(epilogue.expr)}"


def _declaration(name: str, form: str, bound: Bound) -> str:
    if name in bound.samplers:
        return f"uniform highp {bound.samplers[name]} {name};"
    block = f"layout(std430, binding = {bound.places[name]}) buffer {name.upper()}"
    return f"{block} {{ {form} {name}[]; }};"


def _fetch(name: str, extent: Extent, form: str, bound: Bound) -> str:
    """The number or the four of the operand called `name`."""
    channel = "quad" if form == "vec4" else "channel"
    index = {"full": "at", "channel": channel, "one": "0"}[extent]
    if name in bound.samplers:
        four = f"texel({name}, {index})"
    else:
        four = f"{'result' if name == bound.in_place else name}[{index}]"
    if form == "float":
        return f"{four}.x" if name in bound.samplers else four
    return f"vec4({four}.x)" if extent == "one" else four


def _indented(written: list[str]) -> str:
    return "\n".join(f"    {line}" for line in written)

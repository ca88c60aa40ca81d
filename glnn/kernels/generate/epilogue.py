"""Generator of the texts for `#include <epilogue>`: see shaders/common/epilogue.glsl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from glnn.glsl import expanded, shaders_folder
from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.expression import Arg, call
from glnn.kernels.generate.expression import fingerprint, function, uniforms
from glnn.types import DType

TEMPLATE = "common/epilogue.glsl"
# NVIDIA's compiler (580) makes products of 4096 by 5% slower where sums are stored as they are.
IDENTITY = Epilogue(call("mul", 1.0, Arg(0)))
WORDS = {"float": "uint", "vec4": "uvec2"}
"""GLSL's type by which float16 memory is declared, by the epilogue's form."""
SHORT = 6
"""Operations a number. NVIDIA's compiler (580) unrolls loops of six for 32 fours, of ten for 16 but
not for 24."""
PREFIX = "epilogue_scalar"  # of the uniforms of the expression's numbers


@dataclass(frozen=True)
class Bound:
    """The bindings of an epilogue's operands.

    places: the storage-buffer binding of each operand in a buffer. in_place: the operand in the
    result's own memory. samplers: the sampler type of each operand fetched from a texture. halves:
    the float16 operands in buffers or in the result's memory.
    """

    places: Mapping[str, int] = field(default_factory=dict)
    in_place: str | None = None
    samplers: Mapping[str, str] = field(default_factory=dict)
    halves: frozenset[str] = frozenset()


def scalars(epilogue: Epilogue | None) -> dict[str, float | int]:
    """Return the uniforms of an epilogue's constants."""
    return uniforms((epilogue or IDENTITY).expr, PREFIX)


def is_long(epilogue: Epilogue) -> bool:
    """Return True where its code is too long to repeat for each sum: see common/tile.glsl."""
    return epilogue.expr.flops > SHORT


def generated(epilogue: Epilogue | None, form: str, bound: Bound) -> dict[str, str]:
    """Return the texts that `assemble` inserts for an epilogue, the identity without one.

    form: "float" where a kernel calls it for each number, "vec4" for four channels at once.
    """
    found = epilogue or IDENTITY
    operands = [
        f"#define EPILOGUE_QUADS {int(form == 'vec4')}",
        f"#define EPILOGUE_LONG {int(is_long(found))}",
        *(['#include "common/texel.glsl"'] if bound.samplers else []),
        *(['#include "common/half.glsl"'] if bound.halves else []),
        *(_declaration(name, form, bound) for name in found.names if name != bound.in_place),
    ]
    numbers = ["value"]
    for name, extent in zip(found.names, found.extents, strict=True):
        numbers.append(_fetch(name, extent, form, bound))
    dtypes = [DType.float32] * len(numbers)
    return {
        "epilogue": f'#include "{TEMPLATE}"',
        "epilogue operands": "\n".join(operands),
        "epilogue function": function(found.expr, dtypes, "epilogue_of", PREFIX),
        "epilogue call": f"    return epilogue_of({', '.join(numbers)});",
    }


def reads_as(epilogue: Epilogue | None) -> str:
    """Return a key of an epilogue's code in a program: its structure, and a hash of the source."""
    structure, reads = "none", expanded(shaders_folder() / TEMPLATE)
    if epilogue is not None:
        structure = epilogue.structure.replace(" ", "")
        reads = f"{fingerprint(epilogue.expr)} {is_long(epilogue)} {reads}"
    return f"{structure}@{sha256(reads.encode()).hexdigest()[:16]}"


def _declaration(name: str, form: str, bound: Bound) -> str:
    if name in bound.samplers:
        return f"uniform highp {bound.samplers[name]} {name};"
    block = f"layout(std430, binding = {bound.places[name]}) buffer {name.upper()}"
    kind = WORDS[form] if name in bound.halves else form
    return f"{block} {{ {kind} {name}[]; }};"


def _fetch(name: str, extent: Extent, form: str, bound: Bound) -> str:
    """Return the GLSL expression that reads the operand `name`, a float or a vec4."""
    channel = "quad" if form == "vec4" else "channel"
    index = {"full": "at", "channel": channel, "one": "0"}[extent]
    if name in bound.samplers:
        four = f"texel({name}, {index})"
    else:
        memory = "result" if name == bound.in_place else name
        four = _stored(memory, index, form) if name in bound.halves else f"{memory}[{index}]"
    if form == "float":
        return f"{four}.x" if name in bound.samplers else four
    return f"vec4({four}.x)" if extent == "one" else four


def _stored(memory: str, index: str, form: str) -> str:
    """Return the GLSL expression that reads float16 `memory` at `index`, a float or a vec4."""
    if form == "float":
        return f"one_half({memory}[{index} / 2], {index})"
    return f"four_halves({memory}[{index}])"

"""Generator of the texts for `#include <prologue>`: see shaders/common/prologue.glsl."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from glnn.glsl import expanded, shaders_folder
from glnn.graph.prologue import Prologue, Spread
from glnn.kernels.generate.expression import fingerprint, function, uniforms
from glnn.types import DType

TEMPLATE = "common/prologue.glsl"
NONE = "#define HAS_PROLOGUE 0\n#define prologue(value, quad, image) (value)"
PREFIX = "prologue_scalar"  # of the uniforms of the expression's numbers
PLACES: Mapping[Spread, str] = {
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
    return {} if prologue is None else uniforms(prologue.expr, PREFIX)


def generated_before(prologue: Prologue | None, places: Mapping[str, int]) -> dict[str, str]:
    """Return the texts that `assemble` inserts for a prologue, the identity without one.

    places: the storage-buffer binding of each operand.
    """
    if prologue is None:
        return {"prologue": NONE}
    numbers = ["value"]
    for name, extent in prologue.named_extents.items():
        numbers.append(f"{name}{PLACES[extent]}")
    dtypes = [DType.float32] * len(numbers)
    return {
        "prologue": f'#include "{TEMPLATE}"',
        "prologue operands": "\n".join(
            f"layout(std430, binding = {places[name]}) buffer {name.upper()} {{ vec4 {name}[]; }};"
            for name in prologue.names
        ),
        "prologue function": function(prologue.expr, dtypes, "prologue_of", PREFIX),
        "prologue call": f"    return prologue_of({', '.join(numbers)});",
    }


def reads_before(prologue: Prologue | None) -> str:
    """Return a key of a prologue's code in a program: its structure, and a hash of the source."""
    if prologue is None:
        return "none"
    structure = prologue.structure.replace(" ", "")
    reads = fingerprint(prologue.expr) + expanded(shaders_folder() / TEMPLATE)
    return f"{structure}@{sha256(reads.encode()).hexdigest()[:16]}"

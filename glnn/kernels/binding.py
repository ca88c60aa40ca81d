"""Where the operands of an epilogue lie for a kernel on one device."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from glnn.device import Capabilities
from glnn.errors import UnsupportedOpError
from glnn.graph.epilogue import Epilogue
from glnn.kernels.generate.epilogue import Bound, generated
from glnn.kernels.generate.expression import types_on_gpu
from glnn.kernels.kernel import Kernel
from glnn.types import DType

TEXELS = {"float": "r32f", "vec4": "rgba32f"}
"""The format of what an epilogue fetches, by its form."""
HALVES = {"r32f": "r16f", "rgba32f": "rgba16f"}
"""The format of texels of float16, by the one that a declaration has."""


def textures(
    kernel: Kernel, epilogue: Epilogue | None, halves: Iterable[str] = ()
) -> dict[str, str]:
    """The texel format of each operand that `kernel` reads through a texture.

    halves: the operands that are float16.
    """
    found = dict(kernel.textures)
    if epilogue is not None and kernel.epilogue is not None and kernel.backend == "feedback":
        found |= dict.fromkeys(epilogue.names, TEXELS[kernel.epilogue.form])
    return found | {name: HALVES[found[name]] for name in halves if name in found}


def why_not_epilogue(kernel: Kernel, epilogue: Epilogue | None) -> str | None:
    """Why `kernel` cannot finish its results so on any device; None when it can."""
    if epilogue is None:
        return None
    if kernel.epilogue is None:
        return "it takes no epilogue"
    for extent in epilogue.extents:
        if extent not in kernel.epilogue.extents:
            return f"its epilogue takes no operand of extent {extent}"
    try:
        types_on_gpu(epilogue.expr, [DType.float32] * (1 + len(epilogue.extents)))
    except UnsupportedOpError as error:
        return str(error)
    return None


def why_not_bound(
    kernel: Kernel,
    operands: Iterable[str],
    epilogue: Epilogue | None,
    device: Capabilities,
    halves: Container[str] = (),
) -> str | None:
    """Why `device` cannot bind what `epilogue` has beside `operands`; None when it can.

    halves: what is float16, `out` perhaps.
    """
    if epilogue is None or not epilogue.extents or kernel.stages:
        return None
    count = len(epilogue.extents)
    if kernel.backend == "feedback":
        units, taken = device.max_vertex_texture_image_units, len(kernel.textures)
        if taken + count <= units:
            return None
        return f"its epilogue has {count} operands, of {units} vertex textures {taken} are taken"
    blocks = device.max_compute_shader_storage_blocks
    taken = _taken(kernel, operands)
    bound = _buffers(epilogue, taken, blocks, halves)
    if bound.in_place is not None and kernel.in_place in set(operands):
        return f"its epilogue reads {bound.in_place} where {kernel.in_place} lies"
    if len(bound.places) + (bound.in_place is not None) == count:
        return None
    return f"its epilogue has {count} operands, of {blocks} storage blocks {taken} are taken"


def bind(
    kernel: Kernel,
    operands: Iterable[str],
    epilogue: Epilogue | None,
    device: Capabilities,
    samplers: Mapping[str, str],
    halves: Container[str] = (),
) -> Bound:
    """How `kernel` gets at what `epilogue` has beside `operands`, which `device` can bind.

    samplers: what each operand is to a shader that fetches it. halves: what is float16.
    """
    if epilogue is None:
        return Bound()
    if kernel.backend == "feedback":
        return Bound(samplers={name: samplers[name] for name in epilogue.names})
    blocks = device.max_compute_shader_storage_blocks
    return _buffers(epilogue, _taken(kernel, operands), blocks, halves)


def written(kernel: Kernel, epilogue: Epilogue | None, bound: Bound) -> dict[str, str]:
    """What `assemble` puts into the source of `kernel` for an epilogue that is bound so."""
    if kernel.epilogue is None or kernel.stages:
        return {}
    return generated(epilogue, kernel.epilogue.form, bound)


def _taken(kernel: Kernel, operands: Iterable[str]) -> int:
    """The first binding after those of the op's own operands."""
    return max(kernel.places(operands).values(), default=-1) + 1


def _buffers(epilogue: Epilogue, taken: int, blocks: int, halves: Container[str]) -> Bound:
    """The bindings after those taken, as many as there are.

    Where one is missing, the last operand that lies as the result does, in numbers of the same
    size, is in the result's memory.
    """
    names, left, in_place = list(epilogue.names), max(blocks - taken, 0), None
    if len(names) > left:
        half = "out" in halves
        full = [n for n, e in epilogue.named_extents.items() if e == "full"]
        full = [name for name in full if (name in halves) is half]
        if full:
            in_place = full[-1]
            names.remove(in_place)
    places = {name: taken + i for i, name in enumerate(names[:left])}
    stored = frozenset(name for name in epilogue.names if name in halves)
    return Bound(places, in_place, halves=stored)

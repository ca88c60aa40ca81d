"""Bindings and textures of the operands of a prologue and an epilogue on one device."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from glnn.core.types import DType
from glnn.errors import UnsupportedOpError
from glnn.gl import Capabilities
from glnn.graph.epilogue import Epilogue, Prologue
from glnn.kernels.codegen.expression import (
    Bound,
    generated,
    generated_before,
    names_of,
    types_on_gpu,
)
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

TEXELS = {"float": "r32f", "vec4": "rgba32f"}
"""The texel format of an epilogue's operands, by the epilogue's form."""
HALVES = {"r32f": "r16f", "rgba32f": "rgba16f"}
"""The float16 texel format, by the float32 format that a declaration names."""


def textures(
    kernel: Kernel, epilogue: Epilogue | None, fp16_operands: Iterable[str] = ()
) -> dict[str, str]:
    """Return the texel format of each operand that `kernel` reads through a texture.

    fp16_operands: the operands that are float16.
    """
    texels = dict(kernel.textures)
    if epilogue is not None and kernel.epilogue is not None and kernel.backend == "feedback":
        texels |= dict.fromkeys(epilogue.names, TEXELS[kernel.epilogue.form])
    return texels | {name: HALVES[texels[name]] for name in fp16_operands if name in texels}


def why_not_epilogue(kernel: Kernel, spec: OpSpec) -> str | None:
    """Return why `kernel` cannot apply the epilogue of `spec` on any device; None where it can."""
    if (epilogue := spec.epilogue) is None:
        return None
    if kernel.epilogue is None:
        return "it takes no epilogue"
    for extent in epilogue.extents:
        if extent not in kernel.epilogue.extents:
            return f"its epilogue takes no operand of extent {extent}"
    if epilogue.updates and not kernel.epilogue.updates:
        return "its epilogue updates no operands"
    integers = [name for name in epilogue.names if spec.types[name].dtype is DType.int32]
    if integers and (kernel.epilogue.form != "float" or kernel.backend == "feedback"):
        return f"its epilogue takes no integers, as {integers[0]} is"
    dtypes = [DType.int32 if name in integers else DType.float32 for name in epilogue.names]
    try:
        for expr in epilogue.exprs:
            types_on_gpu(expr, [DType.float32, *dtypes])
    except UnsupportedOpError as error:
        return str(error)
    return None


def why_not_prologue(kernel: Kernel, prologue: Prologue | None) -> str | None:
    """Return why `kernel` cannot apply `prologue` to its x on any device; None where it can."""
    if prologue is None:
        return None
    if kernel.prologue is None:
        return "it takes no prologue"
    try:
        types_on_gpu(prologue.expr, [DType.float32] * (1 + len(prologue.extents)))
    except UnsupportedOpError as error:
        return str(error)
    return None


def why_not_bound(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str | None:
    """Return why `device` cannot bind the operands of the prologue and epilogue of `spec`.

    Returns None where it can bind them beside the operator's own operands.
    """
    epilogue, before = spec.epilogue, len(names_of(spec.prologue))
    extents = () if epilogue is None else epilogue.extents
    if kernel.stages or not (extents or before):
        return None
    count = len(extents)
    if kernel.backend == "feedback":
        units, used = device.max_vertex_texture_image_units, len(kernel.textures)
        if used + count <= units:
            return None
        return f"its epilogue has {count} operands, of {units} vertex textures {used} are taken"
    blocks = device.max_compute_shader_storage_blocks
    used = _first_free_binding(kernel, spec.shapes)
    if used + before > blocks:
        return f"its prologue has {before} operands, of {blocks} storage blocks {used} are taken"
    if epilogue is None:
        return None
    bound = _buffers(epilogue, used + before, blocks, spec.fp16_operands)
    if bound.in_place is not None and kernel.in_place in spec.shapes:
        return f"its epilogue reads {bound.in_place} where {kernel.in_place} lies"
    if len(bound.bindings) + (bound.in_place is not None) == count:
        return None
    used += before
    return f"its epilogue has {count} operands, of {blocks} storage blocks {used} are taken"


def bind(kernel: Kernel, spec: OpSpec, device: Capabilities, samplers: Mapping[str, str]) -> Bound:
    """Assign bindings to the operands of the prologue and the epilogue of `spec`.

    They follow the operator's operands, the prologue's first; `device` must be able to bind them
    (`why_not_bound`). samplers: the sampler type of each operand that a shader fetches.
    """
    epilogue = spec.epilogue
    if kernel.backend == "feedback":
        names = () if epilogue is None else epilogue.names
        return Bound(samplers={name: samplers[name] for name in names})
    used = _first_free_binding(kernel, spec.shapes)
    prologue_bindings = {name: used + i for i, name in enumerate(names_of(spec.prologue))}
    if epilogue is None:
        return Bound(prologue_bindings)
    blocks = device.max_compute_shader_storage_blocks
    bound = _buffers(epilogue, used + len(prologue_bindings), blocks, spec.fp16_operands)
    integers = frozenset(n for n in epilogue.names if spec.types[n].dtype is DType.int32)
    return replace(bound, bindings={**prologue_bindings, **bound.bindings}, integers=integers)


def written(
    kernel: Kernel, epilogue: Epilogue | None, bound: Bound, prologue: Prologue | None = None
) -> dict[str, str]:
    """Return the texts of prologue and epilogue that `assemble` puts into the source of `kernel`.

    bound: the bindings of their operands.
    """
    if kernel.stages:
        return {}
    result = {} if kernel.prologue is None else generated_before(prologue, bound.bindings)
    if kernel.epilogue is not None:
        result |= generated(epilogue, kernel.epilogue.form, bound)
    return result


def _first_free_binding(kernel: Kernel, operands: Iterable[str]) -> int:
    """Return the first binding after those of the op's own operands."""
    return max(kernel.bindings_of(operands).values(), default=-1) + 1


def _buffers(epilogue: Epilogue, used: int, blocks: int, fp16_operands: Container[str]) -> Bound:
    """Assign the epilogue's operands to the storage-buffer bindings that are left.

    Where they do not suffice, the last full-size operand of the result's element type that is not
    updated is put into the result's memory.
    """
    names, free, in_place = list(epilogue.names), max(blocks - used, 0), None
    if len(names) > free:
        half = "out" in fp16_operands
        full = [n for n, e in epilogue.named_extents.items() if e == "full"]
        full = [name for name in full if (name in fp16_operands) is half]
        full = [name for name in full if name not in epilogue.updated]
        if full:
            in_place = full[-1]
            names.remove(in_place)
    bindings = {name: used + i for i, name in enumerate(names[:free])}
    stored = frozenset(name for name in epilogue.names if name in fp16_operands)
    return Bound(bindings, in_place, halves=stored)

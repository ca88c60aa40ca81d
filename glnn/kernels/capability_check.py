"""Capability checks: the reasons why a kernel cannot compute a spec on a device."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product
from math import prod

from glnn.core.layout import parse
from glnn.errors import LimitError
from glnn.gl import Capabilities
from glnn.graph.operators.reorder import Reorder
from glnn.kernels.architecture import architecture
from glnn.kernels.binding import textures, why_not_epilogue, why_not_prologue
from glnn.kernels.codegen.expression import names_of
from glnn.kernels.kernel import Kernel
from glnn.kernels.manifest import ANY, UNFIT
from glnn.kernels.op_spec import OpSpec


def why_not_device(kernel: Kernel, device: Capabilities) -> str | None:
    """Return why `kernel` cannot run on `device` whatever the spec; None where it can."""
    key = "why not", device
    if key not in kernel.memo:
        kernel.memo[key] = _why_never(kernel, device) or _why_not_parameters(
            kernel, kernel.defaults, device
        )
    result: str | None = kernel.memo[key]
    return result


def _why_never(kernel: Kernel, device: Capabilities) -> str | None:
    """Return why `kernel` cannot run on `device` whatever its parameters; None where it may."""
    if kernel.architectures.fit(architecture(device)) == UNFIT:
        return f"the registers of {device.renderer} cannot hold it"
    if kernel.backend == "feedback":
        if not device.feedback:
            return "transform feedback needs OpenGL ES 3.0"
        if len(kernel.textures) > device.max_vertex_texture_image_units:
            units = device.max_vertex_texture_image_units
            return f"{len(kernel.textures)} vertex textures, the device has {units}"
        return None
    if reason := device.why_no_compute():
        return reason
    if kernel.texture_buffers and not device.max_texture_buffer_size:
        return "texture buffers need OpenGL ES 3.2"
    most, bindings = device.max_compute_shader_storage_blocks, set(kernel.bindings.values())
    if len(bindings) > most:
        return f"{len(bindings)} storage blocks, the device has {most}"
    if bindings and max(bindings) >= most:
        return f"a storage block at binding {max(bindings)}, the device has 0 to {most - 1}"
    return None


def _why_not_parameters(
    kernel: Kernel, parameters: Mapping[str, int], device: Capabilities
) -> str | None:
    """Return why these values of all parameters do not compile on `device`; None where they do."""
    if reason := kernel.why_not_parameters(parameters):
        return reason
    if kernel.backend == "feedback":
        captured = kernel.launch.captures.evaluate(parameters)
        most = device.max_transform_feedback_interleaved_components
        if captured > most:
            return f"{captured} components captured, the device allows {most}"
        return None
    local = kernel.launch.local_size(parameters)
    if prod(local) > device.max_compute_work_group_invocations:
        most = device.max_compute_work_group_invocations
        return f"a workgroup of {prod(local)} invocations, the device allows {most}"
    if any(a > b for a, b in zip(local, device.max_compute_work_group_size, strict=True)):
        return f"a workgroup of {local}, the device allows {device.max_compute_work_group_size}"
    shared = kernel.launch.shared_bytes.evaluate(parameters)
    if shared > device.max_compute_shared_memory_size:
        most = device.max_compute_shared_memory_size
        return f"{shared} bytes of shared memory, the device has {most}"
    return None


def fitted(kernel: Kernel, device: Capabilities) -> Kernel | None:
    """Return `kernel` with the first parameters that `device` admits; None where it admits none.

    The parameters for the device's architecture are tried first.
    """
    return next(iter(fitted_rows(kernel, device)), None)


def fitted_rows(kernel: Kernel, device: Capabilities) -> tuple[Kernel, ...]:
    """Return `kernel` with each row of parameters for the device's architecture that it admits.

    Where it admits none of them, with the first other parameters that it admits, if any.
    """
    if device not in kernel.memo:
        kernel.memo[device] = () if _why_never(kernel, device) else _fitted_rows(kernel, device)
    result: tuple[Kernel, ...] = kernel.memo[device]
    return result


def _fitted_rows(kernel: Kernel, device: Capabilities) -> tuple[Kernel, ...]:
    rows = kernel.rows_for(architecture(device))
    if admitted := tuple(row for row in rows if why_not_device(row, device) is None):
        return admitted
    # Thousands of combinations, perhaps: only the first that is admitted becomes a kernel.
    combinations = (dict(zip(kernel.tune, v, strict=True)) for v in product(*kernel.tune.values()))
    others = (c for c in combinations if _why_not_parameters(kernel, c, device) is None)
    return tuple(kernel.with_parameters(**c) for c in islice(others, 1))


def why_not_spec(kernel: Kernel, spec: OpSpec) -> str | None:
    """Return why `kernel` cannot compute `spec` on any device; None where it can."""
    if reason := why_not_prologue(kernel, spec.prologue):
        return reason
    known = {*kernel.layouts, *spec.extents, *names_of(spec.prologue)}
    if missing := [name for name in spec.shapes if name not in known]:
        declared = ", ".join(name for name in kernel.layouts if name != "out")
        return f"it takes no operand {missing[0]}: its declaration has {declared}"
    if reason := why_not_epilogue(kernel, spec):
        return reason
    candidates = kernel.fp16_candidates(spec.extents)
    if unfit := [name for name in spec.fp16_operands if name not in candidates]:
        return f"it takes no float16 as {unfit[0]}"
    updated = () if spec.epilogue is None else spec.epilogue.updated
    if unfit := [name for name in spec.fp16_operands if name in updated]:
        return f"it updates no float16, as {unfit[0]} is"
    if unfit := [name for name in spec.int8_operands if name not in kernel.int8_operands]:
        return f"it takes no int8 as {unfit[0]}"
    stacks = spec.op.stacks(spec.shapes)
    if unknown := [name for name in stacks if not kernel.operands[name].batched]:
        return f"it takes one matrix as {unknown[0]}, no stack of them"
    for name in kernel.layouts:
        text = kernel.wants(name)[0]
        shape = spec.shape(name) if name in spec.types else None
        ranks = None if text == ANY else parse(text).ranks
        if shape is not None and ranks is not None and len(shape) - (name in stacks) not in ranks:
            return f"layout {text} does not take {name} of shape {shape}"
    defines = spec.defines(kernel)
    kernel.check_names("requires", {**kernel.requires.values, **kernel.requires.ranges}, defines)
    for floats in kernel.attributes.values():
        kernel.check_names("operands", floats.names, {**kernel.tune, **defines})
    for name, value in kernel.requires.values.items():
        if defines[name] != value:
            return f"{name} is {defines[name]}, it needs {value}"
    for name, bounds in kernel.requires.ranges.items():
        if defines[name] not in bounds:
            return f"{name} is {defines[name]}, it needs {bounds}"
    if isinstance(spec.op, Reorder):
        wanted = {"x": spec.op.source, "out": spec.op.target}
        if kernel.wants("x") == (ANY,):
            if not spec.op.is_matrix or len(spec.result_shape) != 2:
                return "it reorders matrices only"
        elif not all(_takes(kernel, spec, name, text) for name, text in wanted.items()):
            return f"it goes from {' or '.join(kernel.wants('x'))} to {kernel.wants('out')[0]}"
    return None


def _takes(kernel: Kernel, spec: OpSpec, name: str, layout: str) -> bool:
    """Return True where `kernel` accepts `name` in `layout` itself, not an equivalent layout."""
    shape = spec.shape(name)
    return parse(layout).simplify(shape) in [
        parse(text).simplify(shape) for text in kernel.wants(name)
    ]


def why_not_here(kernel: Kernel, spec: OpSpec, device: Capabilities) -> str | None:
    """Return which limit of `device` the sizes of `spec` exceed for `kernel`; None without one.

    Kernels of stages are not checked.
    """
    if kernel.stages:
        return None
    sizes = spec.sizes(kernel)
    kernel.check_names("launch", kernel.launch.sizes, {**sizes, **kernel.tune})
    if spec.split(kernel, device) is not None:
        return None
    layouts = spec.chosen_layouts(kernel)
    most = device.max_shader_storage_block_size
    fetched = textures(kernel, spec.epilogue, spec.fp16_operands)
    for name, layout in layouts.items():
        shape = spec.shape(name)
        words = layout.words(spec.types[name])
        if name in kernel.bindings and 4 * words > most:
            return f"{name} of shape {shape} takes {4 * words} bytes, a storage block has {most}"
        if name in fetched:
            try:
                kernel.sampler(fetched[name], words, device)
            except LimitError as error:
                return f"{name} of shape {shape}: {error}"
        if layout.size(shape) >= 1 << 31:
            return f"{name} of shape {shape} has more elements than a shader's int can count"
    if kernel.backend == "compute":
        bounded = kernel.launch.groups(sizes, kernel.defaults)[: kernel.launch.bounded]
        for count, limit in zip(bounded, device.max_compute_work_group_count, strict=False):
            if count > limit:
                return f"{count} workgroups in one dimension, the device allows {limit}"
    return None

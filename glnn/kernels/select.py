"""Which kernel runs an op: admissible here, then suiting the size, then the most preferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from glnn.device import Capabilities
from glnn.errors import LimitError, UnsupportedOpError
from glnn.kernels.batches import Batches
from glnn.kernels.family import family
from glnn.kernels.kernel import ANY, Kernel
from glnn.kernels.library import kernels_for
from glnn.kernels.split import Split
from glnn.kernels.tuned import Tuned
from glnn.layout import Layout, Morton, parse
from glnn.layout.half import Half
from glnn.layout.layout import RowMajor
from glnn.lowering import LOWERINGS, Lowered
from glnn.ops.op import Op, Shape, Shapes
from glnn.ops.repack import Repack


@dataclass(frozen=True)
class Problem:
    """An op with the shapes and layouts it is to run on: all that a kernel is chosen by."""

    op: Op
    shapes: Shapes
    output: Shape
    layouts: Mapping[str, str]

    @classmethod
    def of(cls, op: Op, shapes: Shapes, layouts: Mapping[str, str]) -> Problem:
        """The problem of `op` on operands of these shapes, whose inputs lie in `layouts`."""
        op.check_operands(shapes)
        return cls(op, shapes, op.infer(shapes), layouts)

    def defines(self) -> dict[str, int]:
        """The op's attributes, and which of its optional operands are there."""
        return {
            **{name.upper(): value for name, value in self.op.derived(self.shapes).items()},
            **self.op.defines(self.shapes),
            **{f"HAS_{name.upper()}": int(name in self.shapes) for name in self.op.optional},
        }

    @property
    def op_sizes(self) -> dict[str, int]:
        """The op's sizes, and what follows from them."""
        return {**self.op.sizes(self.shapes), **self.op.derived(self.shapes)}

    def split(self, kernel: Kernel, device: Capabilities) -> Split | None:
        """The parts in which `kernel` computes this where one dispatch would be too much."""
        if self.op.samples and kernel.backend == "compute" and not kernel.textures:
            return Batches.batches(
                kernel,
                tuple(name for name in self.op.inputs if name in self.shapes),
                {**self.shapes, "out": self.output},
                self.chosen_layouts(kernel),
                lambda count: self._of_samples(count).sizes(kernel),
                device,
            )
        return Split.of(kernel, self.op, self.shapes, self.output, device)

    def _of_samples(self, count: int) -> Problem:
        """The same problem with so many samples."""
        n = self.output[0]
        shapes = {
            name: (count, *shape[1:]) if name in self.op.inputs and shape[0] == n else shape
            for name, shape in self.shapes.items()
        }
        return Problem.of(self.op, shapes, self.layouts)

    def chosen_layouts(self, kernel: Kernel, split: Split | None = None) -> dict[str, Layout]:
        """The layout of each operand and of `out` when `kernel` runs this, whole or split."""
        fixed = self.op.fixed_layouts()
        found: dict[str, Layout] = {}
        for name in (*self.shapes, "out"):
            text = fixed.get(name, kernel.layouts[name])
            found[name] = parse(self.first_layout if text == ANY else text)
        if split is not None and split.weight is not None:
            found["weight"] = split.weight
        return found

    @property
    def first_layout(self) -> str:
        """How the first input lies."""
        return next((self.layouts[name] for name in self.op.inputs if name in self.layouts), "R")

    def fits(self, kernel: Kernel) -> bool:
        """Whether `kernel` takes the first input as it lies."""
        return kernel.layouts.get(next(iter(self.op.inputs), "")) in (ANY, self.first_layout, None)

    def lowered(self, kernel: Kernel) -> Lowered:
        """The stages in which `kernel` computes this."""
        return LOWERINGS[kernel.stages](self.op, self.shapes, kernel.defaults)

    def uniforms(self, kernel: Kernel) -> dict[str, int | float]:
        """The op's sizes and scalars, and how each operand lies in memory.

        Rows, columns and what a matrix of a stack takes count numbers, floats or halves.
        """
        values: dict[str, int | float] = {**self.op_sizes, **self.op.scalars()}
        for name, chosen in self.chosen_layouts(kernel).items():
            shape = self.output if name == "out" else self.shapes[name]
            values[f"{name}_size"] = chosen.size(shape)
            layout = chosen.inner if isinstance(chosen, Half) else chosen
            if isinstance(layout, RowMajor):
                values[f"{name}_row"] = values[f"{name}_columns"] = layout.row(shape)
                values[f"{name}_rows"] = layout.rows(shape)
            elif isinstance(layout, Morton):
                rows, columns = layout.padded(shape)
                values[f"{name}_rows"], values[f"{name}_columns"] = rows, columns
                values[f"{name}_matrix"] = rows * columns
        return values

    def sizes(self, kernel: Kernel) -> dict[str, int]:
        """The integers among the uniforms."""
        return {k: v for k, v in self.uniforms(kernel).items() if isinstance(v, int)}


def why_not_device(kernel: Kernel, device: Capabilities) -> str | None:
    """Why `kernel` cannot run on `device` whatever the problem; None when it can."""
    if family(device) in kernel.unfit:
        return f"the registers of {device.renderer} cannot hold it"
    if kernel.backend == "feedback":
        if not device.feedback:
            return "transform feedback needs OpenGL ES 3.0"
        captured = kernel.evaluate(kernel.captures, kernel.defaults)
        most = device.max_transform_feedback_interleaved_components
        if captured > most:
            return f"{captured} components captured, the device allows {most}"
        if len(kernel.textures) > device.max_vertex_texture_image_units:
            units = device.max_vertex_texture_image_units
            return f"{len(kernel.textures)} vertex textures, the device has {units}"
        return None
    if reason := device.why_no_compute():
        return reason
    local = kernel.local_size(kernel.defaults)
    if prod(local) > device.max_compute_work_group_invocations:
        most = device.max_compute_work_group_invocations
        return f"a workgroup of {prod(local)} invocations, the device allows {most}"
    if any(a > b for a, b in zip(local, device.max_compute_work_group_size, strict=True)):
        return f"a workgroup of {local}, the device allows {device.max_compute_work_group_size}"
    shared = kernel.evaluate(kernel.shared_bytes, kernel.defaults)
    if shared > device.max_compute_shared_memory_size:
        most = device.max_compute_shared_memory_size
        return f"{shared} bytes of shared memory, the device has {most}"
    if len(set(kernel.bindings.values())) > device.max_compute_shader_storage_blocks:
        blocks = len(set(kernel.bindings.values()))
        return f"{blocks} storage blocks, the device has {device.max_compute_shader_storage_blocks}"
    return None


def fitted(kernel: Kernel, device: Capabilities) -> Kernel | None:
    """`kernel` with the first of its parameters that `device` admits, None where it admits none.

    The first are those for the device's family.
    """
    familiar = kernel.for_family(family(device))
    if why_not_device(familiar, device) is None:
        return familiar
    for values in product(*kernel.tune.values()):
        candidate = kernel.with_parameters(**dict(zip(kernel.tune, values, strict=True)))
        if why_not_device(candidate, device) is None:
            return candidate
    return None


def why_not_problem(kernel: Kernel, problem: Problem) -> str | None:
    """Why `kernel` cannot compute `problem` on any device; None when it can."""
    if missing := [name for name in problem.shapes if name not in kernel.layouts]:
        return f"it takes no operand {missing[0]}"
    stacks = problem.op.stacks(problem.shapes)
    if unknown := [name for name in stacks if name not in kernel.stacks]:
        return f"it takes one matrix as {unknown[0]}, no stack of them"
    for name, text in kernel.layouts.items():
        shape = problem.output if name == "out" else problem.shapes.get(name)
        ranks = None if text == ANY else parse(text).ranks
        if shape is not None and ranks is not None and len(shape) - (name in stacks) not in ranks:
            return f"layout {text} does not take {name} of shape {shape}"
    defines = problem.defines()
    kernel.check_names("requires", kernel.requires, defines)
    kernel.check_names("attributes", kernel.names(kernel.attributes), defines)
    for name, value in kernel.requires.items():
        if defines[name] != value:
            return f"{name} is {defines[name]}, it needs {value}"
    if isinstance(problem.op, Repack):
        wanted = {"x": problem.op.source, "out": problem.op.target}
        if kernel.layouts["x"] == ANY:
            if not problem.op.is_matrix or len(problem.output) != 2:
                return "it repacks matrices only"
        elif dict(kernel.layouts) != wanted:
            return f"it goes from {kernel.layouts['x']} to {kernel.layouts['out']}"
    return None


def why_not_here(kernel: Kernel, problem: Problem, device: Capabilities) -> str | None:
    """Why the sizes of `problem` exceed what `device` lets `kernel` do; None when they do not."""
    if kernel.stages:
        return _why_not_stages(kernel, problem, device)
    sizes = problem.sizes(kernel)
    kernel.check_names("instances", [kernel.instances] if kernel.instances else [], sizes)
    kernel.check_names(
        "grid", (n for names in kernel.grid for n in names), {**sizes, **kernel.tune}
    )
    if problem.split(kernel, device) is not None:
        return None
    layouts = problem.chosen_layouts(kernel)
    most = device.max_shader_storage_block_size
    for name, layout in layouts.items():
        shape = problem.output if name == "out" else problem.shapes[name]
        size = layout.size(shape)
        if name in kernel.bindings and 4 * size > most:
            return f"{name} of shape {shape} takes {4 * size} bytes, a storage block has {most}"
        if name in kernel.textures:
            try:
                kernel.sampler(name, size, device)
            except LimitError as error:
                return f"{name} of shape {shape}: {error}"
        if size >= 1 << 31:
            return f"{name} of shape {shape} has more elements than a shader's int can count"
    if kernel.backend == "compute":
        bounded = kernel.groups_bounded(sizes)
        for count, limit in zip(bounded, device.max_compute_work_group_count, strict=False):
            if count > limit:
                return f"{count} workgroups in one dimension, the device allows {limit}"
    return None


def _why_not_stages(kernel: Kernel, problem: Problem, device: Capabilities) -> str | None:
    """Why one of the stages of `kernel` cannot run."""
    lowered = problem.lowered(kernel)
    shapes = {**problem.shapes, **{name: made.shape for name, made in lowered.derived.items()}}
    for stage in lowered.stages:
        operands = {operand: shapes[name] for operand, name in stage.operands.items()}
        if not stage.op.view:
            try:
                choose(kernel.backend, Problem.of(stage.op, operands, {}), device, stage.kernel)
            except (UnsupportedOpError, LimitError) as error:
                return f"{stage.name}: {error}"
        shapes[stage.name] = stage.op.infer(operands)
    return None


def choose(
    backend: str,
    problem: Problem,
    device: Capabilities,
    name: str | None = None,
    tuned: Tuned | None = None,
) -> Kernel:
    """The kernel of `backend` that is to run `problem` on `device`, or the one called `name`.

    What `tuned` has for such problems comes before the default. Raises UnsupportedOpError where
    there is none, with each one's reason, and LimitError where only the sizes stand in the way.
    """
    op = problem.op.name
    kernels = kernels_for(op, backend)
    if name is None and tuned and (found := _tuned(kernels, problem, device, tuned)):
        return found
    if name is not None:
        names = [k.name for k in kernels]
        if name not in names:
            known = ", ".join(names) or "none"
            raise UnsupportedOpError(f"{backend} has no kernel {name!r} for {op}; it has {known}")
        kernels = tuple(k for k in kernels if k.name == name)
    elif not isinstance(problem.op, Repack):  # that says itself whether it is to halves
        kernels = tuple(k for k in kernels if not k.halves)
    reasons: dict[str, list[str]] = {}
    too_large: dict[str, list[str]] = {}
    suiting: list[Kernel] = []
    for declared in kernels:
        kernel = fitted(declared, device) or declared
        reason = why_not_device(kernel, device) or why_not_problem(kernel, problem)
        if reason is not None:
            reasons.setdefault(reason, []).append(kernel.name)
        elif reason := why_not_here(kernel, problem, device):
            too_large.setdefault(reason, []).append(kernel.name)
        else:
            suiting.append(kernel)
    if not suiting:
        why = _listed(too_large or reasons) or "it has no kernel for it"
        error = LimitError if too_large else UnsupportedOpError
        raise error(f"{op} on {dict(problem.shapes)} cannot run on {backend}: {why}")
    count = prod(problem.output)
    sizes = problem.op_sizes
    for kernel in suiting:
        kernel.check_names("at_most", kernel.at_most, sizes)
        kernel.check_names("at_least", kernel.at_least, sizes)
    preferred = sorted(suiting, key=lambda k: (-k.priority, not problem.fits(k)))
    return next((k for k in preferred if k.suits(sizes, count, family(device))), preferred[-1])


def _listed(reasons: Mapping[str, list[str]]) -> str:
    """Every reason behind the kernels that it stands in the way of."""
    return "; ".join(
        f"{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}: {reason}"
        for reason, names in reasons.items()
    )


def _tuned(
    kernels: tuple[Kernel, ...], problem: Problem, device: Capabilities, tuned: Tuned
) -> Kernel | None:
    """The kernel that was the fastest for such problems, if it can run this one."""
    found = tuned.kernel(kernels, problem)
    return found if found and why_not(found, problem, device) is None else None


def why_not(kernel: Kernel, problem: Problem, device: Capabilities) -> str | None:
    """Why `kernel`, with its parameters as they are, cannot compute `problem` on `device`."""
    return (
        why_not_device(kernel, device)
        or why_not_problem(kernel, problem)
        or why_not_here(kernel, problem, device)
    )

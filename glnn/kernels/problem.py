"""What a kernel is chosen for: an op on operands of certain shapes and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glnn.device import Capabilities
from glnn.graph.decompose import LOWERINGS, Lowered
from glnn.graph.operator import Contraction, Shapes
from glnn.kernels.batches import Batches
from glnn.kernels.kernel import ANY, Kernel
from glnn.kernels.split import Split
from glnn.layout import Layout, Morton, parse
from glnn.layout.half import Half
from glnn.layout.layout import RowMajor
from glnn.types import Shape


@dataclass(frozen=True)
class Problem:
    """An op with the shapes and layouts it is to run on: all that a kernel is chosen by."""

    op: Contraction
    shapes: Shapes
    output: Shape
    layouts: Mapping[str, str]

    @classmethod
    def of(cls, op: Contraction, shapes: Shapes, layouts: Mapping[str, str]) -> Problem:
        """The problem of `op` on operands of these shapes, whose inputs lie in `layouts`."""
        op.check_operands(shapes)
        return cls(op, shapes, op.shape_of(shapes), layouts)

    def defines(self) -> dict[str, int]:
        """The op's attributes, and which of its optional operands are there."""
        return {
            **{name.upper(): value for name, value in self.op.derived(self.shapes).items()},
            **self.op.defines(self.shapes),
            **{f"HAS_{name.upper()}": int(name in self.shapes) for name in self.op.optional},
        }

    def shape(self, name: str) -> Shape:
        """The shape of the operand called `name`, or of `out`."""
        return self.output if name == "out" else self.shapes[name]

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
            shape = self.shape(name)
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

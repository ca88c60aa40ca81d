"""What a kernel is chosen for: an op on operands of certain shapes and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from glnn.device import Capabilities
from glnn.errors import ShapeError
from glnn.graph.decompose import LOWERINGS, Lowered
from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.operator import Contraction, Cost, Shapes
from glnn.kernels.batches import Batches
from glnn.kernels.generate.epilogue import scalars
from glnn.kernels.kernel import ANY, Kernel
from glnn.kernels.split import Split
from glnn.layout import Layout, Morton, parse
from glnn.layout.half import Half
from glnn.layout.layout import RowMajor
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Problem:
    """An op with the shapes and layouts it is to run on: all that a kernel is chosen by.

    shapes: of its operands, and of its epilogue's.
    """

    op: Contraction
    shapes: Shapes
    output: Shape
    layouts: Mapping[str, str]
    epilogue: Epilogue | None = None

    @classmethod
    def of(
        cls,
        op: Contraction,
        shapes: Shapes,
        layouts: Mapping[str, str],
        epilogue: Epilogue | None = None,
    ) -> Problem:
        """The problem of `op` on operands of these shapes, whose inputs lie in `layouts`.

        Raises ShapeError where they do not fit the op or the epilogue.
        """
        names = epilogue.names if epilogue else ()
        own = {name: shape for name, shape in shapes.items() if name not in names}
        op.check_operands(own)
        output = op.shape_of(own)
        if epilogue:
            check_epilogue(op, epilogue, shapes, output)
        return cls(op, shapes, output, layouts, epilogue)

    def resized(self, shapes: Shapes) -> Problem:
        """The same of operands of other shapes; those of its epilogue follow."""
        if not self.epilogue:
            return Problem.of(self.op, shapes, self.layouts)
        own = {name: shapes[name] for name in shapes if name not in self.extents}
        following = self.epilogue.shapes(self.op.shape_of(own))
        return Problem.of(self.op, {**own, **following}, self.layouts, self.epilogue)

    @property
    def extents(self) -> dict[str, Extent]:
        """How each operand of its epilogue lies against the result."""
        if self.epilogue is None:
            return {}
        return dict(zip(self.epilogue.names, self.epilogue.extents, strict=True))

    @property
    def along(self) -> tuple[str, ...]:
        """The operands whose first dimension is the result's: each part by itself makes its own."""
        own = self.op.along(self.shapes)
        return (*own, *self._full) if own else ()

    @property
    def _full(self) -> tuple[str, ...]:
        return tuple(name for name, extent in self.extents.items() if extent == "full")

    @property
    def cost(self) -> Cost:
        """What one run needs at the least."""
        cost = self.op.cost_of(self.shapes)
        if self.epilogue is None:
            return cost
        return Cost(cost.flops + self.epilogue.expr.flops * prod(self.output), cost.bytes)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        """The result by NumPy, its epilogue's too, in the dtype of the operands."""
        own = {name: array for name, array in operands.items() if name not in self.extents}
        result = self.op.compute(own)
        if self.epilogue is None:
            return result
        return self.epilogue.evaluate(result, *(operands[name] for name in self.epilogue.names))

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
                (*(name for name in self.op.inputs if name in self.shapes), *self._full),
                {**self.shapes, "out": self.output},
                self.chosen_layouts(kernel),
                lambda count: self._of_samples(count).sizes(kernel),
                device,
            )
        return Split.of(kernel, self.op, self.shapes, self.output, device, self.extents)

    def _of_samples(self, count: int) -> Problem:
        """The same problem with so many samples."""
        n = self.output[0]
        shapes = {
            name: (count, *shape[1:]) if name in self.op.inputs and shape[0] == n else shape
            for name, shape in self.shapes.items()
        }
        return self.resized(shapes)

    def chosen_layouts(self, kernel: Kernel, split: Split | None = None) -> dict[str, Layout]:
        """The layout of each operand and of `out` when `kernel` runs this, whole or split."""
        known = {**kernel.layouts, **self.op.fixed_layouts()}
        for name, extent in self.extents.items():
            known[name] = known["out"] if extent == "full" else "R"
        found: dict[str, Layout] = {}
        for name in (*self.shapes, "out"):
            text = known[name]
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
        values: dict[str, int | float] = {
            **self.op_sizes,
            **self.op.scalars(),
            **scalars(self.epilogue),
        }
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


def check_epilogue(op: Contraction, epilogue: Epilogue, shapes: Shapes, output: Shape) -> None:
    """Raise ShapeError unless `shapes` has every operand of `epilogue` as it must be here."""
    if "channel" in epilogue.extents and len(output) < 2:
        raise ShapeError(f"{op.name}: a result of shape {output} has no channels")
    for name, shape in epilogue.shapes(output).items():
        if shapes.get(name) != shape:
            found = shapes.get(name, "nothing")
            raise ShapeError(f"{op.name}: {name} must have shape {shape}, got {found}")

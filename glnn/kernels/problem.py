"""What a kernel is chosen for: an op on operands of certain types and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from glnn.device import Capabilities
from glnn.graph.decompose import LOWERINGS, Lowered
from glnn.graph.operator import Contraction, Operands, Operator, Shapes, typed
from glnn.kernels.batches import Batches
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.generators import GENERATORS
from glnn.kernels.kernel import ANY, Kernel
from glnn.kernels.split import Split
from glnn.layout import Layout, Morton, parse
from glnn.layout.half import Half
from glnn.layout.layout import RowMajor
from glnn.types import Shape, TensorType


@dataclass(frozen=True)
class Problem:
    """An op with the types and layouts it is to run on: all that a kernel is chosen by.

    operands: the type of each operand that is there, by name. results: the results' types: `out`,
    `out1`, ... given: how the operands lie of which that is known. It may be the key of a memo.
    """

    op: Operator
    operands: tuple[tuple[str, TensorType], ...]
    results: tuple[TensorType, ...]
    given: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, op: Operator, operands: Operands, layouts: Mapping[str, str]) -> Problem:
        """The problem of `op` on operands of these types, whose inputs lie in `layouts`."""
        op.check_operands(operands)
        types = typed(operands)
        return cls(op, tuple(types.items()), op.results(types), tuple(layouts.items()))

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The type of each operand and result by name."""
        outs = ("out", *(f"out{i}" for i in range(1, len(self.results))))
        return {**dict(self.operands), **dict(zip(outs, self.results, strict=True))}

    @cached_property
    def shapes(self) -> Shapes:
        """The shape of each operand by name."""
        return {name: one.shape for name, one in self.operands}

    @cached_property
    def layouts(self) -> Mapping[str, str]:
        """How each operand lies of which that is known."""
        return dict(self.given)

    @property
    def output(self) -> Shape:
        """The first result's shape."""
        return self.results[0].shape

    def defines(self, kernel: Kernel | None = None) -> dict[str, int]:
        """The op's attributes, and which of its optional operands are there.

        And what is a `#define` of `kernel`, where that is generated.
        """
        made = None if kernel is None else self.generated(kernel)
        return {
            **{name.upper(): value for name, value in self.op.derived(self.shapes).items()},
            **self.op.defines(self.shapes),
            **{f"HAS_{name.upper()}": int(name in self.shapes) for name in self.op.optional},
            **({} if made is None else made.defines),
        }

    def shape(self, name: str) -> Shape:
        """The shape of the operand or result called `name`."""
        return self.types[name].shape

    @property
    def op_sizes(self) -> dict[str, int]:
        """The op's sizes, and what follows from them."""
        return {**self.op.sizes(self.shapes), **self.op.derived(self.shapes)}

    def generated(self, kernel: Kernel) -> Generated | None:
        """What `kernel` has of its own for this; None where it is a shader for all.

        Raises UnsupportedOpError where it cannot compute this.
        """
        if not kernel.generate:
            return None
        wanted = tuple(kernel.layout(name) for name in self.types)
        return _generated(self, kernel.generate, kernel.backend, wanted)

    def adapted(self, kernel: Kernel) -> Kernel:
        """`kernel` with this problem's operands, where it takes any number of them.

        Raises UnsupportedOpError where it cannot compute this.
        """
        made = self.generated(kernel)
        return (
            kernel
            if made is None
            else kernel.expanded(tuple(self.shapes), made.reads, apart=bool(made.launches))
        )

    def split(self, kernel: Kernel, device: Capabilities) -> Split | None:
        """The parts in which `kernel` computes this where one dispatch would be too much."""
        if self.op.samples and kernel.backend == "compute" and not kernel.textures:
            return Batches.batches(
                kernel,
                self.op.along(self.shapes),
                {**self.shapes, "out": self.output},
                self.chosen_layouts(kernel),
                lambda count: self.of_samples(count).sizes(kernel),
                device,
            )
        return Split.of(kernel, self.op, self.shapes, self.output, device)

    def of_shapes(self, shapes: Shapes) -> Problem:
        """The same with operands of other shapes."""
        types = {name: TensorType(shapes[name], one.dtype) for name, one in self.operands}
        return Problem.of(self.op, types, self.layouts)

    def of_samples(self, count: int) -> Problem:
        """The same with so many samples."""
        some = {name: (count, *self.shapes[name][1:]) for name in self.op.along(self.shapes)}
        return self.of_shapes({**self.shapes, **some})

    def chosen_layouts(self, kernel: Kernel, split: Split | None = None) -> dict[str, Layout]:
        """The layout of each operand and of `out` when `kernel` runs this, whole or split."""
        fixed = self.op.fixed_layouts()
        found: dict[str, Layout] = {}
        for name in (*self.shapes, "out"):
            text = fixed.get(name, kernel.layouts[name])
            found[name] = self.common_layout(name) if text == ANY else parse(text)
        if split is not None and split.weight is not None:
            found["weight"] = split.weight
        return found

    def common_layout(self, name: str) -> Layout:
        """How `name` lies for a kernel that takes any layout: as the result is to lie.

        That is how the first operand lies that is as large as the result; what has fewer dimensions
        than such a layout has is row major.
        """
        full = [n for n in self.layouts if self.shape(n) == self.output]
        text = self.layouts[full[0]] if self.op.variadic and full else self.first_layout
        layout = parse(text)
        ranks = layout.ranks
        return layout if ranks is None or len(self.shape(name)) in ranks else parse("R")

    @property
    def first_layout(self) -> str:
        """How the first input lies."""
        fixed = self.op.parameters
        names = (name for name in self.shapes if name in self.layouts and name not in fixed)
        return next((self.layouts[name] for name in names), "R")

    def fits(self, kernel: Kernel) -> bool:
        """Whether `kernel` takes the first input as it lies."""
        first = next(iter(self.op.names(len(self.operands))), "")
        return kernel.layouts.get(first) in (ANY, self.first_layout, None)

    def lowered(self, kernel: Kernel) -> Lowered:
        """The stages in which `kernel` computes this."""
        assert isinstance(self.op, Contraction)
        return LOWERINGS[kernel.stages](self.op, self.shapes, kernel.defaults)

    def uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        """The op's sizes and scalars, and how each operand lies in memory.

        Rows, columns and what a matrix of a stack takes count numbers, floats or halves.
        """
        values: dict[str, Uniform] = {**self.op_sizes, **self.op.scalars()}
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
        made = self.generated(kernel)
        return values if made is None else {**values, **made.uniforms}

    def sizes(self, kernel: Kernel) -> dict[str, int]:
        """The integers among the uniforms."""
        return {k: v for k, v in self.uniforms(kernel).items() if isinstance(v, int)}


@lru_cache(maxsize=1024)
def _generated(
    problem: Problem, generator: str, backend: str, wanted: tuple[str, ...]
) -> Generated:
    """What the generator so called makes of `problem`. wanted: the layout of each of its types."""
    layouts = {
        name: problem.common_layout(name) if text == ANY else parse(text)
        for name, text in zip(problem.types, wanted, strict=True)
    }
    return GENERATORS[generator].make(problem.op, problem.types, layouts, backend)

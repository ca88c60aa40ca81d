"""How operands lie, and in which of their layouts kernels take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from glnn.graph.epilogue import Extent
from glnn.graph.operator import Operator, Shapes
from glnn.graph.prologued import prologue_of
from glnn.kernels.declaration import ANY
from glnn.kernels.kernel import Kernel
from glnn.layout import Layout, Strip, alone, parse
from glnn.layout.layout import DENSE, ROW_ALIGNMENT
from glnn.symint import divides, same


@dataclass(frozen=True, eq=False)
class Lying:
    """The operands of an operator and of its epilogue, and how those lie that are computed."""

    op: Operator
    """What is computed of them."""
    own: Shapes
    """The shapes of the operator's operands."""
    shapes: Shapes
    """The shape of each operand and result."""
    layouts: Mapping[str, str]
    """How each operand lies of which that is known; others are packed as a kernel wants them."""
    extents: Mapping[str, Extent]
    """How each operand of the epilogue lies against the result."""

    @property
    def first(self) -> str:
        """How the first input lies."""
        return next((self.layouts[name] for name in self.shapes if name in self.layouts), "R")

    def chosen(self, kernel: Kernel) -> dict[str, Layout]:
        """The layout of each operand and of `out` when `kernel` runs."""
        known = {name: self.accepted(name, kernel) for name in kernel.layouts}
        known |= {name: (text,) for name, text in self.op.fixed_layouts().items()}
        out = (self.taken("out", known["out"]).name,)
        for name, extent in self.extents.items():
            known[name] = out if extent == "full" else ("R",)
        return {name: self.taken(name, known[name]) for name in (*self.own, *self.extents, "out")}

    def taken(self, name: str, wanted: Iterable[str]) -> Layout:
        """How `name` lies for a kernel that takes it in one of `wanted`: as it comes if it can."""
        shape, texts = self.shapes[name], tuple(wanted)
        if texts == (ANY,):
            return self._common(name).at(shape)
        lies = parse(self.layouts.get(name, texts[0])).at(shape)
        known = [parse(text).at(shape) for text in texts]
        return lies if lies in known else known[0]

    def _common(self, name: str) -> Layout:
        """How `name` lies for a kernel that takes any layout: as the result is to lie.

        That is how the first operand lies that is as large as the result. What has fewer dimensions
        is row major; what is row major is taken with its padding.
        """
        full = [n for n in self.layouts if same(self.shapes[n], self.shapes["out"])]
        text = self.layouts[full[0]] if self.op.variadic and full else self.first
        layout = parse(text).unpacked
        if layout.ranks is not None and len(self.shapes[name]) not in layout.ranks:
            layout = DENSE
        lies = parse(self.layouts.get(name, layout.name))
        return lies if layout.in_rows and lies.in_rows else layout

    def accepted(self, name: str, kernel: Kernel) -> tuple[str, ...]:
        """The layouts in which `kernel` takes `name`.

        Of stacks only rows in which each row of each matrix begins with a vec4: the rows of a stack
        are not padded one by one, nor are the columns of matrices below one another. What has a
        prologue is read by four channels at a time, as it lies in the first layout.
        """
        wanted = kernel.wants(name)
        lies = parse(self.layouts.get(name, "R"))
        if isinstance(lies, Strip) and kernel.takes_strips(name):
            return (lies.name,) if {ANY, lies.whole.name} & {*wanted} else wanted
        if name == "x" and prologue_of(self.op) is not None:
            return wanted[:1]
        if len(wanted) < 2 or not (stacks := self.op.stacks(self.own)):
            return wanted
        rows = name not in stacks or divides(ROW_ALIGNMENT, self.shapes[name][-1])
        first = wanted[:1] if rows or not parse(wanted[0]).in_rows else ()
        apart = (t for t in wanted[1:] if (rows if parse(t).in_rows else name in stacks))
        return (*first, *apart) or wanted

    def among(self, name: str, layout: str, kernel: Kernel) -> bool:
        """Whether `kernel` takes `name` where it lies in `layout`."""
        wanted, shape = self.accepted(name, kernel), self.shapes[name]
        lies = parse(layout).at(shape)
        return ANY in wanted or any(lies.seen_as(parse(text), shape) for text in wanted)

    def moved(self, kernel: Kernel) -> int:
        """How many weights, of those that runs change, `kernel` would have reordered in each."""
        changing = (name for name in self.op.parameters if name in self.layouts)
        known = (name for name in changing if name in kernel.layouts)
        return sum(not self.among(name, self.layouts[name], kernel) for name in known)

    def defines(self, kernel: Kernel) -> dict[str, int]:
        """In which of several layouts `kernel` takes operands.

        Rows that are padded or not are told apart by how long they are.
        """
        several = {
            name: texts
            for name, texts in kernel.layouts.items()
            if len(texts) > 1 and not all(parse(text).in_rows for text in texts)
            if name in self.shapes
        }
        chosen = self.chosen(kernel) if several else {}
        lies = ((name, parse(text)) for name, text in self.layouts.items())
        strips = {f"{name.upper()}_STRIP": 1 for name, one in lies if isinstance(one, Strip)}
        return strips | {
            f"{name.upper()}_IN_{text.replace(' ', '_')}": int(
                parse(text).at(self.shapes[name]) == alone(chosen[name]).at(self.shapes[name])
            )
            for name, texts in several.items()
            for text in texts
        }

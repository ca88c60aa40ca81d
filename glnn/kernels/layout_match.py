"""Operands' layouts matched with those that a kernel accepts, and the uniforms of places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from glnn.core.layout import Layout, Morton, Strip, alone, parse
from glnn.core.layout.layout import CHANNELS_LAST, DENSE, ROW_ALIGNMENT, RowMajor
from glnn.core.symint import divides, same
from glnn.core.types import Shape
from glnn.graph.contraction import prologue_of
from glnn.graph.epilogue import Extent
from glnn.graph.operator import Operator, Shapes
from glnn.kernels.kernel import Kernel
from glnn.kernels.manifest import ANY


def places(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """Return the layout uniforms of the operand `name`, an array of `shape` stored in `layout`.

    All strides (`_row`, `_columns`, `_pixel`, `_matrix`) and the offset `_first` count elements,
    floats or halves. The offset is not 0 where the operand is a channel range of wider images.
    """
    found = {f"{name}_size": layout.size(shape), f"{name}_first": layout.first}
    if isinstance(layout, Strip):
        alone = places(name, layout.whole, shape)
        apart = {key: layout.wide for key in alone if key.endswith(("_row", "_columns", "_pixel"))}
        return {**alone, **found, **apart}
    if isinstance(layout, RowMajor):
        found[f"{name}_row"] = found[f"{name}_columns"] = layout.row(shape)
        found[f"{name}_rows"] = layout.rows(shape)
    elif isinstance(layout, Morton):
        rows, columns = layout.padded(shape)
        found[f"{name}_rows"], found[f"{name}_columns"] = rows, columns
        found[f"{name}_matrix"] = rows * columns
    elif layout.name == CHANNELS_LAST:
        found[f"{name}_pixel"] = -(-shape[1] // 4) * 4
    return found


@dataclass(frozen=True, eq=False)
class OperandLayouts:
    """The operands of an operator and of its epilogue, with the layouts that are known."""

    op: Operator
    """The operator that is applied to the operands."""
    own: Shapes
    """The shapes of the operator's operands."""
    shapes: Shapes
    """The shape of each operand and result."""
    layouts: Mapping[str, str]
    """The known layouts, by operand; other operands are packed as a kernel wants them."""
    extents: Mapping[str, Extent]
    """The broadcast extent ("full", "channel" or "one") of each epilogue operand."""

    @property
    def first(self) -> str:
        """The layout of the first operand whose layout is known; row major without one."""
        return next((self.layouts[name] for name in self.shapes if name in self.layouts), "R")

    def chosen(self, kernel: Kernel) -> dict[str, Layout]:
        """Return the layout of each operand and of `out` when `kernel` runs."""
        known = {name: self.accepted(name, kernel) for name in kernel.layouts}
        known |= {name: (text,) for name, text in self.op.fixed_layouts().items()}
        out = (self.layout_for("out", known["out"]).name,)
        for name, extent in self.extents.items():
            known[name] = out if extent == "full" else ("R",)
        return {
            name: self.layout_for(name, known[name]) for name in (*self.own, *self.extents, "out")
        }

    def layout_for(self, name: str, accepted: Iterable[str]) -> Layout:
        """Return the layout of `name` for a kernel that accepts these: unchanged if it can be."""
        shape, texts = self.shapes[name], tuple(accepted)
        if texts == (ANY,):
            return self._common(name).at(shape)
        lies = parse(self.layouts.get(name, texts[0])).at(shape)
        known = [parse(text).at(shape) for text in texts]
        return lies if lies in known else known[0]

    def _common(self, name: str) -> Layout:
        """Return the layout of `name` for a kernel that accepts any: the one the result will have.

        The result has the layout of the first operand as large as itself. Operands of fewer
        dimensions are row major; row-major operands keep their padding.
        """
        full = [n for n in self.layouts if same(self.shapes[n], self.shapes["out"])]
        text = self.layouts[full[0]] if self.op.variadic and full else self.first
        layout = parse(text).unpacked
        if layout.ranks is not None and len(self.shapes[name]) not in layout.ranks:
            layout = DENSE
        lies = parse(self.layouts.get(name, layout.name))
        return lies if layout.in_rows and lies.in_rows else layout

    def accepted(self, name: str, kernel: Kernel) -> tuple[str, ...]:
        """Return the layouts in which `kernel` accepts `name`.

        Batched matrices must have rows that each begin at a vec4: the rows of a batch are not
        padded one by one, nor are the columns of matrices below one another. An x with a prologue
        is read four channels at a time, in the first layout only.
        """
        wanted = kernel.wants(name)
        lies = parse(self.layouts.get(name, "R"))
        if isinstance(lies, Strip) and kernel.takes_subviews(name):
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
        """Return True where `kernel` accepts `name` in `layout`."""
        wanted, shape = self.accepted(name, kernel), self.shapes[name]
        lies = parse(layout).at(shape)
        return ANY in wanted or any(lies.seen_as(parse(text), shape) for text in wanted)

    def moved(self, kernel: Kernel) -> int:
        """Return the number of computed weights that every run would reorder for `kernel`."""
        changing = (name for name in self.op.parameters if name in self.layouts)
        known = (name for name in changing if name in kernel.layouts)
        return sum(not self.among(name, self.layouts[name], kernel) for name in known)

    def defines(self, kernel: Kernel) -> dict[str, int]:
        """Return the macros that tell which of several accepted layouts the operands have.

        Padded and dense rows need no macro: their length tells them apart.
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

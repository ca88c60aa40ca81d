"""An operator on operands of certain types and layouts: what a kernel is chosen for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout, Morton, Strip, narrowed, parse, resized, without_strip
from glnn.core.layout.layout import CHANNELS_LAST, DENSE, ROW_ALIGNMENT, RowMajor
from glnn.core.symint import Substitution, as_constant, divides, hint, is_integer, same
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.gl import Capabilities
from glnn.graph.compose.decompositions import Decomposition, decomposition_named
from glnn.graph.epilogue import ROWWISE, Epilogue, Extent, Prologue
from glnn.graph.handwritten_operator import prologue_of
from glnn.graph.operator import Cost, Operands, Operator, Shapes, typed
from glnn.graph.operators.matmul import Matmul
from glnn.kernels.codegen.expression import COLUMNS, scalars, scalars_before
from glnn.kernels.codegen.generated import Generated, Uniform
from glnn.kernels.codegen.generators import GENERATORS
from glnn.kernels.kernel import MANY, Kernel
from glnn.kernels.manifest import ANY, Operand, Quantity
from glnn.kernels.reference import computed, cost_of, results_of
from glnn.kernels.split import Batches, OpSplit

SAMPLE_EXTENTS: tuple[Extent, ...] = ("full", "padded", "row")
"""Extents of an epilogue's operands that share the first dimension of the result."""


def layout_uniforms(name: str, layout: Layout, shape: Shape) -> dict[str, int]:
    """Return the layout uniforms of the operand `name`, an array of `shape` stored in `layout`.

    All strides (`_row`, `_columns`, `_pixel`, `_matrix`) and the offset `_first` count elements,
    floats or halves. The offset is not 0 where the operand is a channel range of wider images.
    """
    result = {f"{name}_size": layout.size(shape), f"{name}_first": layout.offset}
    if isinstance(layout, Strip):
        dense = layout_uniforms(name, layout.base, shape)
        strided = [key for key in dense if key.endswith(("_row", "_columns", "_pixel"))]
        return {**dense, **result, **dict.fromkeys(strided, layout.pixel_stride)}
    if isinstance(layout, RowMajor):
        result[f"{name}_row"] = result[f"{name}_columns"] = layout.row(shape)
        result[f"{name}_rows"] = layout.rows(shape)
    elif isinstance(layout, Morton):
        rows, columns = layout.padded(shape)
        result[f"{name}_rows"], result[f"{name}_columns"] = rows, columns
        result[f"{name}_matrix"] = rows * columns
    elif layout.name == CHANNELS_LAST:
        result[f"{name}_pixel"] = -(-shape[1] // 4) * 4
    return result


@dataclass(frozen=True, eq=False)
class OperandLayouts:
    """The operands of an operator and of its epilogue, with the layouts that are known."""

    op: Operator
    """The operator that is applied to the operands."""
    op_shapes: Shapes
    """The shapes of the operator's operands."""
    shapes: Shapes
    """The shape of each operand and result."""
    layouts: Mapping[str, str]
    """The known layouts, by operand; other operands are packed as a kernel wants them."""
    extents: Mapping[str, Extent]
    """The broadcast extent of each epilogue operand."""

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
            known[name] = {"full": out, "padded": ("R4", "R")}.get(extent, ("R",))
        return {
            name: self.layout_for(name, known[name])
            for name in (*self.op_shapes, *self.extents, "out")
        }

    def layout_for(self, name: str, accepted: Iterable[str]) -> Layout:
        """Return the layout of `name` for a kernel that accepts these: unchanged if it can be."""
        shape, texts = self.shapes[name], tuple(accepted)
        if texts == (ANY,):
            return self._common(name).simplify(shape)
        layout = parse(self.layouts.get(name, texts[0])).simplify(shape)
        known = [parse(text).simplify(shape) for text in texts]
        return layout if layout in known else known[0]

    def _common(self, name: str) -> Layout:
        """Return the layout of `name` for a kernel that accepts any: the layout of the result.

        The result has the layout of the first operand as large as itself. Operands of fewer
        dimensions are row major; row-major operands keep their padding.
        """
        full = [n for n in self.layouts if same(self.shapes[n], self.shapes["out"])]
        text = self.layouts[full[0]] if self.op.variadic and full else self.first
        layout = parse(text).unpacked
        if layout.ranks is not None and len(self.shapes[name]) not in layout.ranks:
            layout = DENSE
        present = parse(self.layouts.get(name, layout.name))
        return present if layout.in_rows and present.in_rows else layout

    def accepted(self, name: str, kernel: Kernel) -> tuple[str, ...]:
        """Return the layouts in which `kernel` accepts `name`.

        Each row of batched matrices must begin at a vec4, as neither their rows nor their columns
        are padded one by one. An x with a prologue is read four channels at a time, in the first
        layout only.
        """
        wanted = kernel.wants(name)
        present = parse(self.layouts.get(name, "R"))
        if isinstance(present, Strip) and kernel.takes_subviews(name):
            return (present.name,) if {ANY, present.base.name} & {*wanted} else wanted
        if name == "x" and prologue_of(self.op) is not None:
            return wanted[:1]
        if len(wanted) < 2 or not (stacks := self.op.stacks(self.op_shapes)):
            return wanted
        aligned = name not in stacks or divides(ROW_ALIGNMENT, self.shapes[name][-1])
        first = wanted[:1] if aligned or not parse(wanted[0]).in_rows else ()
        others = (t for t in wanted[1:] if (aligned if parse(t).in_rows else name in stacks))
        return (*first, *others) or wanted

    def accepts(self, name: str, layout: str, kernel: Kernel) -> bool:
        """Return True where `kernel` accepts `name` in `layout`."""
        wanted, shape = self.accepted(name, kernel), self.shapes[name]
        present = parse(layout).simplify(shape)
        return ANY in wanted or any(present.is_same_memory(parse(text), shape) for text in wanted)

    def reordered_weights(self, kernel: Kernel) -> int:
        """Return the number of computed weights that every run would reorder for `kernel`."""
        computed = (name for name in self.op.parameters if name in self.layouts)
        read = (name for name in computed if name in kernel.layouts)
        return sum(not self.accepts(name, self.layouts[name], kernel) for name in read)

    def defines(self, kernel: Kernel) -> dict[str, int]:
        """Return the macros that name the layout of each operand with several accepted layouts.

        Padded and dense rows need no macro: their length tells them apart.
        """
        several = {
            name: texts
            for name, texts in kernel.layouts.items()
            if len(texts) > 1 and not all(parse(text).in_rows for text in texts)
            if name in self.shapes
        }
        chosen = self.chosen(kernel) if several else {}
        parsed = ((name, parse(text)) for name, text in self.layouts.items())
        strips = {f"{name.upper()}_STRIP": 1 for name, one in parsed if isinstance(one, Strip)}
        return strips | {
            f"{name.upper()}_IN_{text.replace(' ', '_')}": int(
                parse(text).simplify(self.shapes[name])
                == without_strip(chosen[name]).simplify(self.shapes[name])
            )
            for name, texts in several.items()
            for text in texts
        }


def expanded(
    kernel: Kernel,
    operands: Sequence[str],
    reads: Mapping[str, str | int],
    *,
    separate_launches: bool = False,
) -> Kernel:
    """Return `kernel` with a declaration for each of `operands` instead of one for all, as `x*`.

    reads: the texel format or the attribute's floats of each operand that is fetched.
    separate_launches: True where each operand has a launch of its own and all share a binding.
    """
    declarations: dict[str, Operand] = {}
    variadic: dict[str, Operand] = {}
    for name, operand in kernel.operands.items():
        if name.endswith(MANY):
            variadic[name[: -len(MANY)]] = operand
        else:
            declarations[name] = _fetched(operand, reads.get(name))
    for stem, operand in variadic.items():
        names = [n for n in operands if n.startswith(stem) and n[len(stem) :].isdigit()]
        for i, name in enumerate(names):
            first = operand.binding
            binding = first if first is None or separate_launches else first + i
            declarations[name] = replace(_fetched(operand, reads.get(name)), binding=binding)
    return replace(kernel, operands=declarations)


def _fetched(operand: Operand, read: str | int | None) -> Operand:
    """Return `operand` fetched from a texture of format `read`, or as `read` floats a vertex."""
    if operand.texture is None or read is None:
        return operand
    if isinstance(read, int):
        return replace(operand, texture=None, attribute=Quantity.read(read))
    return replace(operand, texture=read)


@dataclass(frozen=True)
class OpSpec:
    """An operator with the types and layouts of its operands: all that a kernel is chosen by."""

    op: Operator
    """The operator to compute."""
    operands: tuple[tuple[str, TensorType], ...]
    """The type of each operand that is present, by name; the epilogue's operands come last."""
    results: tuple[TensorType, ...]
    """The types of `out`, `out1`, ...; the first may be stored as float16."""
    known_layouts: tuple[tuple[str, str], ...] = ()
    """The layout of each operand that is computed; others are packed as a kernel wants them."""
    epilogue: Epilogue | None = None
    """The pointwise function that is applied to the first result before it is stored."""

    @classmethod
    def create(
        cls,
        op: Operator,
        operands: Operands,
        layouts: Mapping[str, str],
        epilogue: Epilogue | None = None,
        *,
        rounded: bool = False,
    ) -> OpSpec:
        """Return the spec of `op` on operands of these types or shapes, stored in `layouts`.

        rounded: True to store the first result as float16 instead of float32. Raises ShapeError
        where the operands do not fit the operator or the epilogue.
        """
        types = tuple(typed(operands).items())
        return _op_spec(op, types, tuple(layouts.items()), epilogue, rounded)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash of all fields, computed once: specs are keys of many tables, deeply nested."""
        return hash((self.op, self.operands, self.results, self.known_layouts, self.epilogue))

    @cached_property
    def hinted(self) -> OpSpec:
        """This spec with each SymInt replaced by its current value (hint).

        Kernels are chosen for the hints, even if the plan holds for other sizes, too.
        """
        return self.substituted(Substitution(hint))

    @property
    def is_open(self) -> bool:
        """Return True where some of the sizes are SymInts."""
        return self.hinted is not self

    @cached_property
    def at_hints(self) -> OpSpec:
        """This spec at its current sizes, computed by the program that serves all sizes."""
        return self.at(Substitution(hint))

    def at(self, substitution: Substitution) -> OpSpec:
        """Return this spec at substituted sizes, computed by the program that serves all sizes."""
        if not self.is_open:
            return self
        parts = self.op, self.operands, self.results, self.known_layouts, self.epilogue
        return OpSpecAtSizes(*substitution(parts), open_spec=self, substitution=substitution)

    @property
    def origin(self) -> OpSpec:
        """The spec that programs are built for: the open one of a spec at substituted sizes."""
        return self

    def substituted(self, substitution: Substitution) -> OpSpec:
        """Return this spec with SymInts replaced by numbers. Raises ShapeError."""
        spec = substitution(self)
        if spec is self:
            return self
        rounded = self.results[0].dtype is DType.float16
        return _op_spec(spec.op, spec.operands, spec.known_layouts, spec.epilogue, rounded)

    def with_layouts(self, layouts: Mapping[str, str]) -> OpSpec:
        """Return this spec with its operands in other layouts."""
        return self._with(self.types, layouts)

    def stored(self, names: Container[str], dtype: DType = DType.float16) -> OpSpec:
        """Return this spec with the operands in `names`, `out` perhaps, stored as `dtype`."""
        types = {
            name: TensorType(type.dims, dtype) if name in names else type
            for name, type in self.types.items()
        }
        return self._with(types, self.layouts)

    def _with(self, types: Mapping[str, TensorType], layouts: Mapping[str, str]) -> OpSpec:
        """Return this spec with other types of operands, and of `out` where `types` has it."""
        operands = {name: types[name] for name in self.shapes}
        rounded = types.get("out", self.results[0]).dtype is DType.float16
        return OpSpec.create(self.op, operands, layouts, self.epilogue, rounded=rounded)

    def resized(self, shapes: Shapes) -> OpSpec:
        """Return this spec with operands of other shapes; the epilogue's operands follow."""
        types = {n: TensorType(shapes[n], self.types[n].dtype) for n in self.op_shapes}
        (out, *_) = results_of(self.op, types)
        if self.epilogue:
            extra = self.epilogue.shapes(out.shape).items()
            types |= {n: TensorType(s, self.types[n].dtype) for n, s in extra}
        shapes = {name: type.shape for name, type in {**types, "out": out}.items()}
        layouts = {n: resized(t, self.shape(n), shapes[n]) for n, t in self.layouts.items()}
        return self._with(types, layouts)

    def of_samples(self, count: int) -> OpSpec:
        """Return this spec with `count` samples along the batch dimension."""
        batched = {
            name: (count, *self.shapes[name][1:])
            for name in self.op.sample_operands(self.op_shapes)
        }
        return self.resized({**self.shapes, **batched})

    @cached_property
    def op_shapes(self) -> Shapes:
        """The shapes of the operator's operands."""
        return {name: shape for name, shape in self.shapes.items() if name not in self.extents}

    @cached_property
    def extents(self) -> dict[str, Extent]:
        """The broadcast extent of each epilogue operand."""
        return {} if self.epilogue is None else self.epilogue.named_extents

    @property
    def prologue(self) -> Prologue | None:
        """The pointwise function that is applied to x before it is multiplied; None without one."""
        return prologue_of(self.op)

    @property
    def sample_operands(self) -> tuple[str, ...]:
        """The operands that share the result's batch dimension, along which the spec can be split.

        Empty where the operator has none.
        """
        of_op = self.op.sample_operands(self.op_shapes)
        of_epilogue = (name for name, extent in self.extents.items() if extent in SAMPLE_EXTENTS)
        return (*of_op, *of_epilogue) if of_op else ()

    @cached_property
    def cost(self) -> Cost:
        """The least operations and bytes that one run needs, the epilogue's functions included."""
        return cost_of(self.op, dict(self.operands), self.results[0], self.epilogue)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        """Compute the first result by NumPy, epilogue included, in the operands' precision."""
        return self.compute_all(operands)[0]

    def compute_all(self, operands: Mapping[str, Array]) -> tuple[Array, ...]:
        """Compute all results by NumPy."""
        return computed(self.op, operands, self.epilogue)

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
        """The layout of each operand whose layout is known, by name."""
        return dict(self.known_layouts)

    @cached_property
    def fp16_operands(self) -> tuple[str, ...]:
        """The names of the operands that are float16, and `out` where the first result is."""
        return tuple(name for name, one in self.types.items() if one.dtype is DType.float16)

    @property
    def result_shape(self) -> Shape:
        """The first result's shape."""
        return self.results[0].shape

    @cached_property
    def int8_operands(self) -> tuple[str, ...]:
        """The names of the weights that are int8, four of them in a word."""
        types = dict(self.operands)
        return tuple(
            n for n in self.op.int8_operands if n in types and types[n].dtype is DType.int8
        )

    def defines(self, kernel: Kernel | None = None) -> dict[str, int]:
        """Return the macros of the program, with those of `kernel` where that is given.

        They are the op's attributes, and which operands are present, float16 or int8.
        """
        made = None if kernel is None else self.generated(kernel)
        values = {
            **{
                name.upper(): value for name, value in self.op.derived_sizes(self.op_shapes).items()
            },
            **self.op.defines(self.op_shapes),
            **{f"HAS_{name.upper()}": int(name in self.shapes) for name in self.op.optional},
            **{f"{name.upper()}_HALF": 1 for name in self.fp16_operands},
            **{f"{name.upper()}_BYTES": 1 for name in self.int8_operands},
            "HAS_EPILOGUE": int(self.epilogue is not None),
            **({} if made is None else made.defines),
            **({} if kernel is None else self.operand_layouts.defines(kernel)),
        }
        return {n: as_constant(value) for n, value in values.items()} if self.is_open else values

    def shape(self, name: str) -> Shape:
        """The shape of the operand or result called `name`."""
        return self.types[name].shape

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Cache of values derived for this spec and a kernel."""
        return {}

    @cached_property
    def suits_sizes(self) -> dict[str, int]:
        """The sizes that the key `suits` of a declaration may restrict, without `KERNEL_SIZES`."""
        outputs, prologue = prod(self.result_shape), int(self.prologue is not None)
        return {**self.op_sizes, "outputs": outputs, "prologue": prologue}

    @cached_property
    def op_sizes(self) -> dict[str, int]:
        """The op's sizes and the values derived from them."""
        return {**self.op.sizes(self.op_shapes), **self.op.derived_sizes(self.op_shapes)}

    def generated(self, kernel: Kernel) -> Generated | None:
        """Return the code and uniforms generated for this spec; None for a handwritten shader.

        Raises UnsupportedOpError where the kernel cannot compute this spec.
        """
        if not kernel.generate:
            return None
        wanted = tuple(self.operand_layouts.accepted(name, kernel) or (ANY,) for name in self.types)
        return _generated(self, kernel.generate, kernel.backend, wanted)

    def adapted(self, kernel: Kernel) -> Kernel:
        """Return `kernel` with this spec's operands bound, where it takes any number of them.

        Raises UnsupportedOpError where the kernel cannot compute this spec.
        """
        made = self.generated(kernel)
        if made is None:
            return kernel
        separate_launches = any(launch.operand for launch in made.launches)
        return expanded(kernel, tuple(self.shapes), made.reads, separate_launches=separate_launches)

    def split(self, kernel: Kernel, device: Capabilities) -> OpSplit | None:
        """Return the parts in which `kernel` computes this; None where one dispatch suffices."""
        key = "split", kernel, device
        if key not in self.memo:
            self.memo[key] = self._split(kernel, device)
        result: OpSplit | None = self.memo[key]
        return result

    def _split(self, kernel: Kernel, device: Capabilities) -> OpSplit | None:
        by_samples = self.sample_operands and not isinstance(self.op, Matmul)
        if by_samples and kernel.backend == "compute" and not kernel.textures:
            batches = Batches.batches(
                kernel,
                self.sample_operands,
                self.types,
                self.chosen_layouts(kernel),
                lambda n: self.of_samples(n).sizes(kernel),
                device,
            )
            # All parts run one program, so their macros must be equal.
            defines, counts = self.defines(kernel), batches.counts if batches else ()
            same_program = all(self.of_samples(n).defines(kernel) == defines for n in counts)
            return batches if same_program else None
        return OpSplit.plan(kernel, self.op, self.types, device, self.extents)

    def chosen_layouts(self, kernel: Kernel, split: OpSplit | None = None) -> dict[str, Layout]:
        """Return the layout of each operand and of `out` for `kernel`, whole or split."""
        key = "layouts", kernel
        if key not in self.memo:
            self.memo[key] = self.operand_layouts.chosen(kernel)
        result = dict(self.memo[key])
        result |= {name: narrowed(result[name]) for name in self.int8_operands if name in result}
        if split is not None and split.weight is not None:  # parts need the preferred layouts
            result["x"] = parse(kernel.wants("x")[0]).simplify(self.shape("x"))
            result["weight"] = split.weight
        return result

    @cached_property
    def operand_layouts(self) -> OperandLayouts:
        """The operands' layouts, and the matching of them with the layouts that kernels accept."""
        shapes = {name: one.shape for name, one in self.types.items()}
        return OperandLayouts(self.op, self.op_shapes, shapes, self.layouts, self.extents)

    @property
    def first_layout(self) -> str:
        """The layout of the first input."""
        return self.operand_layouts.first

    @cached_property
    def _first_operand(self) -> str:
        """The first operand's name; empty where the op has none."""
        return next(iter(self.op.names(len(self.operands))), "")

    def is_accepted_by(self, kernel: Kernel) -> bool:
        """Return True where `kernel` accepts the first input in its present layout."""
        first = self._first_operand
        if first not in kernel.layouts:
            return True
        key = "accepted", kernel.wants(first), kernel.takes_subviews(first)
        if key not in self.memo:
            self.memo[key] = self.operand_layouts.accepts(first, self.first_layout, kernel)
        result: bool = self.memo[key]
        return result

    def lowered(self, kernel: Kernel) -> Decomposition:
        """Return the stages of other ops by which `kernel` computes this."""
        key = "lowered", kernel
        if key not in self.memo:
            decompose = decomposition_named(kernel.stages)
            self.memo[key] = decompose(self.op, self.op_shapes, kernel.defaults)
        result: Decomposition = self.memo[key]
        return result

    def uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        """Return the program's uniforms: sizes, scalars, and the operands' strides in elements."""
        key = "uniforms", kernel
        if key not in self.memo:
            self.memo[key] = self._uniforms(kernel)
        return dict(self.memo[key])

    def _uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        values: dict[str, Uniform] = {**self.op_sizes, **self.op.scalars()}
        values |= {**scalars(self.epilogue), **scalars_before(self.prologue)}
        if {*ROWWISE} & {*self.extents.values()}:
            values[COLUMNS] = self.result_shape[-1]
        for name, layout in self.chosen_layouts(kernel).items():
            values |= layout_uniforms(name, layout, self.shape(name))
        made = self.generated(kernel)
        return values if made is None else {**values, **made.uniforms}

    def sizes(self, kernel: Kernel) -> dict[str, int]:
        """Return the integers among the uniforms."""
        return {k: v for k, v in self.uniforms(kernel).items() if is_integer(v)}


@dataclass(frozen=True)
class OpSpecAtSizes(OpSpec):
    """An open spec at substituted sizes, with the program and the layouts of the open spec."""

    open_spec: OpSpec = field(kw_only=True, compare=False)
    substitution: Substitution = field(kw_only=True, compare=False)

    @property
    def origin(self) -> OpSpec:
        return self.open_spec

    def defines(self, kernel: Kernel | None = None) -> dict[str, int]:
        return self.open_spec.defines(kernel)

    def generated(self, kernel: Kernel) -> Generated | None:
        return self.substitution(self.open_spec.generated(kernel))

    def chosen_layouts(self, kernel: Kernel, split: OpSplit | None = None) -> dict[str, Layout]:
        return self.open_spec.chosen_layouts(kernel, split)

    def _uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        return self.substitution(self.open_spec.uniforms(kernel))


@lru_cache(maxsize=1024)
def _op_spec(
    op: Operator,
    operands: tuple[tuple[str, TensorType], ...],
    layouts: tuple[tuple[str, str], ...],
    epilogue: Epilogue | None,
    rounded: bool,
) -> OpSpec:
    """Implement `OpSpec.create`, cached: equal arguments share one spec and what it memoizes."""
    names, types = epilogue.names if epilogue else (), dict(operands)
    op_operands = {name: one for name, one in operands if name not in names}
    op.check_operands(op_operands)
    ordered = {
        name: op_operands[name] for name in op.names(len(op_operands)) if name in op_operands
    }  # in the operator's order
    results = results_of(op, ordered, rounded)
    extra = {name: types[name] for name in names if name in types}
    if epilogue:
        epilogue.check(op.name, {n: one.shape for n, one in extra.items()}, results[0].shape)
    return OpSpec(op, tuple({**ordered, **extra}.items()), results, layouts, epilogue)


@lru_cache(maxsize=1024)
def _generated(
    spec: OpSpec, generator: str, backend: str, accepted: tuple[tuple[str, ...], ...]
) -> Generated:
    """Run the named generator on `spec`. accepted: the layouts accepted for each of its types."""
    layouts = {
        name: spec.operand_layouts.layout_for(name, texts)
        for name, texts in zip(spec.types, accepted, strict=True)
        if name not in spec.extents  # the text of the epilogue declares its operands
    }
    types = {name: spec.types[name] for name in layouts}
    return GENERATORS[generator].make(spec.op, types, layouts, backend)

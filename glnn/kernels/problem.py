"""What a kernel is chosen for: an operator on operands of certain types and layouts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from glnn.device import Capabilities
from glnn.graph.decompose import LOWERINGS, Lowered
from glnn.graph.epilogue import Epilogue, Extent
from glnn.graph.operator import Cost, Operands, Operator, Shapes, typed
from glnn.graph.operators.matmul import Matmul
from glnn.graph.prologue import Prologue
from glnn.graph.prologued import prologue_of
from glnn.kernels.batches import Batches
from glnn.kernels.declaration import ANY
from glnn.kernels.expansion import expanded
from glnn.kernels.generate.epilogue import scalars
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.kernels.generate.generators import GENERATORS
from glnn.kernels.generate.prologue import scalars_before
from glnn.kernels.kernel import Kernel
from glnn.kernels.lying import Lying
from glnn.kernels.places import places
from glnn.kernels.reference import computed, cost_of, results_of
from glnn.kernels.split import Split
from glnn.layout import Layout, narrowed, parse, resized
from glnn.symint import Substitution, as_constant, hint, is_integer
from glnn.types import Array, DType, Shape, TensorType


@dataclass(frozen=True)
class Problem:
    """An operator with the types and layouts it is to run on: all that a kernel is chosen by."""

    op: Operator
    """What is computed."""
    operands: tuple[tuple[str, TensorType], ...]
    """The type of each operand that is there, by name; those of the epilogue last."""
    results: tuple[TensorType, ...]
    """The types of `out`, `out1`, ...; the first is float16 where it is to be stored so."""
    given: tuple[tuple[str, str], ...] = ()
    """How the operands lie that are computed; others are packed as a kernel wants them."""
    epilogue: Epilogue | None = None
    """What is done to the first result before it is stored."""

    @classmethod
    def of(
        cls,
        op: Operator,
        operands: Operands,
        layouts: Mapping[str, str],
        epilogue: Epilogue | None = None,
        *,
        rounded: bool = False,
    ) -> Problem:
        """The problem of `op` on operands of these types or shapes, which lie in `layouts`.

        rounded: whether the first result is stored as float16, not as float32. Raises ShapeError
        where they do not fit the operator or the epilogue.
        """
        types = tuple(typed(operands).items())
        return _problem(op, types, tuple(layouts.items()), epilogue, rounded)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Its hash, found once: it is looked up in many tables, and deep."""
        return hash((self.op, self.operands, self.results, self.given, self.epilogue))

    @cached_property
    def hinted(self) -> Problem:
        """The same of the sizes at hand, which differs where some are SymInts.

        Kernels are chosen for these, whatever other sizes a plan may hold for.
        """
        return self.substituted(Substitution(hint))

    @property
    def is_open(self) -> bool:
        """Whether some of its sizes are SymInts."""
        return self.hinted is not self

    @cached_property
    def at_hand(self) -> Problem:
        """The same of the sizes at hand, computed by the program that is for all sizes."""
        return self.at(Substitution(hint))

    def at(self, change: Substitution) -> Problem:
        """The same of the sizes that `change` puts in, by that program."""
        if not self.is_open:
            return self
        parts = self.op, self.operands, self.results, self.given, self.epilogue
        return ProblemAtHand(*change(parts), of_open=self, change=change)

    @property
    def origin(self) -> Problem:
        """The problem that programs are made for: itself, or the open one."""
        return self

    def substituted(self, change: Substitution) -> Problem:
        """The same with numbers in the place of SymInts. Raises ShapeError."""
        found = change(self)
        if found is self:
            return self
        rounded = self.results[0].dtype is DType.float16
        return _problem(found.op, found.operands, found.given, found.epilogue, rounded)

    def lying(self, layouts: Mapping[str, str]) -> Problem:
        """The same whose operands lie in other layouts."""
        return self._of(self.types, layouts)

    def stored(self, names: Container[str], dtype: DType = DType.float16) -> Problem:
        """The same whose operands, and `out`, are stored as `dtype` where `names` has them."""
        given = self.types.items()
        types = {n: TensorType(one.dims, dtype) if n in names else one for n, one in given}
        return self._of(types, self.layouts)

    def _of(self, types: Mapping[str, TensorType], layouts: Mapping[str, str]) -> Problem:
        """The same with other types of operands, and of `out` where that is said."""
        operands = {name: types[name] for name in self.shapes}
        rounded = types.get("out", self.results[0]).dtype is DType.float16
        return Problem.of(self.op, operands, layouts, self.epilogue, rounded=rounded)

    def resized(self, shapes: Shapes) -> Problem:
        """The same of operands of other shapes; those of its epilogue follow."""
        types = {n: TensorType(shapes[n], self.types[n].dtype) for n in self.own}
        (out, *_) = results_of(self.op, types)
        if self.epilogue:
            extra = self.epilogue.shapes(out.shape).items()
            types |= {n: TensorType(s, self.types[n].dtype) for n, s in extra}
        after = {**types, "out": out}
        lie = {n: resized(t, self.shape(n), after[n].shape) for n, t in self.layouts.items()}
        return self._of(types, lie)

    def of_samples(self, count: int) -> Problem:
        """The same with so many samples."""
        some = {name: (count, *self.shapes[name][1:]) for name in self.op.along(self.own)}
        return self.resized({**self.shapes, **some})

    @cached_property
    def own(self) -> Shapes:
        """The shapes of the operator's operands."""
        return {name: shape for name, shape in self.shapes.items() if name not in self.extents}

    @cached_property
    def extents(self) -> dict[str, Extent]:
        """How each operand of its epilogue lies against the result."""
        return {} if self.epilogue is None else self.epilogue.named_extents

    @property
    def prologue(self) -> Prologue | None:
        """What is done to x before it is multiplied."""
        return prologue_of(self.op)

    @property
    def along(self) -> tuple[str, ...]:
        """The operands whose first dimension is the result's: each part by itself makes its own."""
        own = self.op.along(self.own)
        full = (name for name, extent in self.extents.items() if extent == "full")
        return (*own, *full) if own else ()

    @cached_property
    def cost(self) -> Cost:
        """What one run needs at the least, its epilogue's functions counted."""
        return cost_of(self.op, dict(self.operands), self.results[0], self.epilogue)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        """The first result by NumPy, its epilogue's too, floats in the operands' precision."""
        return self.compute_all(operands)[0]

    def compute_all(self, operands: Mapping[str, Array]) -> tuple[Array, ...]:
        """All results by NumPy."""
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
        """How each operand lies of which that is known."""
        return dict(self.given)

    @cached_property
    def halves(self) -> tuple[str, ...]:
        """The operands that are float16, and `out` where that is."""
        return tuple(name for name, one in self.types.items() if one.dtype is DType.float16)

    @property
    def output(self) -> Shape:
        """The first result's shape."""
        return self.results[0].shape

    @cached_property
    def bytes(self) -> tuple[str, ...]:
        """The weights that are int8, four of them in a word."""
        types = dict(self.operands)
        return tuple(n for n in self.op.bytes if n in types and types[n].dtype is DType.int8)

    def defines(self, kernel: Kernel | None = None) -> dict[str, int]:
        """The op's attributes, which of its optional operands are there, which are halves or bytes.

        And what is a `#define` of `kernel`, where that is generated.
        """
        made = None if kernel is None else self.generated(kernel)
        found = {
            **{name.upper(): value for name, value in self.op.derived(self.own).items()},
            **self.op.defines(self.own),
            **{f"HAS_{name.upper()}": int(name in self.shapes) for name in self.op.optional},
            **{f"{name.upper()}_HALF": 1 for name in self.halves},
            **{f"{name.upper()}_BYTES": 1 for name in self.bytes},
            **({} if made is None else made.defines),
            **({} if kernel is None else self.lies.defines(kernel)),
        }
        return {n: as_constant(value) for n, value in found.items()} if self.is_open else found

    def shape(self, name: str) -> Shape:
        """The shape of the operand or result called `name`."""
        return self.types[name].shape

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was found of it for a kernel."""
        return {}

    @cached_property
    def meant_sizes(self) -> dict[str, int]:
        """What a kernel may be meant for, but for how it takes the operands."""
        own = {"outputs": prod(self.output), "prologue": int(self.prologue is not None)}
        return {**self.op_sizes, **own}

    @cached_property
    def op_sizes(self) -> dict[str, int]:
        """The op's sizes, and what follows from them."""
        return {**self.op.sizes(self.own), **self.op.derived(self.own)}

    def generated(self, kernel: Kernel) -> Generated | None:
        """What `kernel` has of its own for this; None where it is a shader for all.

        Raises UnsupportedOpError where it cannot compute this.
        """
        if not kernel.generate:
            return None
        wanted = tuple(self.lies.accepted(name, kernel) or (ANY,) for name in self.types)
        return _generated(self, kernel.generate, kernel.backend, wanted)

    def adapted(self, kernel: Kernel) -> Kernel:
        """`kernel` with this problem's operands, where it takes any number of them.

        Raises UnsupportedOpError where it cannot compute this.
        """
        made = self.generated(kernel)
        if made is None:
            return kernel
        apart = any(launch.operand for launch in made.launches)
        return expanded(kernel, tuple(self.shapes), made.reads, apart=apart)

    def split(self, kernel: Kernel, device: Capabilities) -> Split | None:
        """The parts in which `kernel` computes this where one dispatch would be too much."""
        key = "split", kernel, device
        if key not in self.memo:
            self.memo[key] = self._split(kernel, device)
        found: Split | None = self.memo[key]
        return found

    def _split(self, kernel: Kernel, device: Capabilities) -> Split | None:
        by_samples = self.along and not isinstance(self.op, Matmul)
        if by_samples and kernel.backend == "compute" and not kernel.textures:
            layouts, some = self.chosen_layouts(kernel), self.of_samples
            found = Batches.batches(
                kernel, self.along, self.types, layouts, lambda n: some(n).sizes(kernel), device
            )
            counts = found.counts if found else ()
            own = self.defines(kernel)  # which all parts must have: they run one program
            return found if all(some(n).defines(kernel) == own for n in counts) else None
        return Split.of(kernel, self.op, self.types, device, self.extents)

    def chosen_layouts(self, kernel: Kernel, split: Split | None = None) -> dict[str, Layout]:
        """The layout of each operand and of `out` when `kernel` runs this, whole or split."""
        key = "layouts", kernel
        if key not in self.memo:
            self.memo[key] = self.lies.chosen(kernel)
        found = dict(self.memo[key])
        found |= {name: narrowed(found[name]) for name in self.bytes if name in found}
        if split is not None and split.weight is not None:  # parts are of what lies as is wanted
            found["x"] = parse(kernel.wants("x")[0]).at(self.shape("x"))
            found["weight"] = split.weight
        return found

    @cached_property
    def lies(self) -> Lying:
        """How its operands lie, and which layouts kernels take."""
        shapes = {name: one.shape for name, one in self.types.items()}
        return Lying(self.op, self.own, shapes, self.layouts, self.extents)

    @property
    def first_layout(self) -> str:
        """How the first input lies."""
        return self.lies.first

    @cached_property
    def _first(self) -> str:
        """The first operand's name; empty where it has none."""
        return next(iter(self.op.names(len(self.operands))), "")

    def fits(self, kernel: Kernel) -> bool:
        """Whether `kernel` takes the first input as it lies."""
        first = self._first
        if first not in kernel.layouts:
            return True
        key = "fits", kernel.wants(first), kernel.takes_strips(first)  # all that it depends on
        if key not in self.memo:
            self.memo[key] = self.lies.among(first, self.first_layout, kernel)
        found: bool = self.memo[key]
        return found

    def lowered(self, kernel: Kernel) -> Lowered:
        """The stages in which `kernel` computes this."""
        key, made = ("lowered", kernel), LOWERINGS[kernel.stages]
        found: Lowered = self.memo.get(key) or made(self.op, self.own, kernel.defaults)
        self.memo[key] = found
        return found

    def uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        """The op's sizes and scalars, and how each operand lies in memory, counted in numbers."""
        key = "uniforms", kernel
        if key not in self.memo:
            self.memo[key] = self._uniforms(kernel)
        return dict(self.memo[key])

    def _uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        values: dict[str, Uniform] = {**self.op_sizes, **self.op.scalars()}
        values |= {**scalars(self.epilogue), **scalars_before(self.prologue)}
        for name, layout in self.chosen_layouts(kernel).items():
            values |= places(name, layout, self.shape(name))
        made = self.generated(kernel)
        return values if made is None else {**values, **made.uniforms}

    def sizes(self, kernel: Kernel) -> dict[str, int]:
        """The integers among the uniforms."""
        return {k: v for k, v in self.uniforms(kernel).items() if is_integer(v)}


@dataclass(frozen=True)
class ProblemAtHand(Problem):
    """An open problem at some sizes: program and layouts are the open one's."""

    of_open: Problem = field(kw_only=True, compare=False)
    change: Substitution = field(kw_only=True, compare=False)

    @property
    def origin(self) -> Problem:
        return self.of_open

    def defines(self, kernel: Kernel | None = None) -> dict[str, int]:
        return self.of_open.defines(kernel)

    def generated(self, kernel: Kernel) -> Generated | None:
        return self.change(self.of_open.generated(kernel))

    def chosen_layouts(self, kernel: Kernel, split: Split | None = None) -> dict[str, Layout]:
        return self.of_open.chosen_layouts(kernel, split)

    def _uniforms(self, kernel: Kernel) -> dict[str, Uniform]:
        return self.change(self.of_open.uniforms(kernel))


@lru_cache(maxsize=1024)
def _problem(
    op: Operator,
    operands: tuple[tuple[str, TensorType], ...],
    given: tuple[tuple[str, str], ...],
    epilogue: Epilogue | None,
    rounded: bool,
) -> Problem:
    """See `Problem.of`: one problem for all that ask for it, so that it is looked into once."""
    names, types = epilogue.names if epilogue else (), dict(operands)
    asked = {name: one for name, one in operands if name not in names}
    op.check_operands(asked)
    own = {name: asked[name] for name in op.names(len(asked)) if name in asked}  # in their order
    results = results_of(op, own, rounded)
    extra = {name: types[name] for name in names if name in types}
    if epilogue:
        epilogue.check(op.name, {n: one.shape for n, one in extra.items()}, results[0].shape)
    return Problem(op, tuple({**own, **extra}.items()), results, given, epilogue)


@lru_cache(maxsize=1024)
def _generated(
    problem: Problem, generator: str, backend: str, wanted: tuple[tuple[str, ...], ...]
) -> Generated:
    """What the generator so called makes of `problem`. wanted: the layouts of each of its types."""
    layouts = {
        name: problem.lies.taken(name, texts)
        for name, texts in zip(problem.types, wanted, strict=True)
    }
    return GENERATORS[generator].make(problem.op, problem.types, layouts, backend)

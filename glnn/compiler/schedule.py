"""Schedule: the entries of a plan in order, each with its kernel and its tensors' layouts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

from glnn.backends.backend import Backend, Choice
from glnn.backends.cpu import NumpyKernel
from glnn.backends.gl import GlBackend
from glnn.compiler.fusion_cost_model import device_reorders, stays_fused
from glnn.compiler.scheduled_op import (
    KernelChoice,
    LoweredOp,
    ScheduledOp,
    Tensor,
    can_reorder,
    reorder,
    unpacked,
)
from glnn.compiler.weights import Weight
from glnn.core.layout import Layout, Morton, parse
from glnn.core.layout.bytes import PACKED_ROWS, PackedTiles
from glnn.core.layout.layout import (
    CHANNELS_LAST,
    DENSE,
    PACKED,
    PADDED,
    ROW_ALIGNMENT,
    Blocked,
    RowMajor,
)
from glnn.core.symint import Substitution, divides, hint, same
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.compose.decompositions import Decomposition, DerivedParameter
from glnn.graph.expression import Arg
from glnn.graph.graph import Value
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Operator
from glnn.graph.operators import Identity, Reshape, Transpose
from glnn.graph.operators.move import Move
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reorder import Reorder, packing, repadding, unpacking
from glnn.graph.passes.move_merging import MoveChain
from glnn.kernels import kernels_for
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import names_of
from glnn.validation.examination import are_right, examine_choices

COLUMNS = parse("C")


class Schedule:
    """Operators in the order in which they run, with the reorders between kernels that disagree.

    kernels: the kernel to take for an op, by the op's name; others are chosen. instead: what to
    take in the place of what would be chosen, by the tensor of the result. reserved: names that
    copies must not have. rows: how results of pointwise work are to lie, in rows, of which that is
    not left open. moved_to_host: the results of operators that the host computes though there are
    kernels. hosts: memories that are the host's alone. decisions: what was chosen, the stages of a
    kernel before the op that it computes. ops: the names of all ops that it has, also in stages.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
        instead: Mapping[str, Choice] | None = None,
        rows: Mapping[str, RowMajor] | None = None,
        moved_to_host: Container[str] = (),
    ) -> None:
        self.backend = backend
        self.tensors: dict[str, Tensor] = {}
        self._reserved = set(reserved)
        self._rows = rows or {}
        self._copies: dict[tuple[str, Layout], str] = {}
        self._padded: dict[str, Layout] = {}  # memories of what is copied to such rows, or was to
        self._moved_from: dict[str, tuple[str, Operator]] = {}  # what views and moves are made of
        self._waiting: dict[str, Callable[[], None]] = {}  # moves by the memories that they make
        self.entries: list[ScheduledOp] = []
        self.decisions: list[KernelChoice] = []
        self.ops: set[str] = set()
        self._kernels = dict(kernels or {})
        self._instead = instead or {}
        self._inputs: set[str] = set()
        self._moved_to_host = moved_to_host
        self.hosts: frozenset[str] = frozenset()

    def examine(self) -> bool:
        """Compare its kernels with NumPy; return True where some are wrong, to be made anew."""
        pairs = ((entry.choice, entry.spec) for entry in self.hinted.entries if not entry.host)
        return isinstance(self.backend, GlBackend) and examine_choices(self.backend, pairs)

    def right(self, change: Substitution) -> bool:
        """Return True where its kernels are right here for the sizes that `change` puts in."""
        pairs = ((one.choice, one.spec.at(change)) for one in self.entries if not one.host)
        return not isinstance(self.backend, GlBackend) or are_right(self.backend, pairs)

    @property
    def measures(self) -> Sequence[Any]:
        """Return the sizes of the launches; see `Backend.measures`."""
        each = (self.backend.measures(e.choice, e.spec) for e in self.entries if not e.host)
        return list(chain.from_iterable(each))

    @property
    def hinted(self) -> Schedule:
        """The same of the sizes at hand, which differs where some are SymInts."""
        change = Substitution(hint)
        tensors = {name: change(tensor) for name, tensor in self.tensors.items()}
        if all(tensors[name] is tensor for name, tensor in self.tensors.items()):
            return self
        result = copy(self)
        result.tensors = tensors
        result.entries = [
            replace(
                one,
                lowered=change(one.lowered),
                spec=one.spec.at_hand,
                layouts=change(one.layouts),
            )
            for one in self.entries
        ]
        return result

    def _layer(self, name: str) -> str:
        """The layer whose step has made the tensor `name`; that name where none has."""
        made = self.tensors[name].memory
        ops = (entry.lowered for entry in reversed(self.entries))
        return next((lowered.layer for lowered in ops if lowered.output == made), name)

    def copy_of(self, name: str) -> str:
        """The name of a copy of the tensor `name`, which is row major, in memory of its own."""
        return self._written(name, {"x0": name}, {})

    def weight_tensor(self, name: str, weight: Weight) -> str:
        """The name of a tensor that holds what `weight` does, which is called `name`."""
        return self._written(name, {}, {"x0": weight})

    def _written(self, name: str, operands: dict[str, str], parameters: dict[str, Weight]) -> str:
        copy = self.free(f"{name}: copy")
        self.add(LoweredOp(name, Pointwise(Arg(0)), operands, parameters, copy, name))
        return copy

    def arrange(self, order: Sequence[int]) -> None:
        """Have only those entries that `order` names by their numbers, in that order."""
        place = {number: at for at, number in enumerate(order)}
        self.entries = [self.entries[number] for number in order]
        for i, decision in enumerate(self.decisions):
            numbers = [place[number] for number in decision.entries if number in place]
            entries = range(min(numbers), max(numbers) + 1) if numbers else range(0)
            self.decisions[i] = replace(decision, entries=entries)

    def replace(self, others: Mapping[int, Sequence[ScheduledOp]]) -> None:
        """Have `others` in the place of the entries that they are given for by their numbers."""
        ends, entries = [0], list[ScheduledOp]()
        for number, entry in enumerate(self.entries):
            entries += others.get(number, (entry,))
            ends.append(len(entries))
        self.entries = entries
        for i, decision in enumerate(self.decisions):
            before = decision.entries
            first, last = ends[before.start], ends[before.stop]
            if (first, last) != (before.start, before.stop):
                self.decisions[i] = replace(decision, entries=range(first, last))

    def add_input(
        self, name: str, type: TensorType, layout: str = "R", *, fed: bool = True
    ) -> None:
        """A tensor that is there before the first operator. fed: whether it comes from the host."""
        self.tensors[name] = Tensor(type, parse(layout).at(type.shape), name)
        if fed:
            self._inputs.add(name)

    def copy(self) -> Schedule:
        """Return a schedule of the same entries and tensors that changes by itself."""
        result = copy(self)
        result.tensors, result._copies = dict(self.tensors), dict(self._copies)
        result.entries, result.decisions = list(self.entries), list(self.decisions)
        result.ops = set(self.ops)
        return result

    @property
    def padded(self) -> dict[str, Layout]:
        """The inputs that are given rows of whole vec4 or texels, as they have none, and which."""
        return {name: layout for name, layout in self._padded.items() if name in self._inputs}

    def add(self, lowered: LoweredOp) -> None:
        """Append `lowered`, in stages if its kernel has some, and before it the reorders it needs.

        What no kernel does at once is taken apart; what has no kernel here at all the host does.
        Raises UnsupportedOpError or LimitError where the backend cannot compute it.
        """
        self.ops.add(lowered.op.name)
        if lowered.spec:
            self._add_host(lowered, lowered.spec)
            return
        if lowered.parameters and not lowered.operands:
            self._add_host(lowered, self._op_spec(lowered))  # see Graph.fixed
            return
        if lowered.op.view:
            self._view(lowered)
            return
        if self._transposed_view(lowered):
            return
        lowered = self._with_vectors(lowered)
        spec = self._op_spec(lowered)
        if 0 in spec.result_shape and not lowered.more:
            self.tensors[lowered.output] = Tensor(spec.results[0], DENSE, lowered.output)
            return
        if lowered.more or lowered.output in self._moved_to_host:
            self._add_host(lowered, spec, moved_to_host=not lowered.more)
            return
        forced = self._forced(lowered, spec)
        try:
            choice = self._substitute(lowered) or self.backend.choose(spec, forced)
        except (UnsupportedOpError, LimitError):
            if lowered.unfused:
                self._add_all(lowered.unfused())
            elif forced is None and not self._has_kernels(spec):
                self._add_host(lowered, spec)
            else:
                raise
            return
        if lowered.unfused and not self._stays_fused(lowered, choice, spec):
            self._add_all(lowered.unfused())
        elif isinstance(lowered.op, Move) and isinstance(choice, Kernel) and forced is None:
            self._wait(lowered, choice, spec)
        else:
            self._make(lowered, choice, spec, forced)

    def _stays_fused(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> bool:
        """Return True where the fused `lowered` is to be one step, computed by `choice`."""
        if self._reorders(lowered, choice, spec):
            return False
        return stays_fused(self.backend, self._kernels, spec, choice)

    def _add_all(self, ops: Iterable[LoweredOp]) -> None:
        for lowered in ops:
            self.add(lowered)

    def _wait(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> None:
        """Move once somebody wants what comes of it as it lies."""
        layouts = self.backend.layouts(choice, spec)
        self.tensors[lowered.output] = Tensor(spec.results[0], layouts["out"], lowered.output)
        self._moved_from[lowered.output] = lowered.operands["x"], lowered.op

        def moved() -> None:
            seen = self.tensors[lowered.output]  # maybe in another shape and layout: see `_packed`
            self._make(lowered, choice, spec, None)
            self.tensors[lowered.output] = seen

        self._waiting[lowered.output] = moved

    def _make(self, lowered: LoweredOp, choice: Choice, spec: OpSpec, forced: str | None) -> None:
        """Append what computes `lowered` by `choice`."""
        first = len(self.entries)
        if isinstance(choice, Kernel) and choice.stages:
            self._add_stages(lowered, choice, spec.lowered(choice))
        else:
            self._add_whole(lowered, choice, spec)
        if forced is None:
            entries = range(first, len(self.entries))
            self.decisions.append(KernelChoice(lowered, spec, choice, entries))

    @property
    def specs(self) -> list[OpSpec]:
        """Return the specs that kernels were chosen for, a kernel's stages before the op they
        compute.
        """
        return [decision.spec for decision in self.decisions]

    def _substitute(self, lowered: LoweredOp) -> Choice | None:
        """Return the choice that overrides the backend's for `lowered`, None for stages and without
        one.
        """
        return self._instead.get(lowered.output) if lowered.via is None else None

    def _view(self, lowered: LoweredOp) -> None:
        """The result of `lowered` is the memory of its operand, where that lies as it is to."""
        operand = self.tensors[lowered.operands["x"]]
        (type,) = lowered.op.results({"x": operand.type})
        layout = operand.layout
        wants, gives = map(parse, self.backend.view_layouts(lowered.op, layout.unpacked.name))
        alike = isinstance(layout, RowMajor) and same(
            layout.rows(operand.shape), layout.rows(type.shape)
        )
        if (alike or layout == PACKED) and wants == gives == DENSE:
            wants = gives = layout  # the same rows, padded or not
        self._moved_from[lowered.output] = lowered.operands["x"], lowered.op
        source = self.tensors[self._layouts_of(lowered.operands["x"], wants, lowered)]
        type = TensorType(type.dims, source.type.dtype)
        self.tensors[lowered.output] = Tensor(type, gives.at(type.shape), source.memory)

    def _add_whole(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> None:
        layouts = self.backend.layouts(choice, spec)
        operands = {k: self._in_layout(v, layouts[k], lowered) for k, v in lowered.operands.items()}
        # No draw may capture to what it reads; on the host a new array takes the old one's place.
        replaces = self.backend.in_place or self.backend.device is None
        updated = operands.get(lowered.op.updates or "") if replaces else None
        memory = self.tensors[updated].memory if updated else lowered.output
        self.tensors[lowered.output] = Tensor(spec.results[0], layouts["out"], memory)
        lowered = replace(lowered, operands=operands)
        known = (*operands, "out") if "out" in spec.layouts else operands
        layouts_of = spec.with_layouts({name: layouts[name].name for name in known})
        self.entries.append(ScheduledOp(lowered, choice, layouts_of, layouts))

    def _add_host(self, lowered: LoweredOp, spec: OpSpec, moved_to_host: bool = False) -> None:
        """`lowered` by NumPy, between transfers where others are not the host's."""
        layouts: dict[str, Layout] = dict.fromkeys((*spec.shapes, "out"), DENSE)
        for name, tensor in lowered.operands.items():
            layout = self.tensors[tensor].layout
            taken = (
                isinstance(layout, RowMajor) and not lowered.op.control
            )  # which copies as it lies
            layouts[name] = layout if taken else DENSE
        operands = {k: self._in_layout(v, layouts[k], lowered) for k, v in lowered.operands.items()}
        for name, type in zip((lowered.output, *lowered.more), spec.results, strict=True):
            self.tensors[name] = Tensor(type, DENSE, name)
        lowered = replace(lowered, operands=operands)
        choice = NumpyKernel("host") if lowered.op.control else NumpyKernel()
        self.entries.append(
            ScheduledOp(lowered, choice, spec, layouts, host=True, moved_to_host=moved_to_host)
        )

    def _by_host(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """The name of a copy of `name` in `layout`, where the host makes that."""
        self._existing(name)
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PACKED_ROWS else {}
        copy, op = self.free(f"{name} as {layout.name}"), Identity()
        self.tensors[copy] = Tensor(tensor.type, layout, copy)
        moved = LoweredOp(label, op, {"x": name}, {}, copy, lowered.layer, via=lowered.via)
        spec = OpSpec.create(op, {"x": tensor.type}, {"x": tensor.layout.name})
        layouts = {"x": tensor.layout, "out": layout}
        self.entries.append(ScheduledOp(moved, NumpyKernel(), spec, layouts, host=True))
        return copy

    def _forced(self, lowered: LoweredOp, spec: OpSpec) -> str | None:
        """The kernel that `lowered` must take: of several that were asked for, the first that can.

        What was asked for an op binds a stage if it can.
        """
        asked = names_of(self._kernels.get(lowered.op.name, ""))
        if lowered.kernel or not asked:
            return lowered.kernel
        if len(asked) == 1 and lowered.via is None:
            return asked[0]
        known = {k.name for k in kernels_for(lowered.op.name, self.backend.name)}
        for kernel in asked:
            if kernel not in known or self._can(spec, kernel):
                return kernel  # one that is not known is refused, by name
        return None if lowered.via else asked[0]

    def _can(self, spec: OpSpec, kernel: str) -> bool:
        """Return True where `kernel` can compute `spec` with its operands reordered for it."""
        try:
            choice = self.backend.choose(spec, kernel)
        except (UnsupportedOpError, LimitError):
            return False
        outputs, layouts = self.backend.layouts(choice, spec), spec.layouts
        return all(
            can_reorder(self.backend, spec.types[name], parse(layout), outputs[name])
            for name, layout in layouts.items()
        )

    def _add_stages(self, lowered: LoweredOp, kernel: Kernel, decomposition: Decomposition) -> None:
        names = dict(lowered.operands)
        parameters = dict(lowered.parameters)
        for name, made in decomposition.derived.items():
            if made.source in lowered.parameters:
                parameters[name] = lowered.parameters[made.source].made(made)
                continue
            names[name] = self.free(f"{lowered.output}: {name}")
            label, reads = f"{lowered.name}: {name}", {"x": names[made.source]}
            self.add(
                LoweredOp(
                    label, made.operator, reads, {}, names[name], lowered.layer, via=kernel.name
                )
            )
        last = decomposition.stages[-1].name
        for stage in decomposition.stages:
            intermediate = self.free(f"{lowered.output}: {stage.name}")
            names[stage.name] = lowered.output if stage.name == last else intermediate
            epilogue = lowered.epilogue if stage.finishes else None
            reads = dict(stage.operands)
            if epilogue:
                reads |= {name: name for name in epilogue.names}
                reads |= self._see_operands(lowered, kernel, decomposition, names, parameters)
            self.add(
                LoweredOp(
                    f"{lowered.name}: {stage.name}",
                    stage.op,
                    {k: names[v] for k, v in reads.items() if v in names},
                    {k: parameters[v] for k, v in reads.items() if v in parameters},
                    names[stage.name],
                    lowered.layer,
                    stage.kernel,
                    kernel.name,
                    epilogue,
                )
            )

    def _see_operands(
        self,
        lowered: LoweredOp,
        kernel: Kernel,
        decomposition: Decomposition,
        names: dict[str, str],
        parameters: dict[str, Weight],
    ) -> dict[str, str]:
        """Add the views in which the stage that finishes sees operands of the epilogue, and return
        what these are called instead.

        names, parameters: the tensors and the weights by name, to which those are added.
        """
        view, epilogue = decomposition.epilogue_view, lowered.epilogue
        if view is None or epilogue is None:
            return {}
        seen = {k: f"{k}: {view.name}" for k, v in epilogue.named_extents.items() if v == "full"}
        for name, viewed in seen.items():
            if name in parameters:
                weight = parameters[name]
                (type,) = view.results({"x": weight.type})
                parameters[viewed] = weight.made(DerivedParameter(name, type.shape, view))
                continue
            names[viewed] = self.free(f"{lowered.output}: {viewed}")
            label, reads = f"{lowered.name}: {viewed}", {"x": names[name]}
            self.add(
                LoweredOp(label, view, reads, {}, names[viewed], lowered.layer, via=kernel.name)
            )
        return seen

    def _with_vectors(self, lowered: LoweredOp) -> LoweredOp:
        """`lowered` with operands of its epilogue that are a number for each channel, or one in
        all, seen as vectors, whatever shape they were spread from.
        """
        extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
        spread = {k: v for k, v in lowered.operands.items() if extents.get(k) in ("channel", "one")}
        seen = {k: self._as_vector(v, lowered) for k, v in spread.items()}
        return replace(lowered, operands={**lowered.operands, **seen}) if seen else lowered

    def _op_spec(self, lowered: LoweredOp) -> OpSpec:
        tensors = unpacked(lowered.op, {k: self.tensors[v] for k, v in lowered.operands.items()})
        types = {name: tensor.type for name, tensor in tensors.items()}
        types |= {name: weight.type for name, weight in lowered.parameters.items()}
        extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
        one = {name for name, extent in extents.items() if extent != "full"}
        layouts = {name: tensor.layout.name for name, tensor in tensors.items() if name not in one}
        if isinstance(lowered.op, Pointwise) and lowered.output in self._rows:
            layouts = {k: v if parse(v).in_rows else DENSE.name for k, v in layouts.items()}
            layouts["out"] = self._rows[lowered.output].name
        if isinstance(lowered.op, HandwrittenOperator):  # which take what is transposed as it lies
            computed = (name for name in lowered.operands if name in types and name not in extents)
            layouts |= {
                name: self.layouts_of(lowered.operands[name]).unpacked.name for name in computed
            }
        return OpSpec.create(lowered.op, types, layouts, lowered.epilogue)

    def _has_kernels(self, spec: OpSpec) -> bool:
        """Return True where a kernel exists for the operator on operands of these types."""
        if self.backend.device is None:
            return True
        for kernel in kernels_for(spec.op.name, self.backend.name):
            if kernel.document:
                continue  # never chosen but by name
            try:
                spec.generated(kernel)
                return True
            except UnsupportedOpError:
                continue
        return False

    def _reorders(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> bool:
        """Return True where `choice` needs the epilogue's operands and its result reordered."""
        outputs = self._rows.get(lowered.output)
        if outputs is None or "full" not in spec.extents.values():
            return False
        layout = self.backend.layouts(choice, spec)["out"]
        return layout.at(spec.result_shape) != outputs.at(spec.result_shape)

    def finish(self, outputs: Iterable[str]) -> None:
        """Have the tensors `outputs` be there, and leave out what nobody came to want."""
        for name in outputs:
            if name in self.tensors:
                self._existing(name)
        gone = self._waiting.keys()
        self.tensors = {k: v for k, v in self.tensors.items() if v.memory not in gone}

    def _existing(self, name: str) -> None:
        """Have the tensor `name` be there, which may have to be moved yet."""
        if (waiting := self._waiting.pop(self.tensors[name].memory, None)) is not None:
            waiting()

    def in_rows(self, name: str) -> str:
        """The name of the tensor `name` in row major: itself, or a reordered copy."""
        layer = self._layer(name)
        return self._in_layout(name, DENSE, LoweredOp(layer, Identity(), {}, {}, name, layer))

    def for_host(self, outputs: Iterable[Value], always: bool, gains: bool) -> dict[str, str]:
        """By the names of `outputs`, the tensors that the host takes them from: themselves, or
        copies in row major, `always`, or if that `gains` where a launch is sooner than NumPy.
        """
        tensors, result = self.tensors, {value.name: value.name for value in outputs}
        for name in result:
            if always or (gains and device_reorders(self.backend, tensors[name])):
                result[name] = self.in_rows(name)
        return result

    def _transposed_view(self, lowered: LoweredOp) -> bool:
        """Return True where a transpose is only a view, channels last seen as rows or rows as
        channels last, and add its result to the tensors.
        """
        op = lowered.op
        if not isinstance(op, Transpose) or self.backend.device is None:
            return False
        x = self.tensors[lowered.operands["x"]]
        rank = len(x.shape)
        order = tuple(axis % rank for axis in op.perm)
        (type,) = op.results({"x": x.type})
        if order == (0, 2, 3, 1) and x.layout == parse(CHANNELS_LAST) and divides(4, x.shape[1]):
            layout: Layout = DENSE
        elif order == (0, 3, 1, 2) and x.layout == DENSE and divides(4, x.shape[3]):
            layout = parse(CHANNELS_LAST)
        else:
            return False
        if type.dtype is not DType.float32 or not prod(type.shape):
            return False
        self.tensors[lowered.output] = Tensor(type, layout, x.memory)
        return True

    def _in_layout(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """The name of the tensor `name` in `layout`, which is there then: itself, or a reordered
        copy made once.
        """
        result = self._layouts_of(name, layout, lowered)
        self._existing(result)
        return result

    def _layouts_of(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """The same, which may have to be moved yet."""
        tensor = self.tensors[name]
        layout = layout.at(tensor.shape)
        if tensor.layout == layout or not prod(tensor.shape):
            return name
        if (name, layout) not in self._copies:
            there = name if tensor.layout.seen_as(layout, tensor.shape) else None
            if there is None and layout == COLUMNS:
                there = self._transposed_rows(name)
            if there is None:
                copy = self._copied(name, layout, lowered)
            else:
                copy = self._seen(name, layout, there)
            self._copies[name, layout] = copy
        return self._copies[name, layout]

    def layouts_of(self, name: str) -> Layout:
        """The layout in which a tensor is there, or in which it can be had where it is not yet."""
        return COLUMNS if self._transposed_rows(name) is not None else self.tensors[name].layout

    def _transposed_rows(self, name: str) -> str | None:
        """Return the name of the tensor whose transpose `name` is, while `name` is not computed
        yet.

        None where nothing has.
        """
        tensor = self.tensors[name]
        if tensor.memory not in self._waiting or len(tensor.shape) not in (2, 3):
            return None
        if tensor.type.dtype is not DType.float32:
            return None
        *stack, n, k = tensor.shape
        swapped = Transpose((*range(len(stack)), len(stack) + 1, len(stack)))
        for source, ops in self._made_from(name):
            rows = self.tensors[source]
            padded = rows.layout == PADDED and same(rows.shape, (k, n))
            if not padded and rows.layout != DENSE:
                continue
            whole = padded or (same(k, 1) and not stack) or divides(ROW_ALIGNMENT, n)
            if whole and _reshaped(_moved(rows.shape, (*ops, swapped)), (*stack, k, n)):
                return source
        return None

    def _made_from(self, name: str) -> Iterator[tuple[str, tuple[Operator, ...]]]:
        """Yield the tensors that `name` is a view or move of, the last first, with the operators
        between.
        """
        ops: tuple[Operator, ...] = ()
        while name in self._moved_from:
            name, op = self._moved_from[name]
            ops = (op, *ops)
            yield name, ops

    def _seen(self, name: str, layout: Layout, existing: str) -> str:
        """The name of `name` in a layout in which it is the memory of the tensor `existing`."""
        seen = self.free(f"{name} as {layout.name}")
        self.tensors[seen] = Tensor(self.tensors[name].type, layout, self.tensors[existing].memory)
        return seen

    def _as_vector(self, name: str, lowered: LoweredOp) -> str:
        """The name of the tensor `name`, row major, as one of a single dimension."""
        return self.flat_view(self._in_layout(name, DENSE, lowered))

    def flat_view(self, source: str) -> str:
        """The name of the tensor `source`, which is row major, as one of a single dimension."""
        tensor = self.tensors[source]
        if len(tensor.shape) == 1:
            return source
        seen = self.free(f"{source} as a vector")
        type = TensorType((prod(tensor.shape),), tensor.type.dtype)
        self.tensors[seen] = Tensor(type, DENSE, tensor.memory, tensor.offset)
        return seen

    def _copied(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """The name of a new copy of `name` in another layout."""
        tensor = self.tensors[name]
        if layout in (PACKED, PACKED_ROWS) or isinstance(tensor.layout, PackedTiles):
            return self._by_host(name, layout, lowered)
        if tensor.layout in (PACKED, PACKED_ROWS):
            return self._unpacked(name, layout, lowered)
        if isinstance(layout, RowMajor) and isinstance(tensor.layout, RowMajor):
            return self._repadded(name, tensor.layout, layout, lowered)
        floats = tensor.type.dtype is DType.float32
        if not floats or self.backend.why_not(reorder(tensor.type, tensor.layout, layout)):
            if isinstance(layout, Morton | Blocked):
                return self._packed(name, layout, lowered)
            if isinstance(tensor.layout, Morton | Blocked):
                return self._spread(name, tensor.layout, layout, lowered)
        op = Reorder(tensor.layout.name, layout.name)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(LoweredOp(label, op, {"x": name}, {}, copy, lowered.layer, via=lowered.via))
        return copy

    def _unpacked(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """The name of a copy of `name`, which is packed, each number of which takes a word."""
        if layout != DENSE:
            self._padded |= {self.tensors[name].memory: layout} if layout == PADDED else {}
            return self._in_layout(self._in_layout(name, DENSE, lowered), layout, lowered)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(
            LoweredOp(
                label, Pointwise(Arg(0)), {"x0": name}, {}, copy, lowered.layer, via=lowered.via
            )
        )
        return copy

    def _repadded(
        self, name: str, source_layout: RowMajor, layout: RowMajor, lowered: LoweredOp
    ) -> str:
        """Return the name of a copy of `name`, with rows padded as in `layout`.

        source_layout: that of `name`.
        """
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PADDED else {}
        source, copy = self.free(f"{name} by rows"), self.free(f"{name} as {layout.name}")
        matrix, op = repadding(tensor.shape, source_layout, layout)
        self.tensors[source] = Tensor(TensorType(matrix, tensor.type.dtype), DENSE, tensor.memory)
        self.add(LoweredOp(label, op, {"x": source}, {}, copy, lowered.layer, via=lowered.via))
        self.tensors[copy] = Tensor(tensor.type, layout, self.tensors[copy].memory)
        return copy

    def _packed(self, name: str, layout: Morton | Blocked, lowered: LoweredOp) -> str:
        """The name of a copy of `name` in `layout` where no kernel makes one at once: by moves."""
        tensor, ops = self.tensors[name], packing(self.tensors[name].shape, layout)
        if isinstance(lowered.op, Move):  # by moves that may ask for the same: it would not end
            why: str | None = f"it is {tensor.type}"
            if tensor.type.dtype is DType.float32:
                why = self.backend.why_not(reorder(tensor.type, tensor.layout, layout))
            raise UnsupportedOpError(f"{lowered.name!r} needs {name!r} in {layout.name}: {why}")
        if (made := self._from_before(name, ops, layout, lowered)) is None:
            source = self._in_layout(name, DENSE, lowered)
            made = self._moved(name, source, ops, layout, lowered)
        self.tensors[made] = Tensor(tensor.type, layout, self.tensors[made].memory)
        return made

    def _from_before(
        self, name: str, ops: tuple[Operator, ...], layout: Layout, lowered: LoweredOp
    ) -> str | None:
        """The name of what `ops` make of `name` in one move of what that was moved from."""
        origin: tuple[str, Operator] | None = None
        for source, behind in self._made_from(name):
            tensor = self.tensors[source]
            if not isinstance(tensor.layout, RowMajor) or tensor.layout == PACKED:
                continue
            operators = _moved(tensor.shape, (*behind, *ops))
            if len(operators) == 1:
                origin = source, operators[0]
        if origin is None:
            return None
        made = self.free(f"{name} as {layout.name}: move")
        label = f"{name} to {layout.name}"
        self.add(
            LoweredOp(label, origin[1], {"x": origin[0]}, {}, made, lowered.layer, via=lowered.via)
        )
        return made

    def _spread(
        self, name: str, source_layout: Morton | Blocked, layout: Layout, lowered: LoweredOp
    ) -> str:
        """The name of a copy of `name`, which lies in `source_layout`, in rows: by moves, too."""
        if layout != DENSE:
            return self._in_layout(self._in_layout(name, DENSE, lowered), layout, lowered)
        tensor, source = self.tensors[name], self.free(f"{name} as stored")
        shape, ops = unpacking(tensor.shape, source_layout)
        self.tensors[source] = Tensor(TensorType(shape, tensor.type.dtype), DENSE, tensor.memory)
        return self._moved(name, source, ops, layout, lowered)

    def _moved(
        self, name: str, made: str, ops: Iterable[Operator], layout: Layout, lowered: LoweredOp
    ) -> str:
        """The name of what `ops`, one after another, make of `made`, to have `name` in `layout`."""
        for op in ops:
            label, source = f"{name} to {layout.name}: {op.name}", made
            made = self.free(f"{name} as {layout.name}: {op.name}")
            self.add(LoweredOp(label, op, {"x": source}, {}, made, lowered.layer, via=lowered.via))
        return made

    def free(self, name: str) -> str:
        """`name`, marked where somebody else's tensor is called so."""
        while name in self._reserved or name in self.tensors:
            name += "'"
        return name


def _moved(shape: Shape, ops: Iterable[Operator]) -> tuple[Operator, ...]:
    """Return operators that do at once what `ops` do with a tensor of `shape`, or () where none
    can.
    """
    chain: MoveChain | None = MoveChain.identity(shape) if 0 not in shape else None
    for op in ops:
        chain = None if chain is None else chain.then(op)
    return () if chain is None else chain.operators()


def _reshaped(ops: tuple[Operator, ...], shape: Shape) -> bool:
    """Return True where `ops` only reshape a tensor to `shape`."""
    return len(ops) == 1 and isinstance(ops[0], Reshape) and same(ops[0].shape, shape)

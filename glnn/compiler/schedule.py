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
    """Operators in the order in which they run, with reorders between kernels whose layouts differ.

    kernels: the kernel to take for an op, by the op's name; others are chosen. overrides: kernels
    to take in place of the chosen ones, by the tensor of the result. reserved: names that copies
    must not have. rows: required layouts of results of pointwise work, by tensor. moved_to_host:
    the results of operators that the host computes though there are kernels.

    host_memories: memories that only the host uses. decisions: the kernels that were chosen, the
    stages of a kernel before the op that it computes. ops: the names of all ops, also in stages.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
        overrides: Mapping[str, Choice] | None = None,
        rows: Mapping[str, RowMajor] | None = None,
        moved_to_host: Container[str] = (),
    ) -> None:
        self.backend = backend
        self.tensors: dict[str, Tensor] = {}
        self._reserved = set(reserved)
        self._rows = rows or {}
        self._copies: dict[tuple[str, Layout], str] = {}
        self._padded: dict[str, Layout] = {}
        """The padded layout that a kernel wants for each memory."""
        self._moved_from: dict[str, tuple[str, Operator]] = {}
        """The operand and operator of each tensor that is a view or move."""
        self._deferred: dict[str, Callable[[], None]] = {}
        """By the memory of its result, what appends a move that nothing has read yet."""
        self.entries: list[ScheduledOp] = []
        self.decisions: list[KernelChoice] = []
        self.ops: set[str] = set()
        self._kernels = dict(kernels or {})
        self._overrides = overrides or {}
        self._inputs: set[str] = set()
        self._moved_to_host = moved_to_host
        self.host_memories: frozenset[str] = frozenset()

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
                spec=one.spec.at_hints,
                layouts=change(one.layouts),
            )
            for one in self.entries
        ]
        return result

    def _layer(self, name: str) -> str:
        """Return the layer of the step that makes the tensor `name`; `name` where none does."""
        memory = self.tensors[name].memory
        ops = (entry.lowered for entry in reversed(self.entries))
        return next((lowered.layer for lowered in ops if lowered.output == memory), name)

    def copy_of(self, name: str) -> str:
        """Copy the row-major tensor `name` to memory of its own, and return the copy's name."""
        return self._copy(name, {"x0": name}, {})

    def weight_tensor(self, name: str, weight: Weight) -> str:
        """Copy `weight`, called `name`, to a tensor, and return the tensor's name."""
        return self._copy(name, {}, {"x0": weight})

    def _copy(self, name: str, operands: dict[str, str], parameters: dict[str, Weight]) -> str:
        copy = self.free(f"{name}: copy")
        self.add(LoweredOp(name, Pointwise(Arg(0)), operands, parameters, copy, name))
        return copy

    def arrange(self, order: Sequence[int]) -> None:
        """Reorder the entries as `order` has their numbers; entries that it lacks are dropped."""
        place = {number: position for position, number in enumerate(order)}
        self.entries = [self.entries[number] for number in order]
        for i, decision in enumerate(self.decisions):
            numbers = [place[number] for number in decision.entries if number in place]
            entries = range(min(numbers), max(numbers) + 1) if numbers else range(0)
            self.decisions[i] = replace(decision, entries=entries)

    def replace(self, others: Mapping[int, Sequence[ScheduledOp]]) -> None:
        """Replace entries by `others`, which are by the entries' numbers."""
        ends, entries = [0], list[ScheduledOp]()
        for number, entry in enumerate(self.entries):
            entries += others.get(number, (entry,))
            ends.append(len(entries))
        self.entries = entries
        for i, decision in enumerate(self.decisions):
            old = decision.entries
            new = range(ends[old.start], ends[old.stop])
            if (new.start, new.stop) != (old.start, old.stop):
                self.decisions[i] = replace(decision, entries=new)

    def add_input(
        self, name: str, type: TensorType, layout: str = "R", *, fed: bool = True
    ) -> None:
        """Add a tensor that exists before the first step. fed: True where the host writes it."""
        self.tensors[name] = Tensor(type, parse(layout).simplify(type.shape), name)
        if fed:
            self._inputs.add(name)

    def copy(self) -> Schedule:
        """Return a schedule of the same entries and tensors that can be changed independently."""
        result = copy(self)
        result.tensors, result._copies = dict(self.tensors), dict(self._copies)
        result.entries, result.decisions = list(self.entries), list(self.decisions)
        result.ops = set(self.ops)
        return result

    @property
    def padded(self) -> dict[str, Layout]:
        """The inputs that kernels want in padded rows, of whole vec4 or texels, with the layout."""
        return {name: layout for name, layout in self._padded.items() if name in self._inputs}

    def add(self, lowered: LoweredOp) -> None:
        """Append `lowered`, in stages if its kernel has some, after the reorders that it needs.

        A fused operator that no kernel computes is unfused; an operator without any kernel here is
        the host's. Raises UnsupportedOpError or LimitError where the backend cannot compute it.
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
        if 0 in spec.result_shape and not lowered.other_outputs:
            self.tensors[lowered.output] = Tensor(spec.results[0], DENSE, lowered.output)
            return
        if lowered.other_outputs or lowered.output in self._moved_to_host:
            self._add_host(lowered, spec, moved_to_host=not lowered.other_outputs)
            return
        forced = self._forced(lowered, spec)
        try:
            choice = self._override(lowered) or self.backend.choose(spec, forced)
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
            self._defer(lowered, choice, spec)
        else:
            self._append(lowered, choice, spec, forced)

    def _stays_fused(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> bool:
        """Return True where the fused `lowered` is to be one step, computed by `choice`."""
        if self._reorders(lowered, choice, spec):
            return False
        return stays_fused(self.backend, self._kernels, spec, choice)

    def _add_all(self, ops: Iterable[LoweredOp]) -> None:
        for lowered in ops:
            self.add(lowered)

    def _defer(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> None:
        """Append the move `lowered` once something reads its result in its own layout."""
        layouts = self.backend.layouts(choice, spec)
        self.tensors[lowered.output] = Tensor(spec.results[0], layouts["out"], lowered.output)
        self._moved_from[lowered.output] = lowered.operands["x"], lowered.op

        def append() -> None:
            tensor = self.tensors[lowered.output]  # `_packed` may have changed shape and layout
            self._append(lowered, choice, spec, None)
            self.tensors[lowered.output] = tensor

        self._deferred[lowered.output] = append

    def _append(self, lowered: LoweredOp, choice: Choice, spec: OpSpec, forced: str | None) -> None:
        """Append the entries that compute `lowered` by `choice`. forced: see `_forced`."""
        first = len(self.entries)
        if isinstance(choice, Kernel) and choice.stages:
            self._add_stages(lowered, choice, spec.lowered(choice))
        else:
            self._add_entry(lowered, choice, spec)
        if forced is None:
            entries = range(first, len(self.entries))
            self.decisions.append(KernelChoice(lowered, spec, choice, entries))

    @property
    def specs(self) -> list[OpSpec]:
        """Return the specs that kernels were chosen for, a kernel's stages before the op they
        compute.
        """
        return [decision.spec for decision in self.decisions]

    def _override(self, lowered: LoweredOp) -> Choice | None:
        """Return the override for `lowered`; None for stages and where there is none."""
        return self._overrides.get(lowered.output) if lowered.stage_of is None else None

    def _view(self, lowered: LoweredOp) -> None:
        """Add the result of the view `lowered`: its operand's memory, reordered where need be."""
        operand = self.tensors[lowered.operands["x"]]
        (type,) = lowered.op.results({"x": operand.type})
        layout = operand.layout
        source_layout, result_layout = map(
            parse, self.backend.view_layouts(lowered.op, layout.unpacked.name)
        )
        same_rows = isinstance(layout, RowMajor) and same(
            layout.rows(operand.shape), layout.rows(type.shape)
        )
        if (same_rows or layout == PACKED) and source_layout == result_layout == DENSE:
            source_layout = result_layout = layout  # the same rows, padded or not
        self._moved_from[lowered.output] = lowered.operands["x"], lowered.op
        source = self.tensors[self._name_in_layout(lowered.operands["x"], source_layout, lowered)]
        type = TensorType(type.dims, source.type.dtype)
        self.tensors[lowered.output] = Tensor(
            type, result_layout.simplify(type.shape), source.memory
        )

    def _add_entry(self, lowered: LoweredOp, choice: Choice, spec: OpSpec) -> None:
        layouts = self.backend.layouts(choice, spec)
        operands = {k: self._in_layout(v, layouts[k], lowered) for k, v in lowered.operands.items()}
        # Transform feedback may not write what the draw reads; on the host a new array replaces
        # the old one.
        may_update = self.backend.in_place or self.backend.device is None
        updated = operands.get(lowered.op.updates or "") if may_update else None
        memory = self.tensors[updated].memory if updated else lowered.output
        self.tensors[lowered.output] = Tensor(spec.results[0], layouts["out"], memory)
        lowered = replace(lowered, operands=operands)
        named = (*operands, "out") if "out" in spec.layouts else operands
        spec = spec.with_layouts({name: layouts[name].name for name in named})
        self.entries.append(ScheduledOp(lowered, choice, spec, layouts))

    def _add_host(self, lowered: LoweredOp, spec: OpSpec, moved_to_host: bool = False) -> None:
        """Append `lowered`, computed by NumPy, or by the host as control flow."""
        layouts: dict[str, Layout] = dict.fromkeys((*spec.shapes, "out"), DENSE)
        for name, tensor in lowered.operands.items():
            layout = self.tensors[tensor].layout
            # Control flow copies operands on the device, without reading rows.
            readable = isinstance(layout, RowMajor) and not lowered.op.control
            layouts[name] = layout if readable else DENSE
        operands = {k: self._in_layout(v, layouts[k], lowered) for k, v in lowered.operands.items()}
        for name, type in zip(lowered.results, spec.results, strict=True):
            self.tensors[name] = Tensor(type, DENSE, name)
        lowered = replace(lowered, operands=operands)
        choice = NumpyKernel("host") if lowered.op.control else NumpyKernel()
        self.entries.append(
            ScheduledOp(lowered, choice, spec, layouts, host=True, moved_to_host=moved_to_host)
        )

    def _copied_by_host(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """Have the host copy `name` to `layout`, and return the copy's name."""
        self._ensure_computed(name)
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PACKED_ROWS else {}
        copy, op = self.free(f"{name} as {layout.name}"), Identity()
        self.tensors[copy] = Tensor(tensor.type, layout, copy)
        copy_op = LoweredOp(
            label, op, {"x": name}, {}, copy, lowered.layer, stage_of=lowered.stage_of
        )
        spec = OpSpec.create(op, {"x": tensor.type}, {"x": tensor.layout.name})
        layouts = {"x": tensor.layout, "out": layout}
        self.entries.append(ScheduledOp(copy_op, NumpyKernel(), spec, layouts, host=True))
        return copy

    def _forced(self, lowered: LoweredOp, spec: OpSpec) -> str | None:
        """Return the kernel that `lowered` must take, None to leave the choice open.

        Of several kernels requested for its op, that is the first that can compute it. A stage
        takes a kernel requested for its op only if that can compute it.
        """
        requested = names_of(self._kernels.get(lowered.op.name, ""))
        if lowered.kernel or not requested:
            return lowered.kernel
        if len(requested) == 1 and lowered.stage_of is None:
            return requested[0]
        existing = {k.name for k in kernels_for(lowered.op.name, self.backend.name)}
        for kernel in requested:
            if kernel not in existing or self._can_compute(spec, kernel):
                return kernel  # the choice refuses a kernel that does not exist, by name
        return None if lowered.stage_of else requested[0]

    def _can_compute(self, spec: OpSpec, kernel: str) -> bool:
        """Return True where `kernel` can compute `spec` with its operands reordered for it."""
        try:
            choice = self.backend.choose(spec, kernel)
        except (UnsupportedOpError, LimitError):
            return False
        wanted = self.backend.layouts(choice, spec)
        return all(
            can_reorder(self.backend, spec.types[name], parse(layout), wanted[name])
            for name, layout in spec.layouts.items()
        )

    def _add_stages(self, lowered: LoweredOp, kernel: Kernel, decomposition: Decomposition) -> None:
        """Append the stages of `kernel`, and the parameters derived for these that are computed."""
        names = dict(lowered.operands)
        parameters = dict(lowered.parameters)
        for name, derived in decomposition.derived.items():
            if derived.source in lowered.parameters:
                parameters[name] = lowered.parameters[derived.source].derive(derived)
                continue
            names[name] = self.free(f"{lowered.output}: {name}")
            label, reads = f"{lowered.name}: {name}", {"x": names[derived.source]}
            self.add(
                LoweredOp(
                    label,
                    derived.operator,
                    reads,
                    {},
                    names[name],
                    lowered.layer,
                    stage_of=kernel.name,
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
                reads |= self._view_operands(lowered, kernel, decomposition, names, parameters)
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

    def _view_operands(
        self,
        lowered: LoweredOp,
        kernel: Kernel,
        decomposition: Decomposition,
        names: dict[str, str],
        parameters: dict[str, Weight],
    ) -> dict[str, str]:
        """Add the views through which the last stage reads operands of the epilogue.

        Return the view's name by the operand's. names, parameters: the tensors and the weights by
        name, to which the views are added.
        """
        view, epilogue = decomposition.epilogue_view, lowered.epilogue
        if view is None or epilogue is None:
            return {}
        views = {k: f"{k}: {view.name}" for k, v in epilogue.named_extents.items() if v == "full"}
        for name, viewed in views.items():
            if name in parameters:
                weight = parameters[name]
                (type,) = view.results({"x": weight.type})
                parameters[viewed] = weight.derive(DerivedParameter(name, type.shape, view))
                continue
            names[viewed] = self.free(f"{lowered.output}: {viewed}")
            label, reads = f"{lowered.name}: {viewed}", {"x": names[name]}
            self.add(
                LoweredOp(
                    label, view, reads, {}, names[viewed], lowered.layer, stage_of=kernel.name
                )
            )
        return views

    def _with_vectors(self, lowered: LoweredOp) -> LoweredOp:
        """Return `lowered` with epilogue operands of one number per channel, or of a single number,
        viewed as vectors, whatever shape they were broadcast from.
        """
        extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
        broadcast = {
            k: v for k, v in lowered.operands.items() if extents.get(k) in ("channel", "one")
        }
        views = {k: self._as_vector(v, lowered) for k, v in broadcast.items()}
        return replace(lowered, operands={**lowered.operands, **views}) if views else lowered

    def _op_spec(self, lowered: LoweredOp) -> OpSpec:
        tensors = unpacked(lowered.op, {k: self.tensors[v] for k, v in lowered.operands.items()})
        types = {name: tensor.type for name, tensor in tensors.items()}
        types |= {name: weight.type for name, weight in lowered.parameters.items()}
        extents = {} if lowered.epilogue is None else lowered.epilogue.named_extents
        broadcast = {name for name, extent in extents.items() if extent != "full"}
        layouts = {k: tensor.layout.name for k, tensor in tensors.items() if k not in broadcast}
        if isinstance(lowered.op, Pointwise) and lowered.output in self._rows:
            layouts = {k: v if parse(v).in_rows else DENSE.name for k, v in layouts.items()}
            layouts["out"] = self._rows[lowered.output].name
        if isinstance(lowered.op, HandwrittenOperator):  # their kernels read transposed operands
            computed = (name for name in lowered.operands if name in types and name not in extents)
            layouts |= {
                k: self.available_layout(lowered.operands[k]).unpacked.name for k in computed
            }
        return OpSpec.create(lowered.op, types, layouts, lowered.epilogue)

    def _has_kernels(self, spec: OpSpec) -> bool:
        """Return True where a kernel exists for the operator on operands of these types."""
        if self.backend.device is None:
            return True
        for kernel in kernels_for(spec.op.name, self.backend.name):
            if kernel.document:
                continue  # chosen only by name
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
        return layout.simplify(spec.result_shape) != outputs.simplify(spec.result_shape)

    def finish(self, outputs: Iterable[str]) -> None:
        """Append the deferred moves that `outputs` need, and drop the other deferred ones."""
        for name in outputs:
            if name in self.tensors:
                self._ensure_computed(name)
        unused = self._deferred.keys()
        self.tensors = {k: v for k, v in self.tensors.items() if v.memory not in unused}

    def _ensure_computed(self, name: str) -> None:
        """Append the move that makes the tensor `name` if it was deferred."""
        if (append := self._deferred.pop(self.tensors[name].memory, None)) is not None:
            append()

    def in_rows(self, name: str) -> str:
        """Return the name of the tensor `name` in row major: itself, or a reordered copy."""
        layer = self._layer(name)
        return self._in_layout(name, DENSE, LoweredOp(layer, Identity(), {}, {}, name, layer))

    def for_host(self, outputs: Iterable[Value], always: bool, if_faster: bool) -> dict[str, str]:
        """Return by the names of `outputs` the tensors that the host reads them from.

        These are the outputs themselves, or copies in row major: of all outputs with `always`, with
        `if_faster` of those that a launch reorders faster than NumPy does.
        """
        tensors, result = self.tensors, {value.name: value.name for value in outputs}
        for name in result:
            if always or (if_faster and device_reorders(self.backend, tensors[name])):
                result[name] = self.in_rows(name)
        return result

    def _transposed_view(self, lowered: LoweredOp) -> bool:
        """Return True where a transpose is only a view, of channels last as rows or the other way
        round, and add its result to the tensors.
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
        """Return the name of the computed tensor `name` in `layout`: itself, or a reordered copy
        made once.
        """
        result = self._name_in_layout(name, layout, lowered)
        self._ensure_computed(result)
        return result

    def _name_in_layout(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """Return the same as `_in_layout`, of a tensor whose move may still be deferred."""
        tensor = self.tensors[name]
        layout = layout.simplify(tensor.shape)
        if tensor.layout == layout or not prod(tensor.shape):
            return name
        if (name, layout) not in self._copies:
            source = name if tensor.layout.is_same_memory(layout, tensor.shape) else None
            if source is None and layout == COLUMNS:
                source = self._transposed_rows(name)
            if source is None:
                copy = self._copied(name, layout, lowered)
            else:
                copy = self._aliased(name, layout, source)
            self._copies[name, layout] = copy
        return self._copies[name, layout]

    def available_layout(self, name: str) -> Layout:
        """Return the layout in which the tensor `name` can be read without a copy.

        Columns, where it is a deferred transpose of rows.
        """
        return COLUMNS if self._transposed_rows(name) is not None else self.tensors[name].layout

    def _transposed_rows(self, name: str) -> str | None:
        """Return the row-major tensor that `name` is a deferred transpose of; None where it is no
        such transpose.
        """
        tensor = self.tensors[name]
        if tensor.memory not in self._deferred or len(tensor.shape) not in (2, 3):
            return None
        if tensor.type.dtype is not DType.float32:
            return None
        *stack, n, k = tensor.shape
        swapped = Transpose((*range(len(stack)), len(stack) + 1, len(stack)))
        for source, ops in self._sources(name):
            rows = self.tensors[source]
            padded = rows.layout == PADDED and same(rows.shape, (k, n))
            if not padded and rows.layout != DENSE:
                continue
            aligned = padded or (same(k, 1) and not stack) or divides(ROW_ALIGNMENT, n)
            if aligned and _is_reshape(_merged(rows.shape, (*ops, swapped)), (*stack, k, n)):
                return source
        return None

    def _sources(self, name: str) -> Iterator[tuple[str, tuple[Operator, ...]]]:
        """Yield the tensors that `name` is a view or move of, the nearest first, each with the
        operators that make `name` of it.
        """
        ops: tuple[Operator, ...] = ()
        while name in self._moved_from:
            name, op = self._moved_from[name]
            ops = (op, *ops)
            yield name, ops

    def _aliased(self, name: str, layout: Layout, source: str) -> str:
        """Add `name` in `layout` as a view of the memory of `source`; return the view's name."""
        view = self.free(f"{name} as {layout.name}")
        self.tensors[view] = Tensor(self.tensors[name].type, layout, self.tensors[source].memory)
        return view

    def _as_vector(self, name: str, lowered: LoweredOp) -> str:
        """Return the name of a view of the tensor `name` as a vector, after a copy to row major
        where need be.
        """
        return self.flat_view(self._in_layout(name, DENSE, lowered))

    def flat_view(self, source: str) -> str:
        """Return the name of a view of the row-major tensor `source` as a vector."""
        tensor = self.tensors[source]
        if len(tensor.shape) == 1:
            return source
        view = self.free(f"{source} as a vector")
        type = TensorType((prod(tensor.shape),), tensor.type.dtype)
        self.tensors[view] = Tensor(type, DENSE, tensor.memory, tensor.offset)
        return view

    def _copied(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """Add a copy of `name` in another layout, and return its name."""
        tensor = self.tensors[name]
        if layout in (PACKED, PACKED_ROWS) or isinstance(tensor.layout, PackedTiles):
            return self._copied_by_host(name, layout, lowered)
        if tensor.layout in (PACKED, PACKED_ROWS):
            return self._unpacked(name, layout, lowered)
        if isinstance(layout, RowMajor) and isinstance(tensor.layout, RowMajor):
            return self._repadded(name, tensor.layout, layout, lowered)
        floats = tensor.type.dtype is DType.float32
        if not floats or self.backend.why_not(reorder(tensor.type, tensor.layout, layout)):
            if isinstance(layout, Morton | Blocked):
                return self._packed(name, layout, lowered)
            if isinstance(tensor.layout, Morton | Blocked):
                return self._unblocked(name, tensor.layout, layout, lowered)
        op = Reorder(tensor.layout.name, layout.name)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(
            LoweredOp(label, op, {"x": name}, {}, copy, lowered.layer, stage_of=lowered.stage_of)
        )
        return copy

    def _unpacked(self, name: str, layout: Layout, lowered: LoweredOp) -> str:
        """Add a copy of the packed tensor `name` with one number in a word; return its name."""
        if layout != DENSE:
            self._padded |= {self.tensors[name].memory: layout} if layout == PADDED else {}
            return self._in_layout(self._in_layout(name, DENSE, lowered), layout, lowered)
        label, copy = f"{name} to {layout.name}", self.free(f"{name} as {layout.name}")
        self.add(
            LoweredOp(
                label,
                Pointwise(Arg(0)),
                {"x0": name},
                {},
                copy,
                lowered.layer,
                stage_of=lowered.stage_of,
            )
        )
        return copy

    def _repadded(
        self, name: str, source_layout: RowMajor, layout: RowMajor, lowered: LoweredOp
    ) -> str:
        """Add a copy of `name` with rows padded as in `layout`; return its name."""
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PADDED else {}
        source, copy = self.free(f"{name} by rows"), self.free(f"{name} as {layout.name}")
        matrix, op = repadding(tensor.shape, source_layout, layout)
        self.tensors[source] = Tensor(TensorType(matrix, tensor.type.dtype), DENSE, tensor.memory)
        self.add(
            LoweredOp(label, op, {"x": source}, {}, copy, lowered.layer, stage_of=lowered.stage_of)
        )
        self.tensors[copy] = Tensor(tensor.type, layout, self.tensors[copy].memory)
        return copy

    def _packed(self, name: str, layout: Morton | Blocked, lowered: LoweredOp) -> str:
        """Add a copy of `name` in `layout`, made by moves as no kernel reorders to it; return its
        name.
        """
        tensor, ops = self.tensors[name], packing(self.tensors[name].shape, layout)
        if isinstance(lowered.op, Move):  # its moves may need the same copy, without end
            why: str | None = f"it is {tensor.type}"
            if tensor.type.dtype is DType.float32:
                why = self.backend.why_not(reorder(tensor.type, tensor.layout, layout))
            raise UnsupportedOpError(f"{lowered.name!r} needs {name!r} in {layout.name}: {why}")
        if (copy := self._moved_at_once(name, ops, layout, lowered)) is None:
            source = self._in_layout(name, DENSE, lowered)
            copy = self._moved(name, source, ops, layout, lowered)
        self.tensors[copy] = Tensor(tensor.type, layout, self.tensors[copy].memory)
        return copy

    def _moved_at_once(
        self, name: str, ops: tuple[Operator, ...], layout: Layout, lowered: LoweredOp
    ) -> str | None:
        """Apply `ops` to `name` by one move of a tensor that `name` itself is a move of.

        Return the result's name; None where there is no such move.
        """
        merged: tuple[str, Operator] | None = None
        for source, earlier in self._sources(name):
            tensor = self.tensors[source]
            if not isinstance(tensor.layout, RowMajor) or tensor.layout == PACKED:
                continue
            operators = _merged(tensor.shape, (*earlier, *ops))
            if len(operators) == 1:
                merged = source, operators[0]
        if merged is None:
            return None
        source, op = merged
        copy = self.free(f"{name} as {layout.name}: move")
        label = f"{name} to {layout.name}"
        self.add(
            LoweredOp(label, op, {"x": source}, {}, copy, lowered.layer, stage_of=lowered.stage_of)
        )
        return copy

    def _unblocked(
        self, name: str, source_layout: Morton | Blocked, layout: Layout, lowered: LoweredOp
    ) -> str:
        """Add a copy of `name`, which is blocked, in rows, made by moves; return its name."""
        if layout != DENSE:
            return self._in_layout(self._in_layout(name, DENSE, lowered), layout, lowered)
        tensor, source = self.tensors[name], self.free(f"{name} as stored")
        shape, ops = unpacking(tensor.shape, source_layout)
        self.tensors[source] = Tensor(TensorType(shape, tensor.type.dtype), DENSE, tensor.memory)
        return self._moved(name, source, ops, layout, lowered)

    def _moved(
        self, name: str, source: str, ops: Iterable[Operator], layout: Layout, lowered: LoweredOp
    ) -> str:
        """Apply `ops` to `source`, one after another, to have `name` in `layout`; return the
        result's name.
        """
        for op in ops:
            label = f"{name} to {layout.name}: {op.name}"
            result = self.free(f"{name} as {layout.name}: {op.name}")
            self.add(
                LoweredOp(
                    label, op, {"x": source}, {}, result, lowered.layer, stage_of=lowered.stage_of
                )
            )
            source = result
        return source

    def free(self, name: str) -> str:
        """Return `name`, with apostrophes where another tensor is called so."""
        while name in self._reserved or name in self.tensors:
            name += "'"
        return name


def _merged(shape: Shape, ops: Iterable[Operator]) -> tuple[Operator, ...]:
    """Return the fewest operators equivalent to `ops` on a tensor of `shape`; () where `ops` cannot
    be merged.
    """
    chain: MoveChain | None = MoveChain.identity(shape) if 0 not in shape else None
    for op in ops:
        chain = None if chain is None else chain.then(op)
    return () if chain is None else chain.operators()


def _is_reshape(ops: tuple[Operator, ...], shape: Shape) -> bool:
    """Return True where `ops` only reshape a tensor to `shape`."""
    return len(ops) == 1 and isinstance(ops[0], Reshape) and same(ops[0].shape, shape)

"""What a backend is to run: tasks with their kernels and layouts, before any memory is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from glnn.backends.backend import Backend, Choice
from glnn.backends.cpu import NumpyKernel
from glnn.compile.weights import Weight
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.decompose import Lowered
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.reorder import Reorder, packing
from glnn.kernels import kernels_for
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.layout import Layout, Morton, parse
from glnn.layout.layout import Blocked, RowMajor
from glnn.types import Shape, TensorType


@dataclass(frozen=True)
class Task:
    """An operator on tensors."""

    name: str
    """What people know it by."""
    op: Operator
    """What is computed."""
    operands: Mapping[str, str]
    """The tensor of each operand that is computed; those of the epilogue too."""
    parameters: Mapping[str, Weight]
    """The operands that no run changes."""
    output: str
    """The tensor of its first result."""
    layer: str
    """The layer it belongs to."""
    kernel: str | None = None
    """The kernel to take; None leaves the choice open."""
    via: str | None = None
    """The kernel whose stage it is."""
    epilogue: Epilogue | None = None
    """What is done to the first result."""
    more: tuple[str, ...] = ()
    """The tensors of its other results: only the host makes them."""
    apart: Callable[[], Iterable[Task]] | None = None
    """Gives tasks that compute the same, where no kernel does all of it."""


@dataclass(frozen=True)
class Entry:
    """A task with the kernel chosen for it."""

    task: Task
    choice: Choice
    problem: Problem
    """What the kernel is to compute."""
    layouts: Mapping[str, Layout]
    """Of each operand and of `out`."""
    host: bool = False
    """Whether the host computes it, though the backend's tensors are elsewhere."""

    @property
    def shapes(self) -> Shapes:
        """The shape of each operand."""
        return self.problem.shapes


@dataclass(frozen=True)
class Tensor:
    """A tensor: several share the memory called `memory` where an operator is only a view."""

    type: TensorType
    layout: Layout
    memory: str

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return self.type.shape


class Schedule:
    """Tasks in the order in which they run, with the reorders between kernels that disagree.

    kernels: the kernel to take for an op, by the op's name; others are chosen. reserved: names that
    tensors of its own must not have. problems: what was chosen for, the stages of a kernel before
    the op that it computes. ops: the names of all ops that it has, in stages or not.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
    ) -> None:
        self.backend = backend
        self._reserved = set(reserved)
        self._copies: dict[tuple[str, Layout], str] = {}
        self.entries: list[Entry] = []
        self.tensors: dict[str, Tensor] = {}
        self.problems: list[Problem] = []
        self.ops: set[str] = set()
        self._kernels = dict(kernels or {})

    def examine(self) -> bool:
        """See whether its kernels are right here; whether some are not, so that it is made anew."""
        return self.backend.examine(
            (entry.choice, entry.problem) for entry in self.entries if not entry.host
        )

    def add_input(self, name: str, type: TensorType, layout: str = "R") -> None:
        """A tensor that is there before the first task."""
        self.tensors[name] = Tensor(type, parse(layout), name)

    def add(self, task: Task) -> None:
        """Append `task`, in stages if its kernel has some, and before it the reorders it needs.

        What no kernel does at once is taken apart; what has no kernel here at all the host does.
        Raises UnsupportedOpError or LimitError where the backend cannot compute it.
        """
        self.ops.add(task.op.name)
        if task.op.view and self._view(task):
            return
        problem = self._problem(task)
        if 0 in problem.output and not task.more:
            self.tensors[task.output] = Tensor(problem.results[0], parse("R"), task.output)
            return
        if task.more:
            self._add_host(task, problem)
            return
        forced = self._forced(task, problem)
        try:
            choice = self.backend.choose(problem, forced)
        except (UnsupportedOpError, LimitError):
            if task.apart:
                for part in task.apart():
                    self.add(part)
            elif forced is None and not self._has_kernels(problem):
                self._add_host(task, problem)
            else:
                raise
            return
        if isinstance(choice, Kernel) and choice.stages:
            self._add_stages(task, choice, problem.lowered(choice))
        else:
            self._add_whole(task, choice, problem)
        if forced is None:
            self.problems.append(problem)

    def _problem(self, task: Task) -> Problem:
        types = {name: self.tensors[tensor].type for name, tensor in task.operands.items()}
        types |= {name: weight.type for name, weight in task.parameters.items()}
        extents = {} if task.epilogue is None else task.epilogue.named_extents
        one = {name for name, extent in extents.items() if extent != "full"}
        given = {
            name: self.tensors[tensor].layout.name
            for name, tensor in task.operands.items()
            if name not in one
        }
        return Problem.of(task.op, types, given, task.epilogue)

    def _has_kernels(self, problem: Problem) -> bool:
        """Whether there is a kernel for such an operator on operands of such types."""
        if self.backend.device is None:
            return True
        for kernel in kernels_for(problem.op.name, self.backend.name):
            if kernel.document:
                continue  # never chosen but by name
            try:
                problem.generated(kernel)
                return True
            except UnsupportedOpError:
                continue
        return False

    def _view(self, task: Task) -> bool:
        """Whether `task` moves nothing where its operand lies; its result is that memory then."""
        operand = self.tensors[task.operands["x"]]
        wants, gives = self.backend.view_layouts(task.op, operand.layout.name)
        (type,) = task.op.results({"x": operand.type})
        if not _same_memory(operand.shape, parse(wants), type.shape, parse(gives)):
            return False
        source = self._in_layout(task.operands["x"], parse(wants), task)
        self.tensors[task.output] = Tensor(type, parse(gives), self.tensors[source].memory)
        return True

    def _add_whole(self, task: Task, choice: Choice, problem: Problem) -> None:
        layouts = self.backend.layouts(choice, problem)
        operands = {k: self._in_layout(v, layouts[k], task) for k, v in task.operands.items()}
        updated = operands.get(task.op.updates or "")
        memory = self.tensors[updated].memory if updated else task.output
        self.tensors[task.output] = Tensor(problem.results[0], layouts["out"], memory)
        task = replace(task, operands=operands)
        lying = problem.lying({name: layouts[name].name for name in operands})
        self.entries.append(Entry(task, choice, lying, layouts))

    def _add_host(self, task: Task, problem: Problem) -> None:
        """`task` by NumPy, between transfers."""
        layouts = dict.fromkeys((*problem.shapes, "out"), parse("R"))
        operands = {k: self._in_layout(v, layouts[k], task) for k, v in task.operands.items()}
        for name, type in zip((task.output, *task.more), problem.results, strict=True):
            self.tensors[name] = Tensor(type, parse("R"), name)
        task = replace(task, operands=operands)
        self.entries.append(Entry(task, NumpyKernel(), problem, layouts, host=True))

    def _forced(self, task: Task, problem: Problem) -> str | None:
        """The kernel that `task` must take. What was asked for an op binds a stage if it can."""
        kernel = self._kernels.get(task.op.name)
        if task.kernel or not kernel or task.via is None:
            return task.kernel or kernel
        if kernel not in {k.name for k in kernels_for(task.op.name, self.backend.name)}:
            return kernel  # it is refused, by name
        return kernel if self._can(problem, kernel) else None

    def _can(self, problem: Problem, kernel: str) -> bool:
        """Whether `kernel` can compute `problem`, and the tensors given be reordered for it."""
        try:
            choice = self.backend.choose(problem, kernel)
        except (UnsupportedOpError, LimitError):
            return False
        wanted, given = self.backend.layouts(choice, problem), problem.layouts
        return all(
            self.backend.why_not(_reorder(problem.types[name], parse(lies), wanted[name])) is None
            for name, lies in given.items()
            if lies != wanted[name].name
        )

    def _add_stages(self, task: Task, kernel: Kernel, lowered: Lowered) -> None:
        names = dict(task.operands)
        parameters = dict(task.parameters)
        for name, made in lowered.derived.items():
            if made.source in task.parameters:
                parameters[name] = task.parameters[made.source].made(made)
                continue
            names[name] = self._free(f"{task.output}: {name}")
            label, reads = f"{task.name}: {name}", {"x": names[made.source]}
            self.add(
                Task(label, made.operator, reads, {}, names[name], task.layer, via=kernel.name)
            )
        last = lowered.stages[-1].name
        for stage in lowered.stages:
            own = self._free(f"{task.output}: {stage.name}")
            names[stage.name] = task.output if stage.name == last else own
            epilogue = task.epilogue if stage.finishes else None
            reads = dict(stage.operands)
            if epilogue:
                reads |= {name: name for name in epilogue.names}
            self.add(
                Task(
                    f"{task.name}: {stage.name}",
                    stage.op,
                    {k: names[v] for k, v in reads.items() if v in names},
                    {k: parameters[v] for k, v in reads.items() if v in parameters},
                    names[stage.name],
                    task.layer,
                    stage.kernel,
                    kernel.name,
                    epilogue,
                )
            )

    def _in_layout(self, name: str, layout: Layout, task: Task) -> str:
        """The name of the tensor `name` in `layout`: itself, or a reordered copy made once."""
        tensor = self.tensors[name]
        if tensor.layout == layout or not prod(tensor.shape):
            return name
        if (name, layout) not in self._copies:
            refused = self.backend.why_not(_reorder(tensor.type, tensor.layout, layout))
            if refused and isinstance(layout, Morton | Blocked):
                self._copies[name, layout] = self._packed(name, layout, task)
                return self._copies[name, layout]
            op = Reorder(tensor.layout.name, layout.name)
            label, copy = f"{name} to {layout.name}", self._free(f"{name} as {layout.name}")
            self.add(Task(label, op, {"x": name}, {}, copy, task.layer, via=task.via))
            self._copies[name, layout] = copy
        return self._copies[name, layout]

    def _packed(self, name: str, layout: Morton | Blocked, task: Task) -> str:
        """The name of a copy of `name` in `layout` where no kernel makes one at once: by moves."""
        tensor, made = self.tensors[name], self._in_layout(name, parse("R"), task)
        for op in packing(tensor.shape, layout):
            label, source = f"{name} to {layout.name}: {op.name}", made
            made = self._free(f"{name} as {layout.name}: {op.name}")
            self.add(Task(label, op, {"x": source}, {}, made, task.layer, via=task.via))
        self.tensors[made] = Tensor(tensor.type, layout, self.tensors[made].memory)
        return made

    def _free(self, name: str) -> str:
        """`name`, marked where somebody else's tensor is called so."""
        while name in self._reserved or name in self.tensors:
            name += "'"
        return name


def _same_memory(shape: Shape, layout: Layout, other: Shape, seen: Layout) -> bool:
    """Whether an array of `shape` in `layout` is, number by number, one of another in `seen`."""
    if not isinstance(layout, RowMajor) or not isinstance(seen, RowMajor) or not prod(shape):
        return True
    rows = layout.rows(shape), prod(shape) // layout.rows(shape)
    if rows == (seen.rows(other), prod(other) // seen.rows(other)):
        return True
    return layout.size(shape) == prod(shape) and seen.size(other) == prod(other)


def _reorder(type: TensorType, source: Layout, target: Layout) -> Problem:
    """The problem of moving a tensor from one layout to another."""
    return Problem.of(Reorder(source.name, target.name), {"x": type}, {"x": source.name})

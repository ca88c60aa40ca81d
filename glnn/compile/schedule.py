"""What a backend is to run: tasks with their kernels and layouts, before any memory is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from glnn.backends.backend import Backend, Choice
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.decompose import Derived, Lowered
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.add import Add
from glnn.graph.operators.conv2d import Conv2d
from glnn.graph.operators.repack import Repack
from glnn.kernels import kernels_for
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.layout import Layout, parse
from glnn.types import Shape

Array = NDArray[Any]


@dataclass(frozen=True)
class Parameter:
    """An array of `shape` that is fixed with a model; `make` gives it when it is needed."""

    shape: Shape
    make: Callable[[], Array]

    @classmethod
    def of(cls, array: Array) -> Parameter:
        return cls(array.shape, lambda: array)

    def derived(self, made: Derived) -> Parameter:
        """The one computed from this."""
        return Parameter(made.shape, lambda: made.make(self.make()))


@dataclass(frozen=True)
class Task:
    """An op on tensors. layer: the layer it belongs to. via: the kernel whose stage it is, if any.

    operands: the tensor of each operand. parameters: the operands that are fixed. kernel: the one
    to take; None leaves the choice open.
    """

    name: str
    op: Operator
    operands: Mapping[str, str]
    parameters: Mapping[str, Parameter]
    output: str
    layer: str
    kernel: str | None = None
    via: str | None = None


@dataclass(frozen=True)
class Entry:
    """A task with the kernel chosen for it. layouts: of each operand and of `out`."""

    task: Task
    choice: Choice
    shapes: Shapes
    layouts: Mapping[str, Layout]

    @property
    def problem(self) -> Problem:
        """What the kernel is to compute."""
        op = self.task.op
        lies = {name: self.layouts[name].name for name in self.shapes if name not in op.parameters}
        return Problem.of(op, self.shapes, lies)


@dataclass(frozen=True)
class Tensor:
    """A tensor: several share the memory called `memory` where an op is only a view."""

    shape: Shape
    layout: Layout
    memory: str


class Schedule:
    """Tasks in the order in which they run, with the repacks between kernels that disagree.

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
        return self.backend.examine((entry.choice, entry.problem) for entry in self.entries)

    def add_input(self, name: str, shape: Shape, layout: str = "R") -> None:
        """A tensor that is there before the first task."""
        self.tensors[name] = Tensor(shape, parse(layout), name)

    def add(self, task: Task) -> None:
        """Append `task`, in stages if its kernel has some, and before it the repacks that it needs.

        Raises UnsupportedOpError or LimitError where the backend cannot compute it.
        """
        op = task.op
        self.ops.add(op.name)
        shapes: dict[str, Shape] = {k: self.tensors[v].shape for k, v in task.operands.items()}
        shapes |= {name: parameter.shape for name, parameter in task.parameters.items()}
        given = {k: self.tensors[v].layout.name for k, v in task.operands.items()}
        if op.view:
            wants, gives = self.backend.view_layouts(op, given["x"])
            source = self._in_layout(task.operands["x"], parse(wants), task)
            self.tensors[task.output] = Tensor(
                op.shape_of(shapes), parse(gives), self.tensors[source].memory
            )
            return
        forced = self._forced(task, shapes, given)
        if "residual" in shapes and self.backend.why_not(op, shapes, forced) is not None:
            self._add_apart(task, op)
            return
        choice = self.backend.choose(op, shapes, given, forced)
        problem = Problem.of(op, shapes, given)
        if isinstance(choice, Kernel) and choice.stages:
            self._add_stages(task, choice, problem.lowered(choice))
        else:
            self._add_whole(task, choice, shapes, given)
        if forced is None:
            self.problems.append(problem)

    def _add_whole(
        self, task: Task, choice: Choice, shapes: Shapes, given: Mapping[str, str]
    ) -> None:
        op = task.op
        layouts = self.backend.layouts(choice, op, shapes, given)
        operands = {k: self._in_layout(v, layouts[k], task) for k, v in task.operands.items()}
        updated = operands.get(op.updates or "")
        memory = self.tensors[updated].memory if updated else task.output
        self.tensors[task.output] = Tensor(op.shape_of(shapes), layouts["out"], memory)
        self.entries.append(Entry(replace(task, operands=operands), choice, shapes, layouts))

    def _add_apart(self, task: Task, op: Operator) -> None:
        """`task`, a convolution, and then what is added to it: no kernel here does both."""
        assert isinstance(op, Conv2d)
        operands = dict(task.operands)
        other, total = operands.pop("residual"), self._free(f"{task.output}: convolution")
        plain = op.with_activation("identity")
        self.add(replace(task, op=plain, operands=operands, output=total))
        terms = {"x": total, "y": other}
        name = f"{task.name}: sum"
        self.add(Task(name, Add(op.activation), terms, {}, task.output, task.layer))

    def _forced(self, task: Task, shapes: Shapes, given: Mapping[str, str]) -> str | None:
        """The kernel that `task` must take. What was asked for an op binds a stage if it can."""
        kernel = self._kernels.get(task.op.name)
        if task.kernel or not kernel or task.via is None:
            return task.kernel or kernel
        if kernel not in {k.name for k in kernels_for(task.op.name, self.backend.name)}:
            return kernel  # it is refused, by name
        return kernel if self._can(task.op, shapes, given, kernel) else None

    def _can(self, op: Operator, shapes: Shapes, given: Mapping[str, str], kernel: str) -> bool:
        """Whether `kernel` can compute `op`, and the tensors given be repacked for it."""
        try:
            choice = self.backend.choose(op, shapes, given, kernel)
        except (UnsupportedOpError, LimitError):
            return False
        wanted = self.backend.layouts(choice, op, shapes, given)
        repacks = {k: Repack(given[k], wanted[k].name) for k in given if given[k] != wanted[k].name}
        return all(
            self.backend.why_not(repack, {"x": shapes[k]}) is None for k, repack in repacks.items()
        )

    def _add_stages(self, task: Task, kernel: Kernel, lowered: Lowered) -> None:
        names = dict(task.operands)
        parameters = dict(task.parameters)
        for name, made in lowered.derived.items():
            parameters[name] = task.parameters[made.source].derived(made)
        last = lowered.stages[-1].name
        for stage in lowered.stages:
            own = self._free(f"{task.output}: {stage.name}")
            names[stage.name] = task.output if stage.name == last else own
            self.add(
                Task(
                    f"{task.name}: {stage.name}",
                    stage.op,
                    {k: names[v] for k, v in stage.operands.items() if v in names},
                    {k: parameters[v] for k, v in stage.operands.items() if v in parameters},
                    names[stage.name],
                    task.layer,
                    stage.kernel,
                    kernel.name,
                )
            )

    def _in_layout(self, name: str, layout: Layout, task: Task) -> str:
        """The name of the tensor `name` in `layout`: itself, or a repacked copy made once."""
        tensor = self.tensors[name]
        if tensor.layout == layout:
            return name
        if (name, layout) not in self._copies:
            op = Repack(tensor.layout.name, layout.name)
            label, copy = f"{name} to {layout.name}", self._free(f"{name} as {layout.name}")
            self.add(Task(label, op, {"x": name}, {}, copy, task.layer, via=task.via))
            self._copies[name, layout] = copy
        return self._copies[name, layout]

    def _free(self, name: str) -> str:
        """`name`, marked where somebody else's tensor is called so."""
        while name in self._reserved or name in self.tensors:
            name += "'"
        return name

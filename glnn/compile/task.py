"""What a schedule is made of: tasks, their kernels, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from glnn.backends.backend import Choice
from glnn.compile.weights import Weight
from glnn.graph.epilogue import Epilogue
from glnn.graph.operator import Operator, Shapes
from glnn.kernels.problem import Problem
from glnn.layout import Layout


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
    problem: Problem | None = None
    """What control flow computes: the types of its operands do not tell those of its results."""
    joins: tuple[str, ...] = ()
    """The tensors that it makes at once, as they lie one behind the other."""
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
    left: bool = False
    """Whether it does though there is a kernel (see `leaving`)."""

    @property
    def tensors(self) -> Iterable[str]:
        """The tensors that it reads and writes."""
        return (*self.task.operands.values(), self.task.output, *self.task.more)

    @property
    def shapes(self) -> Shapes:
        """The shape of each operand."""
        return self.problem.shapes


@dataclass(frozen=True)
class Decision:
    """A kernel that was chosen for a task, where another might have been."""

    task: Task
    problem: Problem
    """What the kernel is to compute."""
    choice: Choice
    entries: range
    """The entries of the schedule that it became, with the reorders before them."""

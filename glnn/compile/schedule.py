"""What a backend is to run: tasks with their kernels and layouts, before any memory is taken."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from glnn.backends.backend import Backend, Choice
from glnn.backends.cpu import NumpyKernel
from glnn.compile.pays import stays
from glnn.compile.problems import Problems
from glnn.compile.task import Decision, Entry, Task
from glnn.compile.tensor import Tensor, can_reorder
from glnn.compile.weights import Weight
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.decompose import Lowered
from glnn.graph.expression import Arg
from glnn.graph.operators.identity import Identity
from glnn.graph.operators.move import Move
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels import kernels_for
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.select import names_of
from glnn.layout import Layout, parse
from glnn.layout.bytes import PACKED_ROWS
from glnn.layout.layout import DENSE, PACKED, RowMajor
from glnn.symint import Substitution, hint, same
from glnn.types import TensorType


class Schedule(Problems):
    """Tasks in the order in which they run, with the reorders between kernels that disagree.

    kernels: the kernel to take for an op, by the op's name; others are chosen. instead: what to
    take in the place of what would be chosen, by the tensor of the result. reserved: names that
    tensors of its own must not have. rows: see Problems. left: the results of tasks that the host
    computes though there are kernels. hosts: memories that are the host's alone. decisions: what
    was chosen, the stages of a kernel before the op that it computes. ops: the names of all ops
    that it has, also in stages.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: Mapping[str, str] | None = None,
        reserved: Iterable[str] = (),
        instead: Mapping[str, Choice] | None = None,
        rows: Mapping[str, RowMajor] | None = None,
        left: Container[str] = (),
    ) -> None:
        super().__init__(backend, reserved, rows or {})
        self.entries: list[Entry] = []
        self.decisions: list[Decision] = []
        self.ops: set[str] = set()
        self._kernels = dict(kernels or {})
        self._instead = instead or {}
        self._inputs: set[str] = set()
        self._left = left
        self.hosts: frozenset[str] = frozenset()

    def examine(self) -> bool:
        """See whether its kernels are right here; whether some are not, so that it is made anew."""
        return self.backend.examine(
            (entry.choice, entry.problem) for entry in self.hinted.entries if not entry.host
        )

    @property
    def hinted(self) -> Schedule:
        """The same of the sizes at hand, which differs where some are SymInts."""
        change = Substitution(hint)
        tensors = {name: change(tensor) for name, tensor in self.tensors.items()}
        if all(tensors[name] is tensor for name, tensor in self.tensors.items()):
            return self
        found = copy(self)
        found.tensors = tensors
        found.entries = [
            replace(
                one,
                task=change(one.task),
                problem=one.problem.at_hand,
                layouts=change(one.layouts),
            )
            for one in self.entries
        ]
        return found

    def _layer(self, name: str) -> str:
        made = self.tensors[name].memory
        tasks = (entry.task for entry in reversed(self.entries))
        return next((task.layer for task in tasks if task.output == made), name)

    def apart(self, name: str) -> str:
        """The name of a copy of the tensor `name`, which is row major, in memory of its own."""
        return self._written(name, {"x0": name}, {})

    def made(self, name: str, weight: Weight) -> str:
        """The name of a tensor that holds what `weight` does, which is called `name`."""
        return self._written(name, {}, {"x0": weight})

    def _written(self, name: str, operands: dict[str, str], parameters: dict[str, Weight]) -> str:
        copy = self.free(f"{name}: copy")
        self.add(Task(name, Pointwise(Arg(0)), operands, parameters, copy, name))
        return copy

    def arrange(self, order: Sequence[int]) -> None:
        """Have only those entries that `order` names by their numbers, in that order."""
        place = {number: at for at, number in enumerate(order)}
        self.entries = [self.entries[number] for number in order]
        for i, decision in enumerate(self.decisions):
            left = [place[number] for number in decision.entries if number in place]
            entries = range(min(left), max(left) + 1) if left else range(0)
            self.decisions[i] = replace(decision, entries=entries)

    def replace(self, others: Mapping[int, Sequence[Entry]]) -> None:
        """Have `others` in the place of the entries that they are given for by their numbers."""
        ends, entries = [0], list[Entry]()
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
        """A tensor that is there before the first task. fed: whether it comes from the host."""
        self.tensors[name] = Tensor(type, parse(layout).at(type.shape), name)
        if fed:
            self._inputs.add(name)

    @property
    def padded(self) -> dict[str, Layout]:
        """The inputs that are given rows of whole vec4 or texels, as they have none, and which."""
        return {name: layout for name, layout in self._padded.items() if name in self._inputs}

    def add(self, task: Task) -> None:
        """Append `task`, in stages if its kernel has some, and before it the reorders it needs.

        What no kernel does at once is taken apart; what has no kernel here at all the host does.
        Raises UnsupportedOpError or LimitError where the backend cannot compute it.
        """
        self.ops.add(task.op.name)
        if task.problem:
            self._add_host(task, task.problem)
            return
        if task.parameters and not task.operands:
            self._add_host(task, self._problem(task))  # see Graph.fixed
            return
        if task.op.view:
            self._view(task)
            return
        if self._turned(task):
            return
        task = self._with_vectors(task)
        problem = self._problem(task)
        if 0 in problem.output and not task.more:
            self.tensors[task.output] = Tensor(problem.results[0], DENSE, task.output)
            return
        if task.more or task.output in self._left:
            self._add_host(task, problem, left=not task.more)
            return
        forced = self._forced(task, problem)
        try:
            choice = self._other(task) or self.backend.choose(problem, forced)
        except (UnsupportedOpError, LimitError):
            if task.apart:
                self._add_all(task.apart())
            elif forced is None and not self._has_kernels(problem):
                self._add_host(task, problem)
            else:
                raise
            return
        if task.apart and not self._stays(task, choice, problem):
            self._add_all(task.apart())
        elif isinstance(task.op, Move) and isinstance(choice, Kernel) and forced is None:
            self._wait(task, choice, problem)
        else:
            self._make(task, choice, problem, forced)

    def _stays(self, task: Task, choice: Choice, problem: Problem) -> bool:
        """Whether `task`, of several that were joined, is to be one step by `choice`."""
        if self._reorders(task, choice, problem):
            return False
        return stays(self.backend, self._kernels, problem, choice)

    def _add_all(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.add(task)

    def _wait(self, task: Task, choice: Choice, problem: Problem) -> None:
        """Move once somebody wants what comes of it as it lies."""
        layouts = self.backend.layouts(choice, problem)
        self.tensors[task.output] = Tensor(problem.results[0], layouts["out"], task.output)
        self._moved_from[task.output] = task.operands["x"], task.op

        def moved() -> None:
            seen = self.tensors[task.output]  # maybe in another shape and layout: see `_packed`
            self._make(task, choice, problem, None)
            self.tensors[task.output] = seen

        self._waiting[task.output] = moved

    def _make(self, task: Task, choice: Choice, problem: Problem, forced: str | None) -> None:
        """Append what computes `task` by `choice`."""
        first = len(self.entries)
        if isinstance(choice, Kernel) and choice.stages:
            self._add_stages(task, choice, problem.lowered(choice))
        else:
            self._add_whole(task, choice, problem)
        if forced is None:
            entries = range(first, len(self.entries))
            self.decisions.append(Decision(task, problem, choice, entries))

    @property
    def problems(self) -> list[Problem]:
        """What was chosen for, the stages of a kernel before the op that it computes."""
        return [decision.problem for decision in self.decisions]

    def _other(self, task: Task) -> Choice | None:
        """What to take for `task`, no stage of another, in the place of what would be chosen."""
        return self._instead.get(task.output) if task.via is None else None

    def _view(self, task: Task) -> None:
        """The result of `task` is the memory of its operand, where that lies as it is to."""
        operand = self.tensors[task.operands["x"]]
        (type,) = task.op.results({"x": operand.type})
        lies = operand.layout
        wants, gives = map(parse, self.backend.view_layouts(task.op, lies.unpacked.name))
        alike = isinstance(lies, RowMajor) and same(lies.rows(operand.shape), lies.rows(type.shape))
        if (alike or lies == PACKED) and wants == gives == DENSE:
            wants = gives = lies  # the same rows, padded or not
        self._moved_from[task.output] = task.operands["x"], task.op
        source = self.tensors[self._lying(task.operands["x"], wants, task)]
        type = TensorType(type.dims, source.type.dtype)
        self.tensors[task.output] = Tensor(type, gives.at(type.shape), source.memory)

    def _add_whole(self, task: Task, choice: Choice, problem: Problem) -> None:
        layouts = self.backend.layouts(choice, problem)
        operands = {k: self._in_layout(v, layouts[k], task) for k, v in task.operands.items()}
        updated = operands.get(task.op.updates or "")
        memory = self.tensors[updated].memory if updated else task.output
        self.tensors[task.output] = Tensor(problem.results[0], layouts["out"], memory)
        task = replace(task, operands=operands)
        known = (*operands, "out") if "out" in problem.layouts else operands
        lying = problem.lying({name: layouts[name].name for name in known})
        self.entries.append(Entry(task, choice, lying, layouts))

    def _add_host(self, task: Task, problem: Problem, left: bool = False) -> None:
        """`task` by NumPy, between transfers where others are not the host's."""
        layouts: dict[str, Layout] = dict.fromkeys((*problem.shapes, "out"), DENSE)
        for name, tensor in task.operands.items():
            lies = self.tensors[tensor].layout
            taken = isinstance(lies, RowMajor) and not task.op.control  # which copies as it lies
            layouts[name] = lies if taken else DENSE
        operands = {k: self._in_layout(v, layouts[k], task) for k, v in task.operands.items()}
        for name, type in zip((task.output, *task.more), problem.results, strict=True):
            self.tensors[name] = Tensor(type, DENSE, name)
        task = replace(task, operands=operands)
        choice = NumpyKernel("host") if task.op.control else NumpyKernel()
        self.entries.append(Entry(task, choice, problem, layouts, host=True, left=left))

    def _by_host(self, name: str, layout: Layout, task: Task) -> str:
        self._there(name)
        tensor, label = self.tensors[name], f"{name} to {layout.name}"
        self._padded |= {tensor.memory: layout} if layout == PACKED_ROWS else {}
        copy, op = self.free(f"{name} as {layout.name}"), Identity()
        self.tensors[copy] = Tensor(tensor.type, layout, copy)
        moved = Task(label, op, {"x": name}, {}, copy, task.layer, via=task.via)
        problem = Problem.of(op, {"x": tensor.type}, {"x": tensor.layout.name})
        layouts = {"x": tensor.layout, "out": layout}
        self.entries.append(Entry(moved, NumpyKernel(), problem, layouts, host=True))
        return copy

    def _forced(self, task: Task, problem: Problem) -> str | None:
        """The kernel that `task` must take: of several that were asked for, the first that can.

        What was asked for an op binds a stage if it can.
        """
        asked = names_of(self._kernels.get(task.op.name, ""))
        if task.kernel or not asked:
            return task.kernel
        if len(asked) == 1 and task.via is None:
            return asked[0]
        known = {k.name for k in kernels_for(task.op.name, self.backend.name)}
        for kernel in asked:
            if kernel not in known or self._can(problem, kernel):
                return kernel  # one that is not known is refused, by name
        return None if task.via else asked[0]

    def _can(self, problem: Problem, kernel: str) -> bool:
        """Whether `kernel` can compute `problem`, and the tensors given be reordered for it."""
        try:
            choice = self.backend.choose(problem, kernel)
        except (UnsupportedOpError, LimitError):
            return False
        wanted, given = self.backend.layouts(choice, problem), problem.layouts
        return all(
            can_reorder(self.backend, problem.types[name], parse(lies), wanted[name])
            for name, lies in given.items()
        )

    def _add_stages(self, task: Task, kernel: Kernel, lowered: Lowered) -> None:
        names = dict(task.operands)
        parameters = dict(task.parameters)
        for name, made in lowered.derived.items():
            if made.source in task.parameters:
                parameters[name] = task.parameters[made.source].made(made)
                continue
            names[name] = self.free(f"{task.output}: {name}")
            label, reads = f"{task.name}: {name}", {"x": names[made.source]}
            self.add(
                Task(label, made.operator, reads, {}, names[name], task.layer, via=kernel.name)
            )
        last = lowered.stages[-1].name
        for stage in lowered.stages:
            own = self.free(f"{task.output}: {stage.name}")
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

"""What the tasks of a schedule ask of kernels: problems, by how the tensors lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from glnn.backends.backend import Backend, Choice
from glnn.compile.task import Task
from glnn.compile.tensor import unpacked
from glnn.compile.tensors import Tensors
from glnn.errors import UnsupportedOpError
from glnn.graph.contraction import Contraction
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels import kernels_for
from glnn.kernels.problem import Problem
from glnn.layout import parse
from glnn.layout.layout import DENSE, RowMajor


class Problems(Tensors):
    """Tensors, and the problem of each task on them.

    rows: how results of pointwise work are to lie, in rows, of which that is not left open.
    """

    def __init__(
        self, backend: Backend, reserved: Iterable[str], rows: Mapping[str, RowMajor]
    ) -> None:
        super().__init__(backend, reserved)
        self._rows = rows

    def _with_vectors(self, task: Task) -> Task:
        """`task` with operands of its epilogue that are a number for each channel, or one in all,
        seen as vectors, whatever shape they were spread from.
        """
        extents = {} if task.epilogue is None else task.epilogue.named_extents
        spread = {k: v for k, v in task.operands.items() if extents.get(k) in ("channel", "one")}
        seen = {k: self._as_vector(v, task) for k, v in spread.items()}
        return replace(task, operands={**task.operands, **seen}) if seen else task

    def _problem(self, task: Task) -> Problem:
        tensors = unpacked(task.op, {k: self.tensors[v] for k, v in task.operands.items()})
        types = {name: tensor.type for name, tensor in tensors.items()}
        types |= {name: weight.type for name, weight in task.parameters.items()}
        extents = {} if task.epilogue is None else task.epilogue.named_extents
        one = {name for name, extent in extents.items() if extent != "full"}
        layouts = {name: tensor.layout.name for name, tensor in tensors.items() if name not in one}
        if isinstance(task.op, Pointwise) and task.output in self._rows:
            layouts = {k: v if parse(v).in_rows else DENSE.name for k, v in layouts.items()}
            layouts["out"] = self._rows[task.output].name
        if isinstance(task.op, Contraction):  # which take what is turned as it lies
            own = (name for name in task.operands if name in types and name not in extents)
            layouts |= {name: self.lying(task.operands[name]).unpacked.name for name in own}
        return Problem.of(task.op, types, layouts, task.epilogue)

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

    def _reorders(self, task: Task, choice: Choice, problem: Problem) -> bool:
        """Whether operands of its epilogue would be reordered for `choice`, and its result back."""
        wanted = self._rows.get(task.output)
        if wanted is None or "full" not in problem.extents.values():
            return False
        lies = self.backend.layouts(choice, problem)["out"]
        return lies.at(problem.output) != wanted.at(problem.output)

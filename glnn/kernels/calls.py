"""The named scalar functions that a kernel calls for a problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Call, Expr
from glnn.graph.operators.matmul import Perceptron
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.recurrence import Recurrence, RecurrentStep
from glnn.graph.operators.reductions import Reduce
from glnn.kernels.codegen.expression import types_on_gpu
from glnn.kernels.op_spec import Problem
from glnn.types import DType, widened

Called = tuple[str, str]
"""A function's name and the kind of numbers that it is called with: "float", "int" or "bool"."""


def called(problem: Problem) -> frozenset[Called]:
    """Return the scalar functions that a GLSL program for `problem` calls."""
    if "called" not in problem.memo:
        own = (_of(expr, types) for expr, types in _expressions(problem))
        problem.memo["called"] = frozenset().union(*own)
    found: frozenset[Called] = problem.memo["called"]
    return found


def _expressions(problem: Problem) -> Iterator[tuple[Expr, list[DType]]]:
    """Yield each expression in `problem` with the types of its arguments."""
    op, given = problem.op, [widened(problem.types[name]).dtype for name in problem.own]
    if isinstance(op, Pointwise):
        yield op.expr, given
    if isinstance(op, Reduce):
        yield op.prologue, given
        yield op.finish, [op.prologue.infer(given)]
    if isinstance(op, RecurrentStep | Recurrence):
        floats = [DType.float32] * max(expr.arity for expr in op.exprs)
        yield from ((expr, floats) for expr in op.exprs)
    if isinstance(op, Perceptron):
        yield from ((expr, [DType.float32]) for expr in op.functions)
    if problem.prologue is not None:
        floats = [DType.float32] * (1 + len(problem.prologue.extents))
        yield problem.prologue.expr, floats
    if problem.epilogue is not None:
        names = problem.epilogue.names
        beside = [widened(problem.types[name]).dtype for name in names]
        yield problem.epilogue.expr, [widened(problem.results[0]).dtype, *beside]


def _of(expr: Expr, dtypes: Sequence[DType]) -> set[Called]:
    """Return the functions in `expr`, including those that others are composed of (on floats)."""
    try:
        types = iter(types_on_gpu(expr, dtypes))
    except UnsupportedOpError:  # no kernel computes it
        return set()
    found = set[Called]()

    def kind(part: Expr, given: tuple[str, ...]) -> str:
        if isinstance(part, Call):
            found.add((part.function, given[-1]))
        return next(types).kind

    expr.expanded.fold(kind)
    return found | {(row.name, "float") for row in expr.functions if row.body}

"""The named scalar functions that a kernel calls for a spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Call, Expr
from glnn.graph.operators.matmul import Perceptron
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.recurrence import Recurrence, RecurrentStep
from glnn.graph.operators.reductions import Reduce
from glnn.kernels.codegen.expression import types_on_gpu
from glnn.kernels.op_spec import OpSpec
from glnn.types import DType, widened

Called = tuple[str, str]
"""A function's name and the kind of numbers that it is called with: "float", "int" or "bool"."""


def called(spec: OpSpec) -> frozenset[Called]:
    """Return the scalar functions that a GLSL program for `spec` calls."""
    if "called" not in spec.memo:
        own = (_of(expr, types) for expr, types in _expressions(spec))
        spec.memo["called"] = frozenset().union(*own)
    found: frozenset[Called] = spec.memo["called"]
    return found


def _expressions(spec: OpSpec) -> Iterator[tuple[Expr, list[DType]]]:
    """Yield each expression in `spec` with the types of its arguments."""
    op, given = spec.op, [widened(spec.types[name]).dtype for name in spec.own]
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
    if spec.prologue is not None:
        floats = [DType.float32] * (1 + len(spec.prologue.extents))
        yield spec.prologue.expr, floats
    if spec.epilogue is not None:
        names = spec.epilogue.names
        beside = [widened(spec.types[name]).dtype for name in names]
        yield spec.epilogue.expr, [widened(spec.results[0]).dtype, *beside]


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

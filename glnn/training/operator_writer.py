"""A writer of operators into the graph of a training step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glnn.graph.builder import Builder
from glnn.graph.compose.node_adder import PointwiseOperand, bind_expression
from glnn.graph.expression import Arg, Expr
from glnn.graph.formula import NAMES
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise, Reduce


@dataclass(frozen=True)
class OperatorWriter:
    """Adds operators to a graph, all of whose sizes are known."""

    builder: Builder
    """The builder of the graph."""
    label: str
    """The label of the nodes."""

    def __call__(self, operator: Operator, *inputs: Value) -> Value:
        """Add `operator`, and return its result."""
        name = self.builder.fresh(f"{self.label}: {operator.name}")
        return self.builder.add(operator, *inputs, name=self.label, outputs=(name,))[0]

    def pointwise(self, expression: str | Expr, *operands: PointwiseOperand) -> Value:
        """Add an expression, or a formula of a, b, c and d, of values that broadcast and of
        numbers.
        """
        expr, values = bind_expression(expression, *operands)
        return self(Pointwise(expr), *values)

    def formula(self, text: str, **operands: PointwiseOperand) -> Value:
        """Add a formula of at most eight operands by their names: `formula("w - lr * g", w=w, …)`.

        Those that the text does not name are left out.
        """
        words = re.findall(r"[A-Za-z_]\w*", text)
        names = [name for name in operands if name in words]
        letters = dict(zip(names, NAMES, strict=False))
        written = re.sub(r"[A-Za-z_]\w*", lambda word: letters.get(word[0], word[0]), text)
        return self.pointwise(written, *(operands[name] for name in names))

    def total(
        self, expression: str | Expr, *operands: PointwiseOperand, finish: Expr | None = None
    ) -> Value:
        """Add the sum over all places of an expression, whose shape is the first operand's."""
        expr, values = bind_expression(expression, *operands)
        axes = tuple(range(len(values[0].type.dims)))
        return self(Reduce("sum", axes, False, expr, finish or Arg(0)), *values)

"""Terms of values: calls of functions and reductions, whichever nodes they are spread over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar
from glnn.graph.graph import Node, Value
from glnn.graph.operators import Pointwise, Reduce
from glnn.graph.operators.reductions import axes_of
from glnn.graph.passes.rewriting import Rewriting

COMMUTE = ("add", "mul", "maximum", "minimum")
REDUCTIONS = ("sum", "mean", "max")


@dataclass(frozen=True, eq=False)
class Term:
    """A function of terms, a number, or a value that is neither.

    Equal ones are the same object.
    """

    function: str
    """Kind of the term: one of FUNCTIONS; a reduction's kind; "number"; "value"."""
    arguments: tuple[Term, ...] = ()
    number: float | None = None
    axes: tuple[int, ...] = ()
    """Axes of a reduction, all of which stay, of size 1."""
    value: Value | None = None
    """The tensor that it is, where there is one."""
    values: list[Value] = field(default_factory=list)
    """All tensors that equal the term."""

    def either(self) -> Iterator[tuple[Term, Term]]:
        """The two arguments in both orders, where these are the same."""
        first, second = self.arguments
        yield first, second
        if self.function in COMMUTE and first is not second:
            yield second, first


class Terms:
    """The terms of a graph's values."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._rewriting = rewriting
        self._known: dict[object, Term] = {}
        self._of: dict[Value, Term] = {}
        for node in rewriting.nodes:
            for value in node.outputs:
                self._of[value] = self._made(node, value)
                self._of[value].values.append(value)

    def of(self, value: Value) -> Term:
        """Return the term of `value`."""
        if value not in self._of:
            self._of[value] = self._leaf(value)
        return self._of[value]

    def _leaf(self, value: Value) -> Term:
        if value not in self._known:
            self._known[value] = Term("value", value=value, values=[value])
        return self._known[value]

    def _made(self, node: Node, value: Value) -> Term:
        operator = node.operator
        if node.epilogue is not None or self._rewriting.fixed(value):
            return self._leaf(value)
        given = [self.of(v) for v in node.inputs if v is not None]
        if isinstance(operator, Pointwise):
            return self._expression(operator.expr, given)
        if isinstance(operator, Reduce) and self._plain(operator):
            x = node.inputs[0]
            assert x is not None
            axes = axes_of("reduce", operator.axes, len(self._rewriting.shape(x)))
            inner = self._expression(operator.prologue, given)
            whole = self._known_as(operator.kind, (inner,), axes=axes)
            return self._expression(operator.finish, [whole])
        return self._leaf(value)

    def _plain(self, operator: Reduce) -> bool:
        return operator.keepdims and operator.kind in REDUCTIONS and not operator.parts

    def _expression(self, expr: Expr, given: list[Term]) -> Term:
        def term(part: Expr, arguments: tuple[Term, ...]) -> Term:
            if isinstance(part, Arg):
                return given[part.index]
            if isinstance(part, Scalar | Constant):
                return self._known_as("number", number=float(part.value))
            assert isinstance(part, Call)
            return self._call(part.function, arguments)

        return expr.fold(term)[-1]

    def _call(self, function: str, given: tuple[Term, ...]) -> Term:
        """A call in the one way in which it is written here."""
        if function == "pow" and given[1].number == 2.0:
            return self._call("square", given[:1])
        if function == "pow" and given[1].number == 3.0:
            return self._call("mul", (self._call("square", given[:1]), given[0]))
        if function == "pow" and given[1].number == 0.5:
            return self._call("sqrt", given[:1])
        if function == "mul" and given[0] is given[1]:
            return self._call("square", given[:1])
        if function == "rsqrt":
            return self._call("reciprocal", (self._call("sqrt", given),))
        if function == "div" and given[0].number == 1.0:
            return self._call("reciprocal", given[1:])
        if function == "mul":
            for one, other in (given, given[::-1]):
                if one.function == "reciprocal":
                    return self._call("div", (other, one.arguments[0]))
        if function == "div" and given[1].number:
            number = self._known_as("number", number=1.0 / given[1].number)
            return self._call("mul", (given[0], number))
        if function == "div" and given[1].function == "number":
            return self._known_as("div", given)
        return self._known_as(function, given)

    def _known_as(
        self,
        function: str,
        arguments: tuple[Term, ...] = (),
        number: float | None = None,
        axes: tuple[int, ...] = (),
    ) -> Term:
        order = frozenset(arguments) if function in COMMUTE else arguments
        key = function, order, number, axes
        if key not in self._known:
            self._known[key] = Term(function, arguments, number, axes)
        return self._known[key]

"""Merge successive moves of numbers into one, and remove those that are not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Gather, Rearrange, Slice, Transpose
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes.factors import Chain
from glnn.graph.passes.rewriting import Rewriting
from glnn.types import Shape, TensorType

Step = tuple[Value, Operator]
"""A move or a view, behind what it is done on."""


def without_moves(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with chains of transpositions, slices, views and the like as one move each.

    types: of every value; those of new ones are added. A tensor that only moves read is not made:
    each of them begins where it does. A look-up at one known place is a slice.
    """
    rewriting = Rewriting(graph, types)
    for node in rewriting.nodes:
        if isinstance(node.operator, Gather):
            _sliced(rewriting, node, node.operator)
    moves = _Moves(rewriting)
    for node in rewriting.nodes:
        if isinstance(node.operator, Move) and not rewriting.fixed(node.outputs[0]):
            moves.shorten(node)
    return rewriting.graph()


def _sliced(rewriting: Rewriting, node: Node, operator: Gather) -> None:
    """A slice in the place of a look-up of one row that is known."""
    x, index = node.inputs
    assert x is not None and index is not None
    shape, (result,) = rewriting.shape(x), node.outputs
    if prod(rewriting.shape(index)) != 1 or rewriting.fixed(result) or 0 in shape:
        return
    numbers = rewriting.numbers(index)
    if numbers is None:
        return
    axis = operator.axis % len(shape)
    place = int(numbers.reshape(-1)[0]) % shape[axis]
    row = rewriting.add(node.name, Slice((place,), (place + 1,), (axis,), (1,)), x)
    rewriting.be(node, rewriting.reshaped(node.name, row, rewriting.shape(result)))


@dataclass(frozen=True)
class _Moves:
    rewriting: Rewriting

    def shorten(self, last: Node) -> None:
        """Replace all moves that end with `last`, and a view that alone reads it, by one move."""
        graph, value = self.rewriting, last.outputs[0]
        if 0 in graph.shape(value) or graph.maker(value) is not last or not self._kept(value):
            return
        steps = self._above(last)
        (view, *_) = graph.readers(value) or (last,)
        seen = graph.alone(value) and isinstance(view.operator, View)
        if not seen or not self._put(view, [*steps, (value, view.operator)]):
            self._put(last, steps)

    def _above(self, last: Node) -> list[Step]:
        """Return `last` and the moves and views before it whose results nothing else needs, each
        with its operand.
        """
        graph, found, node = self.rewriting, list[Step](), last
        while True:
            (value,) = node.inputs
            assert value is not None
            found.insert(0, (value, node.operator))
            before = graph.computed(value)
            if before is None or 0 in graph.shape(value):
                return found
            view, move = isinstance(before.operator, View), isinstance(before.operator, Move)
            if not view and (not move or self._kept(value)):
                return found
            node = before

    def _kept(self, value: Value) -> bool:
        """Return True where `value` is read by other nodes than moves, or is an output."""
        if self.rewriting.output(value):
            return True
        readers = self.rewriting.readers(value)
        if any(not isinstance(node.operator, View | Move) for node in readers):
            return True
        views = (node for node in readers if isinstance(node.operator, View))
        return any(self._kept(node.outputs[0]) for node in views)

    def _put(self, end: Node, steps: Sequence[Step]) -> bool:
        """Replace `steps`, of which `end` is the last, by fewer; return True where that is done."""
        best: tuple[int, tuple[Operator, ...]] | None = None
        for start, (_, operator) in enumerate(steps):
            operators = self._joined(steps[start:], self.rewriting.shape(end.outputs[0]))
            if operators and self._better(steps[start:], operators):
                plain = not isinstance(operators[0], Rearrange)
                if best is None or plain:
                    best = start, operators
                if plain:
                    break
            if best is not None and not isinstance(operator, View):
                break
        if best is None:
            return False
        (start, (*first, last)), before = best, end.inputs[0]
        value = steps[start][0]
        for operator in first:
            value = self.rewriting.add(end.name, operator, value)
        self.rewriting.replace(end, last, value)
        self.rewriting.prune(before)
        return True

    def _joined(self, steps: Sequence[Step], result: Shape) -> tuple[Operator, ...]:
        """Return operators that do all of `steps`, which give a tensor of shape `result`."""
        if len(steps) == 1 and not isinstance(steps[0][1], Transpose):
            return ()
        shapes = [self.rewriting.shape(value) for value, _ in steps]
        chain: Chain | None = Chain.of(shapes[0])
        for (_, operator), shape in zip(steps, [*shapes[1:], result], strict=True):
            chain = None if chain is None else chain.then(operator, shape)
        return () if chain is None else chain.operators()

    def _better(self, steps: Sequence[Step], operators: tuple[Operator, ...]) -> bool:
        """Return True where `operators` have fewer moves than `steps`, or as many without views of
        images as something else.
        """
        before, after = _moves([operator for _, operator in steps]), _moves(operators)
        if after < before:
            return True
        if len(operators) > 1 or len(steps) < 2:
            return False
        (operator,) = operators
        (type,) = operator.infer([self.rewriting.types[steps[0][0]]])
        return len(self.rewriting.shape(steps[0][0])) == len(type.dims) == 4


def _moves(operators: Sequence[Operator]) -> int:
    return sum(isinstance(operator, Move) for operator in operators)

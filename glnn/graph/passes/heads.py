"""Strides of attention heads in the tensors that they are moved from, so that no move is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators.attention import Walk
from glnn.graph.operators.move import Move
from glnn.graph.operators.views import View
from glnn.graph.passes.factors import Chain
from glnn.graph.passes.rewriting import Rewriting
from glnn.symint import at_most, same
from glnn.types import Shape

Legs = list[tuple[int, int]]
"""Legs of a dimension, sizes and strides, the outermost first."""


def joined(legs: Iterable[tuple[int, int]]) -> Legs:
    """Merge neighbouring legs that are one walk, and leave out legs of one place."""
    found: Legs = []
    for size, apart in legs:
        if same(size, 1):
            continue
        if found and same(found[-1][1], size * apart):
            found[-1] = found[-1][0] * size, apart
        else:
            found.append((size, apart))
    return found


def legs_of(chain: Chain, dim: int) -> Legs:
    """Return the legs of dimension `dim` of the chain's result, in the memory of the chain's
    operand.
    """
    return joined(
        (one.size, 0 if one.axis is None else one.step * prod(chain.shape[one.axis + 1 :]))
        for one in chain.dims[dim]
    )


@dataclass(frozen=True)
class Read:
    """A strided view of a value as rows of numbers, the tokens of heads."""

    value: Value
    start: int
    stack: Legs
    """Legs of samples and heads: two at most."""
    token: int
    step: int

    @classmethod
    def of(cls, value: Value, chain: Chain, tokens: int) -> Read | None:
        """Return the strided view of `chain`'s result, (stack tokens, numbers), in the memory of
        `value`. None where it cannot be one.
        """
        rows, numbers = legs_of(chain, 0), legs_of(chain, 1)
        token, start = 0, 0
        if tokens > 1:
            size, token = rows.pop() if rows else (1, 0)
            if size % tokens:
                return None
            rows = joined([*rows, (size // tokens, token * tokens)])
        for place, apart in zip(chain.base, _apart(chain.shape), strict=True):
            start += place * apart
        step = numbers[0][1] if numbers else 1
        steps = (*(apart for _, apart in rows), token, step)
        beyond = any(
            one.axis is not None and not at_most(one.size, chain.shape[one.axis])
            for factors in chain.dims
            for one in factors
        )
        if len(rows) > 2 or len(numbers) > 1 or min(steps) < 0 or beyond:
            return None
        return cls(value, start, rows, token, step)

    def walk(self, heads: int) -> Walk:
        """The same of stacks of so many heads."""
        outer, inner = 0, 0
        if len(self.stack) == 2:
            (_, outer), (_, inner) = self.stack
        elif self.stack:
            ((_, inner),) = self.stack
            outer = heads * inner
        return Walk(self.start, outer, inner, self.token, self.step)


def _apart(shape: Shape) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def _sources(
    rewriting: Rewriting, value: Value, last: Iterable[Operator]
) -> Iterator[tuple[Value, Chain]]:
    """Yield the values that `value`, followed by `last`, is moved from, the farthest first and
    `value` itself last, each with its chain of moves.
    """
    steps: list[tuple[Value, tuple[Operator, Shape] | None]] = [(value, None)]
    while (node := rewriting.computed(value)) is not None:
        operator, shape = node.operator, rewriting.shape(value)
        if node.epilogue is not None or not isinstance(operator, View | Move):
            break
        (before,) = node.inputs
        assert before is not None
        value = before
        steps.append((value, (operator, shape)))
    for count in range(len(steps) - 1, -1, -1):
        source = steps[count][0]
        chain: Chain | None = Chain.of(rewriting.shape(source))
        for _, step in reversed(steps[1 : count + 1]):
            assert step is not None
            chain = None if chain is None else chain.then(*step)
        for operator in last:
            chain = None if chain is None else chain.then(operator)
        if chain is not None:
            yield source, chain


def read(
    rewriting: Rewriting, value: Value | None, tokens: int, *last: Operator, rows: bool = True
) -> Read | None:
    """Return a strided view of `value` as the rows of numbers that `last` would make of it; None
    where there is none. rows: only with the numbers of a row next to each other.
    """
    if value is None:
        return None
    for source, chain in _sources(rewriting, value, last):
        found = Read.of(source, chain, tokens)
        if found is not None and (found.step == 1 or not rows):
            return found
    return None

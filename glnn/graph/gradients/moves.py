"""Gradients of moves: numbers go back to their source, and add up where copies came from one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from glnn.graph.gradients.adjoint import Places, added_at
from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.graph import Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Expand,
    Flip,
    Pad,
    Rearrange,
    Reduce,
    Roll,
    Slice,
    Split,
    Tile,
    Transpose,
)


def transpose(back: Backward) -> Sequence[Value | None]:
    """The other way round."""
    operator = back.node.operator
    assert isinstance(operator, Transpose)
    rank = len(operator.perm)
    order = [axis % rank for axis in operator.perm]
    inverse = tuple(sorted(range(rank), key=order.__getitem__))
    return (back(Transpose(inverse), back.gradient) if rank else back.gradient,)


def expand(back: Backward) -> Sequence[Value | None]:
    """The sum over what a number was spread to."""
    return (back.summed(back.gradient, back.operands["x"].type.shape),)


def slice_(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Slice: dy at its places, with zeros before, behind and between."""
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, Slice)
    shape, found = x.type.shape, back.gradient
    walked = [factors[0] for factors in operator.map(shape).dims]
    backwards = tuple(i for i, axis in enumerate(walked) if axis.step < 0)
    if not prod(found.type.shape):
        return (back.zeros(shape),)
    if backwards:
        found = back(Flip(backwards), found)
    before, after = [0] * len(shape), [0] * len(shape)
    for i, axis in enumerate(walked):
        step = abs(axis.step)
        first = min(axis.start, axis.start + (axis.size - 1) * axis.step)
        if step > 1 and axis.size > 1:
            found = _apart(back, found, i, step)
        before[i], after[i] = first, shape[i] - first - found.type.shape[i]
    return (_padded(back, found, before, after),)


def _apart(back: Backward, value: Value, axis: int, step: int) -> Value:
    """Insert step - 1 zeros behind each place of `value` along `axis`."""
    shape = value.type.shape
    lead, rest = prod(shape[:axis]), prod(shape[axis + 1 :])
    places = back.reshape(value, (lead * shape[axis], 1, rest))
    wide = back(Pad((0, 0, 0), (0, step - 1, 0)), places)
    return back.reshape(wide, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))


def _padded(back: Backward, value: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    """Pad `value` with zeros, or crop it where a number is negative."""
    needed = any(before) or any(after)
    return back(Pad(tuple(before), tuple(after)), value) if needed else value


def flip(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Flip: dy flipped again."""
    return (back(back.node.operator, back.gradient),)


def roll(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Roll: dy rolled back."""
    operator = back.node.operator
    assert isinstance(operator, Roll)
    return (back(Roll(tuple(-n for n in operator.shifts), operator.axes), back.gradient),)


def pad(back: Backward) -> Sequence[Value | None]:
    """Return the gradient of Pad: dy without the padding; for the edges made of x's own numbers,
    the sum of dy over all copies of each number.
    """
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, Pad)
    found = back.gradient
    pairs = list(zip(operator.before, operator.after, strict=True))
    if operator.edge == "constant":
        return (_padded(back, found, [-b for b, _ in pairs], [-a for _, a in pairs]),)
    for i, (before, after) in enumerate(pairs):
        if before or after:
            size = x.type.shape[i]
            index = Pad((before,), (after,), operator.edge).moved(np.arange(size))
            found = added_at(back, found, i, Places.of(index[None]), size)
    return (found,)


def tile(back: Backward) -> Sequence[Value | None]:
    """The sum of all repetitions."""
    operator, x = back.node.operator, back.operands["x"]
    assert isinstance(operator, Tile)
    shape = list(back.gradient.type.shape)
    found = back.gradient
    for i, (count, size) in enumerate(zip(operator.repeats, x.type.shape, strict=True)):
        if count != 1:
            lead, rest = prod(shape[:i]), prod(shape[i + 1 :])
            shape[i] = size
            found = back(Reduce("sum", (1,)), back.reshape(found, (lead, count, size * rest)))
            found = back.reshape(found, tuple(shape))
    return (found,)


def rearrange(back: Backward) -> Sequence[Value | None]:
    """Sums of what each number went to, as if all were in one row."""
    operator = back.node.operator
    assert isinstance(operator, Rearrange)
    size = prod(operator.shape)
    index = operator.moved(np.arange(1, size + 1).reshape(operator.shape)) - 1
    row = back.reshape(back.gradient, (index.size,))
    found = added_at(back, row, 0, Places.of(index.reshape(1, -1)), size)
    return (back.reshape(found, operator.shape),)


def concat(back: Backward) -> Sequence[Value | None]:
    """Return the gradients of Concat: the piece of dy that came from each operand."""
    operator = back.node.operator
    assert isinstance(operator, Concat)
    found: list[Value | None] = []
    start = 0
    for value in back.node.inputs:
        assert value is not None
        end = start + value.type.shape[operator.axis]
        cut = Slice((start,), (end,), (operator.axis,), (1,))
        found.append(back(cut, back.gradient) if back.wants(value) else None)
        start = end
    return found


def split(back: Backward) -> Sequence[Value | None]:
    """The pieces behind one another, zeros where nothing depends on one."""
    operator = back.node.operator
    assert isinstance(operator, Split)
    outputs = back.node.outputs
    pieces = [
        back.zeros(value.type.shape) if gradient is None else gradient
        for gradient, value in zip(back.gradients, outputs, strict=True)
    ]
    return (back(Concat(operator.axis), *pieces) if len(pieces) > 1 else pieces[0],)


RULES: dict[type[Operator], Rule] = {
    Transpose: transpose,
    Expand: expand,
    Slice: slice_,
    Flip: flip,
    Roll: roll,
    Pad: pad,
    Tile: tile,
    Rearrange: rearrange,
    Concat: concat,
    Split: split,
}

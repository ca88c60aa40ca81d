"""Chains of moves as one: what they make is what the moves make one after another."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

from glnn.compiler import run
from glnn.core.types import Shape, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator
from glnn.graph.operators import Expand, Flip, Pad, Rearrange, Reshape, Slice, Transpose
from glnn.graph.passes.move_merging import MoveChain


def operators(chosen: random.Random, shape: Shape) -> Operator:
    """Any move or view of an array of `shape`."""
    rank, axis = len(shape), chosen.randrange(len(shape))
    size = shape[axis]
    match chosen.randrange(6):
        case 0:
            return Transpose(tuple(chosen.sample(range(rank), rank)))
        case 1 if rank > 1 and axis < rank - 1:
            joined = (*shape[:axis], size * shape[axis + 1], *shape[axis + 2 :])
            return Reshape(joined, True)
        case 1 | 2 if rank < 6:
            part = chosen.choice([n for n in range(1, size + 1) if size % n == 0])
            return Reshape((*shape[:axis], part, size // part, *shape[axis + 1 :]), True)
        case 3:
            first = chosen.randrange(size)
            last = chosen.randint(first + 1, size)
            return Slice((first,), (last,), (axis,), (chosen.choice((1, 2)),))
        case 4:
            return Flip((axis,))
        case 5:
            return Pad((0,) * rank, tuple(chosen.choice((0, 0, 1, 3)) for _ in shape))
    return Expand(tuple(3 if n == 1 and chosen.random() < 0.5 else n for n in shape))


def test_chains_are_what_their_moves_are() -> None:
    chosen = random.Random(7)
    found: dict[type[Operator], int] = {}
    for _ in range(3000):
        shape = tuple(chosen.choice((1, 2, 3, 4, 6)) for _ in range(chosen.randint(1, 4)))
        x = expected = np.arange(1, prod(shape) + 1).reshape(shape)
        chain: MoveChain | None = MoveChain.identity(shape)
        for _ in range(chosen.randint(1, 5)):
            operator = operators(chosen, expected.shape)
            (expected,) = operator.reference(expected)
            chain = None if chain is None else chain.then(operator)
        for operator in () if chain is None else chain.operators():
            (x,) = operator.reference(x)
            found[type(operator)] = found.get(type(operator), 0) + 1
        if chain is not None and chain.operators():
            np.testing.assert_array_equal(x, expected)
    assert found.keys() == {Reshape, Transpose, Slice, Rearrange}
    assert min(found.values()) > 50


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize(
    "operator",
    [
        Rearrange((5, 12), ((Axis(3, 1, 0, 4),), (Axis(5, 0),), (Axis(4, 1),))),
        Rearrange((5, 12), ((Axis(2, 1, 4, 4),), (Axis(8, 0),), (Axis(4, 1),))),
        Rearrange(
            (1, 8, 3, 5), ((), (Axis(4, 1, 0, 1), Axis(2, 1, 0, 4)), (Axis(3, 2),), (Axis(5, 3),))
        ),
    ],
    ids=["heads", "padded", "shuffled"],
)
def test_rearranged_on_a_gpu(backend, operator) -> None:
    builder = Builder()
    x = builder.input("x", TensorType(operator.shape))
    graph = builder.graph(builder.add(operator, x, name="y"))
    array = np.random.default_rng(1).random(operator.shape, np.float32)
    np.testing.assert_array_equal(run(graph, {"x": array}, backend)["y"], operator.move(array))


def test_what_leaves_the_operand_is_refused() -> None:
    with pytest.raises(ShapeError, match="is not within x"):
        Rearrange((5,), ((Axis(3, 0, 1, 2),),))
    with pytest.raises(ShapeError, match="x must have shape"):
        Rearrange((5,), ((Axis(3, 0),),)).infer([TensorType((4,))])

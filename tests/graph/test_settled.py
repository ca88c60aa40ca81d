"""Types and numbers that are known before a run."""

from __future__ import annotations

import numpy as np

from glnn.core.types import DType, TensorType
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Flatten, Pointwise


def test_types_that_are_asked_for_again_follow_from_what_is_asked() -> None:
    """The last answer is kept: by types, and by the numbers, which are the caller's to change."""
    builder = Builder()
    x, shape = builder.input("x", TensorType(("N", 3))), np.array([6], np.int64)
    (wide,) = builder.add(Flatten(0), x, name="flat")
    graph = builder.graph([wide])
    for size in (2, 2, 5, 2):
        types, _ = graph.propagate_constants({"x": TensorType((size, 3))})
        assert types[wide].shape == (3 * size,)
        types.clear()
    builder = Builder()
    given = builder.input("shape", TensorType((1,), DType.int64))
    (found,) = builder.add(Pointwise(call("add", Arg(0), Arg(0))), given, name="twice")
    graph = builder.graph([found])
    for number in (6, 6, 7):
        shape[0] = number
        _, known = graph.propagate_constants(
            {"shape": TensorType((1,), DType.int64)}, {"shape": shape}
        )
        assert known[found].tolist() == [2 * number]
        shape[0] = 0
        _, known = graph.propagate_constants(
            {"shape": TensorType((1,), DType.int64)}, {"shape": np.array([number])}
        )
        assert known[found].tolist() == [2 * number] and known[given].tolist() == [number]

"""Sizes as places of expressions: templates make what a substitution makes."""

from __future__ import annotations

from typing import Any

import numpy as np

from glnn.core.size_table import SizeTable, Template, compiled
from glnn.core.symint import ShapeEnv, Substitution, SymFloat, SymInt
from glnn.core.types import DType, TensorType
from glnn.graph.operators import Reshape, Slice


def _symbol() -> SymInt:
    found: Any = ShapeEnv().symbol("N", 20, (8, 31))
    assert isinstance(found, SymInt)
    return found


def test_templates_make_what_substitutions_make() -> None:
    n = _symbol()
    values: list[Any] = [
        *(3, "a", None, DType.int32, (1, (2, 3)), TensorType((4, 5))),
        *(n, n + 1, n // 3, SymFloat.create(2 * n), (1, (n, "a")), [n, 2], {"a": n, "b": 1}),
        *(TensorType((n, 4)), Slice((n,), (n + 1,), (0,), (1,)), Reshape((n, 4)), TensorType),
        (Reshape((2, n)), (("x", TensorType((n, 3), DType.int64)),)),
    ]
    sizes = SizeTable()
    made = [Template(one, sizes) for one in values]
    for size in (8, 11, 31):
        numbers = compiled(sizes.expressions, ["N"])((size,))
        change = Substitution.by_sizes({"N": size})
        for value, template in zip(values, made, strict=True):
            expected, found = change(value), template(numbers)
            assert found == expected and type(found) is type(expected)
            assert template.is_open == (expected is not value)


def test_templates_of_arrays_with_sizes() -> None:
    sizes, n = SizeTable(), _symbol()
    template = Template(np.array([[n, 2], [n + 1, 4]], object), sizes)
    found = template(compiled(sizes.expressions, ["N"])((9,)))
    assert found.tolist() == [[9, 2], [10, 4]]

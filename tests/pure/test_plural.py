"""Numbers of things: one, several, none."""

from __future__ import annotations

import pytest

from glnn.core.plural import count_of


@pytest.mark.parametrize(
    ("number", "what", "expected"),
    [
        (1, "step", "1 step"),
        (2, "step", "2 steps"),
        (0, "step", "0 steps"),
        (1, "entry", "1 entry"),
        (3, "entry", "3 entries"),
        (2, "array", "2 arrays"),
        (2, "class", "2 classes"),
        (2, "batch", "2 batches"),
        (2, "launch of one part", "2 launches of one part"),
        (2, "kernel in large launches", "2 kernels in large launches"),
    ],
)
def test_the_noun_follows_the_number(number: int, what: str, expected: str) -> None:
    assert count_of(number, what) == expected

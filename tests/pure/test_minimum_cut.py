"""The cheapest way to part a graph in two, held against all ways."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.compiler.cpu_fallback import LeastCut

FIRST, LAST = "first", "last"


def all_ways(names: list[str], costs: dict[tuple[str, str], float]) -> list[tuple[float, set[str]]]:
    """What each way costs, and who goes with the first side."""
    found = []
    for sides in product((False, True), repeat=len(names)):
        chosen = {FIRST, *(name for name, side in zip(names, sides, strict=True) if side)}
        cost = sum(c for (a, b), c in costs.items() if a in chosen and b not in chosen)
        found.append((cost, chosen))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_other_way_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(6)]
    ends = [FIRST, *names, LAST]
    pairs = [(a, b) for a in ends for b in ends if a != b and rng.random() < 0.4]
    costs = {pair: float(rng.integers(1, 9)) for pair in pairs if pair != (LAST, FIRST)}
    cut = LeastCut()
    for (a, b), cost in costs.items():
        cut.add(a, b, cost)
    ways = all_ways(names, costs)
    least = min(cost for cost, _ in ways)
    side = cut.first_side(FIRST, LAST)
    assert (least, side) in ways
    assert len(side) == min(len(chosen) for cost, chosen in ways if cost == least)


def test_what_nothing_is_known_of_stays() -> None:
    assert LeastCut().first_side(FIRST, LAST) == {FIRST}

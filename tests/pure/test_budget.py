"""What a plan gives up where memory is short, held against all that it might."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

import pytest

from glnn.backends.backend import Alternative
from glnn.compiler.memory_budget import Budget, Decision, Selection, fit_plan
from glnn.kernels.cost_model import Prediction


@dataclass(frozen=True)
class Named:
    name: str


def decision(*options: tuple[float, int, int], arena: int = 0) -> Decision:
    """Of options by seconds, bytes of weights and of what is there at the same time."""
    found = [
        Alternative(Named(str(i)), Prediction(seconds, weights, ()))
        for i, (seconds, weights, _) in enumerate(options)
    ]
    return Decision(tuple(found), arena, tuple(level for *_, level in options))


def seconds(budget: Budget, taken: Selection) -> float:
    return sum(d.seconds(taken.get(i, 0)) for i, d in enumerate(budget.decisions))


LAYERS = Budget(
    [
        decision((1, 9, 30), (1.1, 9, 20), (2, 4, 40), (5, 1, 10)),
        decision((2, 36, 8), (3, 16, 12), (6, 9, 5)),
        decision((2, 36, 8), (2.5, 16, 12), (6, 9, 5)),
    ],
    [6],
    100,
)


@pytest.mark.parametrize(
    ("nbytes", "taken"),
    [
        (211, {}),  # what all of it needs
        (210, {0: 1}),  # in parts, which costs the least time
        (201, {0: 1}),
        (200, {2: 1}),  # what costs the least time for as many bytes
        (161, {0: 1, 1: 1, 2: 1}),
        (129, {0: 3, 1: 2, 2: 2}),  # the least there is
    ],
)
def test_what_is_given_up(nbytes: int, taken: Selection) -> None:
    found = LAYERS.fit(nbytes)
    assert found is not None and LAYERS.need(found) <= nbytes
    assert {i: option for i, option in found.items() if option} == taken


def test_nothing_does() -> None:
    assert LAYERS.need(LAYERS.smallest()) == 129
    assert LAYERS.fit(128) is None


def test_what_many_must_do_together() -> None:
    """Each by itself would need more; all of them need less."""
    budget = Budget([decision((1, 10, 0), (1, 0, 20)) for _ in range(3)], [0], 0)
    assert budget.need(budget.smallest()) == 20
    assert budget.fit(20) == dict.fromkeys(range(3), 1)


@pytest.mark.parametrize("seed", range(60))
def test_any_budget(seed: int) -> None:
    draw = random.Random(seed)
    arenas = draw.choice([1, 1, 2])
    decisions = [
        decision(
            *(
                (draw.random(), draw.randrange(40), draw.randrange(60))
                for _ in range(draw.choice([2, 3, 4]))
            ),
            arena=draw.randrange(arenas),
        )
        for _ in range(draw.choice([1, 2, 3, 4]))
    ]
    budget = Budget.from_need(1000, decisions, [draw.randrange(50) for _ in range(arenas)])
    assert budget.need({}) == 1000
    ways = [
        dict(enumerate(way)) for way in product(*(range(len(d.options)) for d in budget.decisions))
    ]
    least = min(map(budget.need, ways))
    assert budget.need(budget.smallest()) == least
    assert budget.fit(least - 1) is None
    for nbytes in (least, draw.randint(least, 1000), max(least, 999)):
        found = budget.fit(nbytes)
        assert found is not None and budget.need(found) <= nbytes
        for i in found:  # nothing more need be given up than is
            for option in range(len(budget.decisions[i].options)):
                other = {**found, i: option}
                assert budget.need(other) > nbytes or seconds(budget, other) >= seconds(
                    budget, found
                )
    assert not any(budget.fit(1000) or {})


@dataclass(frozen=True)
class Made:
    taken: Selection
    need: int


@pytest.mark.parametrize("off", [0, 3, 17, -20])
def test_the_estimate_may_be_off(off: int) -> None:
    """What is not given up as it was chosen needs more, or less, than was thought."""

    def decided(taken: Selection) -> Made:
        given_up = sum(option > 0 for option in taken.values())
        return Made(taken, LAYERS.need(taken) + (off if 0 < given_up < 3 else 0))

    for available in range(129, 211):
        assert fit_plan(LAYERS, decided, available).need <= available
    assert fit_plan(LAYERS, decided, 128).need == 129

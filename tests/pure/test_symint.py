"""Integers that stand for sizes: whatever holds for the hints holds where the guards do."""

from __future__ import annotations

import operator
import random
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from glnn.core.symint import (
    ShapeEnv,
    Substitution,
    SymFloat,
    SymInt,
    as_constant,
    at_most,
    common_unit,
    divides,
    evaluate,
    greatest,
    hint,
    integers,
    is_integer,
    same,
)
from glnn.core.types import TensorType
from glnn.graph.functions import FUNCTIONS

COMPARED = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
Operation = tuple[str, int, int, int | None]


def computed(values: list[Any], operations: list[Operation]) -> list[Any]:
    """What a program makes of `values`, by arithmetic and comparisons that it branches on."""
    found = list(values)
    for name, i, j, constant in operations:
        a = found[i % len(found)]
        b = found[j % len(found)] if constant is None else constant
        if name == "+":
            found.append(a + b)
        elif name == "-":
            found.append(a - b)
        elif name == "*":
            found.append(a * b)
        elif name == "neg":
            found.append(-a)
        elif name == "from":
            found.append(b // a if a > 0 else a)
        elif name == "//":
            found.append(a // b if b > 0 else a)
        else:
            found.append(a % b if b > 0 else a)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_programs_do_the_same_for_all_sizes_for_which_the_guards_hold(seed) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        trace, sizes = ShapeEnv(), dict[str, int]()
        symbols = []
        for name in "whn":
            low = draw.choice((1, 2, 16, 64))
            high = low * draw.choice((1, 2, 4, 8)) + draw.randint(0, 3)
            sizes[name] = draw.randint(low, high)
            symbols.append(trace.symbol(name, sizes[name], (low, high)))
        names = ("+", "-", "*", "//", "%", "from", "neg")
        constants = (None, 1, 2, 3, 4, 8, 16, 48, -1, 0)
        operations = [
            (draw.choice(names), draw.randint(0, 9), draw.randint(0, 9), draw.choice(constants))
            for _ in range(draw.randint(1, 7))
        ]
        symbolic = computed(symbols, operations)
        numbers = computed(list(sizes.values()), operations)
        asked = [(draw.choice(COMPARED), draw.randrange(len(numbers)), draw.randrange(-4, 65))]
        answers = [compare(symbolic[i], n) for compare, i, n in asked]
        assert list(map(hint, symbolic)) == numbers
        assert answers == [compare(numbers[i], n) for compare, i, n in asked]
        for _ in range(10):
            others = {name: draw.randint(*trace.bounds[name]) for name in sizes}
            if trace.holds(others):
                there = computed(list(others.values()), operations)
                assert Substitution.by_sizes(others)(tuple(symbolic)) == tuple(there)
                assert answers == [compare(there[i], n) for compare, i, n in asked]


def test_what_is_certain_makes_no_guard() -> None:
    trace = ShapeEnv()
    w = trace.symbol("w", 320, (128, 511))
    assert w > 1 and w != 1 and w // 2 >= 64 and (w + 1) // 2 < 300 and 4 * w != 3
    assert w - w // 2 > 63 and 3 * w - 5 * (w // 2) != 0 and w // 2 - w < -63
    assert (4 * w) % 4 == 0 and (4 * w + 8) // 4 == w + 2 and w - w == 0 and 3 * w // w == 3
    assert not trace.guards and not trace.pinned


def test_what_is_not_is_a_guard() -> None:
    trace = ShapeEnv()
    w = trace.symbol("w", 320, (128, 511))
    assert w % 4 == 0 and w < 400
    assert trace.holds({"w": 128}) and trace.holds({"w": 396})
    assert not any(trace.holds({"w": size}) for size in (127, 321, 400, 512))


@pytest.mark.parametrize(
    "take",
    [int, float, str, operator.index, range, lambda w: f"{w}", lambda w: [0] * w, np.zeros],
    ids=["int", "float", "str", "index", "range", "text", "list", "zeros"],
)
def test_who_takes_the_number_has_it_for_that_size_alone(take) -> None:
    trace = ShapeEnv()
    w = trace.symbol("w", 320, (128, 511))
    take(w)
    assert trace.pinned and trace.holds({"w": 320}) and not trace.holds({"w": 321})


def test_sizes_are_divided_as_integers() -> None:
    """By ONNX's Div: towards 0, and 0 where the divisor is."""
    trace = ShapeEnv()
    w = trace.symbol("w", 321, (128, 511))
    of = np.array([w, 1 - w, 7, -7, w], object)
    found = FUNCTIONS["div"].evaluate(of, np.array([2, 2, 2, 2, 0]))
    assert not trace.pinned
    for size in (321, 500):
        change = Substitution.by_sizes({"w": size})
        assert change(found).tolist() == [size // 2, -((size - 1) // 2), 3, -3, 0]


def test_a_hint_is_taken_without_a_guard() -> None:
    trace = ShapeEnv()
    assert hint(trace.symbol("w", 320, (128, 511)) // 3) == 106 and not trace.guards


def test_what_is_asked_of_a_copy_is_a_guard_of_the_same_trace() -> None:
    trace = ShapeEnv()
    numbers = np.array([trace.symbol("w", 1, (0, 7))], object)
    assert deepcopy({"numbers": numbers})["numbers"][0] == 1
    assert trace.holds({"w": 1}) and not trace.holds({"w": 2})


def test_symbols_of_two_traces_are_never_the_same() -> None:
    one, other = (ShapeEnv().symbol("w", 320, (128, 511)) for _ in range(2))
    known = {TensorType((one, 3)): "one"}
    assert TensorType((other, 3)) not in known and TensorType((320, 3)) not in known
    assert one != other and repr(one) != repr(other)


def test_a_size_that_has_no_other_is_a_number() -> None:
    trace = ShapeEnv()
    assert type(trace.symbol("n", 1, (1, 1))) is int
    assert trace.holds({"n": 1}) and not trace.holds({"n": 2})
    with pytest.raises(ValueError, match="'w': 5 is not within"):
        trace.symbol("w", 5, (8, 31))


def test_numbers_in_the_place_of_symbols() -> None:
    @dataclass(frozen=True)
    class Made:
        shape: tuple[int, ...]
        name: str = "made"

    trace = ShapeEnv()
    w = trace.symbol("w", 320, (128, 511))
    put = Substitution.by_sizes({"w": 200})
    same = Made((3, 4))
    assert put(same) is same and put({"a": same})["a"] is same
    assert put(Made((w, 4))) == Made((200, 4)) and put([w // 3, 1]) == [66, 1]
    sizes = integers((w, 2 * w, 7))
    assert sizes.dtype == object and put(sizes).tolist() == [200, 400, 7]
    assert integers((1, 2)).dtype == np.int64
    assert is_integer(w) and is_integer(3) and not is_integer(True) and not is_integer(3.0)
    assert isinstance(w, SymInt) and evaluate(w.expr, {"w": 9}) == 9
    assert not trace.guards


def test_what_is_the_same_for_all_sizes_is_known_without_a_guard() -> None:
    trace = ShapeEnv()
    w, h = trace.symbol("w", 48, (32, 127)), trace.symbol("h", 48, (32, 127))
    assert same(w, w) and same((2 * w, 3), [w + w, 3]) and divides(4, 8 * w + 4)
    assert (
        divides(w, 3 * w)
        and not same(w, h)
        and not same(w, 48)
        and not divides(16, w)
        and not divides(w, 48)
    )
    assert at_most(w, 127) and not at_most(w, 126) and at_most(w // 4 * 4, w)
    assert common_unit(8 * w, 16) == 8 and common_unit(w, 16) == 1
    assert [common_unit(n, 16) for n in (0, 1, 6, 24, 48)] == [16, 1, 2, 8, 16]
    assert not trace.guards
    assert not same((1, 2), (1, 2, 3)) and same((1, 2), (1, 2)) and divides(3, 9) and at_most(3, 3)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_hold_for_all_sizes_that_the_guards_admit(seed) -> None:
    """Also where remainders, common factors and earlier guards make them closer."""
    draw = random.Random(100 + seed)
    for _ in range(40):
        trace, sizes, values = ShapeEnv(), dict[str, int](), list[Any]()
        for name in "wh":
            low = draw.choice((1, 2, 8))
            sizes[name] = draw.randint(low, 5 * low)
            values.append(trace.symbol(name, sizes[name], (low, 5 * low + 1)))
        operations = [
            (draw.choice(("+", "-", "*", "//", "%")), draw.randint(0, 7), draw.randint(0, 7), n)
            for n in draw.choices((None, 2, 3, 4), k=6)
        ]
        symbolic = [one for one in computed(values, operations) if isinstance(one, SymInt)]
        for one in symbolic:
            draw.choice(COMPARED)(one, draw.randint(-3, 12))
        for _ in range(20):
            others = {name: draw.randint(*trace.bounds[name]) for name in sizes}
            if trace.holds(others):
                for one in symbolic:
                    low, high = trace.range(one.expr)
                    assert low <= evaluate(one.expr, others) <= high


def test_a_guard_is_asked_once_for_what_it_decides() -> None:
    trace = ShapeEnv()
    w, h = trace.symbol("w", 48, (32, 127)), trace.symbol("h", 48, (32, 127))
    assert w < 64 and not w > 64 and greatest(w) == 63 and h * w > 40 * w
    assert len(trace.guards) == 2 and not h < 41 and h * w * 4 > 40 * 4 * w
    assert 48 - h == 0 and h == 48 and greatest(h) == 48
    assert len(trace.guards) == 3


def test_a_question_has_one_answer_whatever_is_learned_later() -> None:
    trace = ShapeEnv()
    w = trace.symbol("w", 48, (32, 127))
    even, half = divides(2, w), w // 2
    assert not even and not same(half, w - half) and not at_most(w, 48) and greatest(w) == 127
    assert w == 48 and w == 2 * half  # guards, by which all of it is so
    assert not divides(2, w) and not same(half, w - half) and greatest(w) == 127
    assert w // 2 == half and not w > 48 and trace.range(w.expr) == (48, 48)


def test_a_constant_is_a_guard_and_no_pin() -> None:
    trace = ShapeEnv()
    w = trace.symbol("w", 48, (32, 127))
    assert as_constant(w // 32) == 1 and type(as_constant(w // 32)) is int and as_constant(7) == 7
    assert not trace.pinned and trace.holds({"w": 63}) and not trace.holds({"w": 64})


def test_a_size_as_a_float_stays_open() -> None:
    trace = ShapeEnv()
    found = SymFloat.create(trace.symbol("w", 48, (32, 127)))
    assert found == 48.0 and type(SymFloat.create(3)) is float and not trace.guards
    assert Substitution.by_sizes({"w": 50})((found, 1.5)) == (50.0, 1.5)


def test_what_holds_no_size_is_looked_through_once(monkeypatch) -> None:
    """Another substitution gives it back at once; what holds one is looked through by each."""
    trace = ShapeEnv()
    width = trace.symbol("width", 9, (8, 31))
    plain, sized = TensorType((3, 9)), TensorType((3, width))
    looked: list[object] = []
    made = Substitution._made

    def noted(self, value):
        looked.append(value)
        return made(self, value)

    for _ in range(2):
        assert Substitution(hint)(plain) is plain
        assert Substitution(hint)(sized) == plain
    monkeypatch.setattr(Substitution, "_made", noted)
    assert Substitution(hint)(plain) is plain and looked == [plain], "none of its parts"
    assert Substitution(hint)(sized).dims == (3, 9) and sized.dims in looked

"""Programs of several expressions against the same formulas written out in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.core.types import Array
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.expression_evaluation import PackedProgram, packed_program

SHAPE = (2, 3, 5)
Formula = Callable[..., tuple[Array, ...]]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm() -> tuple[Expr, ...]:
    """Gates i, o, f, c of four sums and four inputs; states h and c."""
    gates = [call("add", Arg(i), Arg(4 + i)) for i in range(4)]
    i, o, f = (call("sigmoid", gate) for gate in gates[:3])
    cell = call("add", call("mul", f, Arg(9)), call("mul", i, call("tanh", gates[3])))
    return call("mul", o, call("tanh", cell)), cell


def lstm_written_out(*a: Array) -> tuple[Array, ...]:
    i, o, f = (sigmoid(a[k] + a[4 + k]) for k in range(3))
    cell = f * a[9] + i * np.tanh(a[3] + a[7])
    return o * np.tanh(cell), cell


CASES: dict[str, tuple[tuple[Expr, ...], tuple[int, ...], Formula]] = {
    "lstm": (lstm(), (4, 4, 2), lstm_written_out),
    "an argument alone, and twice": (
        (Arg(1), call("mul", Arg(0), 2.0), Arg(1)),
        (1, 1),
        lambda a, b: (b, 2 * a, b),
    ),
    "a number alone": ((call("mul", 3.0, 0.5), Arg(0)), (1,), lambda a: (np.full_like(a, 1.5), a)),
    "comparisons": (
        tuple(call("where", call("greater", Arg(i), 0.0), Arg(i), 0.25) for i in range(3)),
        (3,),
        lambda *a: tuple(np.where(one > 0, one, 0.25) for one in a),
    ),
    "one operand of all": (
        tuple(call("add", call("sub", 1.0, Arg(i)), Arg(3)) for i in range(3)),
        (3, 1),
        lambda *a: tuple(1 - one + a[3] for one in a[:3]),
    ),
    "backwards": (
        tuple(call("sub", Arg(2 - i), Arg(3 + i)) for i in range(3)),
        (3, 3),
        lambda *a: tuple(a[2 - i] - a[3 + i] for i in range(3)),
    ),
    "functions of others": (
        tuple(call("hardsigmoid", Arg(i), 0.2, 0.5) for i in range(2)),
        (1, 1),
        lambda *a: tuple(np.clip(0.2 * one + 0.5, 0, 1) for one in a),
    ),
    "relu": (
        tuple(call("relu", Arg(i)) for i in range(2)),
        (2,),
        lambda *a: tuple(np.maximum(one, 0) for one in a),
    ),
}


def evaluated(program: PackedProgram, banks: list[Array], count: int) -> Array:
    out = np.empty((count, *banks[0].shape[1:]), banks[0].dtype)
    for work in program.bind(banks, out):
        work()
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_as_written_out(name: str, dtype: type) -> None:
    exprs, counts, formula = CASES[name]
    rng = np.random.default_rng(1)
    banks = [rng.standard_normal((count, *SHAPE)).astype(dtype) for count in counts]
    program = packed_program(exprs, counts, np.dtype(dtype))
    found = evaluated(program, banks, len(exprs))
    expected = np.stack(formula(*(one.astype(np.float64) for bank in banks for one in bank)))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps, atol=1e-7)


def test_what_is_alike_is_one_call() -> None:
    """The sums and the inputs of all gates are added at once, and three sigmoids are one."""
    program = packed_program(lstm(), (4, 4, 2), np.dtype(np.float32))
    counts = [(one.row.name, one.count) for one in program.instructions]
    assert counts[:3] == [("add", 4), ("sigmoid", 3), ("tanh", 1)]
    assert len(counts) == 8


def test_calls_are_repeated_on_what_the_banks_hold_then() -> None:
    bank, out = np.ones((1, 4), np.float32), np.empty((1, 4), np.float32)
    work = packed_program((call("mul", Arg(0), 2.0),), (1,), bank.dtype).bind([bank], out)
    for _ in range(3):
        for one in work:
            one()
        np.copyto(bank, out)
    assert out.tolist() == [[8.0] * 4]

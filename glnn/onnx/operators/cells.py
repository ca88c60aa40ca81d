"""What recurrent layers compute at each unit in a step."""

from __future__ import annotations

from collections.abc import Callable

from glnn.graph.compose.recurrent import Phase
from glnn.graph.expression import Arg, Expr
from glnn.graph.expression import call as apply
from glnn.onnx.operators.activation import Activation
from glnn.onnx.operators.call import Call


def _clipped(call: Call) -> Callable[[Expr], Expr]:
    limit = float(call.get("clip", 0.0))
    return (lambda x: apply("clip", x, -limit, limit)) if limit > 0 else (lambda x: x)


def lstm(
    call: Call, f: Activation, g: Activation, h: Activation, *, peeps: bool
) -> tuple[Phase, ...]:
    """Gates i, o, f, c: four sums, four inputs; then states h, c and the peepholes of i, o, f."""
    clip, before = _clipped(call), Arg(9)

    def gate(i: int, cell: Expr) -> Expr:
        total = apply("add", Arg(i), Arg(4 + i))
        if peeps and i < 3:
            total = apply("add", total, apply("mul", Arg(10 + i), cell))
        return clip(total)

    forget_now = f(gate(0, before))
    kept = apply("sub", 1.0, forget_now) if call.get("input_forget", 0) else f(gate(2, before))
    cell = apply("add", apply("mul", kept, before), apply("mul", forget_now, g(gate(3, before))))
    hidden = apply("mul", f(gate(1, cell)), h(cell))
    constant = tuple(Arg(10 + i) for i in range(3 if peeps else 0))
    return (Phase((hidden, cell, *constant), (0, 4)),)


def gru(
    call: Call, f: Activation, g: Activation, after: bool, *, biased: bool = False
) -> tuple[Phase, ...]:
    """Gates z, r, h. after: the reset gate follows the product. biased: whose bias is the second
    state then.
    """
    clip = _clipped(call)

    def mixed(z: Expr, new: Expr, h: Expr) -> Expr:
        return apply("add", apply("mul", apply("sub", 1.0, z), new), apply("mul", z, h))

    if after:
        z, r = (f(clip(apply("add", Arg(i), Arg(3 + i)))) for i in (0, 1))
        product = apply("mul", r, apply("add", Arg(2), Arg(7)) if biased else Arg(2))
        new = g(clip(apply("add", Arg(5), product)))
        constant = (Arg(7),) if biased else ()
        return (Phase((mixed(z, new, Arg(6)), *constant), (0, 3)),)
    z, r = (f(clip(apply("add", Arg(i), Arg(2 + i)))) for i in (0, 1))
    new = g(clip(apply("add", Arg(0), Arg(3))))
    return (
        Phase((Arg(5), z, apply("mul", r, Arg(5))), (0, 2)),
        Phase((mixed(Arg(5), new, Arg(4)),), (2, 3), 2),
    )


def rnn(call: Call, f: Activation) -> tuple[Phase, ...]:
    """One gate."""
    return (Phase((f(_clipped(call)(apply("add", Arg(0), Arg(1)))),), (0, 1)),)

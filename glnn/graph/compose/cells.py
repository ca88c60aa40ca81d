"""Cells of recurrent layers: the expressions of LSTM, GRU and RNN for one unit and one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glnn.graph.compose.recurrent import Phase
from glnn.graph.expression import Arg, Expr, call

Activation = Callable[[Expr], Expr]
IOFC = (0, 1, 2, 3)
"""Places of an LSTM's gates in ONNX: input, output, forget, cell."""
ZRH = (0, 1, 2)
"""Places of a GRU's gates in ONNX: update, reset, hidden."""


def _clipped(limit: float) -> Activation:
    return (lambda x: call("clip", x, -limit, limit)) if limit > 0 else (lambda x: x)


def lstm(
    f: Activation,
    g: Activation,
    h: Activation,
    *,
    peeps: bool = False,
    coupled: bool = False,
    limit: float = 0.0,
    order: Sequence[int] = IOFC,
) -> tuple[Phase, ...]:
    """Return the phase of an LSTM: four gates, four inputs; then states h, c and the peepholes of
    the first three gates.

    coupled: the forget gate is what the input gate leaves. limit: sums are clipped to it, where it
    is above 0. order: where the gates i, o, f, c lie.
    """
    clip, before = _clipped(limit), Arg(9)

    def gate(i: int, cell: Expr) -> Expr:
        total = call("add", Arg(order[i]), Arg(4 + order[i]))
        if peeps and i < 3:
            total = call("add", total, call("mul", Arg(10 + i), cell))
        return clip(total)

    forget_now = f(gate(0, before))
    kept = call("sub", 1.0, forget_now) if coupled else f(gate(2, before))
    cell = call("add", call("mul", kept, before), call("mul", forget_now, g(gate(3, before))))
    hidden = call("mul", f(gate(1, cell)), h(cell))
    constant = tuple(Arg(10 + i) for i in range(3 if peeps else 0))
    return (Phase((hidden, cell, *constant), (0, 4)),)


def gru(
    f: Activation, g: Activation, *, after: bool, biased: bool = False, limit: float = 0.0
) -> tuple[Phase, ...]:
    """Gates z, r, h. after: the reset gate follows the product. biased: whose bias is the second
    state then. limit: sums are clipped to it, where it is above 0.
    """
    if after:
        return gru_after(f, g, biased=biased, limit=limit)
    clip = _clipped(limit)
    z, r = (f(clip(call("add", Arg(i), Arg(2 + i)))) for i in (0, 1))
    new = g(clip(call("add", Arg(0), Arg(3))))
    return (
        Phase((Arg(5), z, call("mul", r, Arg(5))), (0, 2)),
        Phase((_mixed(Arg(5), new, Arg(4)),), (2, 3), 2),
    )


def gru_after(
    f: Activation,
    g: Activation,
    *,
    biased: bool,
    limit: float = 0.0,
    order: Sequence[int] = ZRH,
) -> tuple[Phase, ...]:
    """Return the phases of a GRU whose reset gate is applied after the product. order: the places
    of the gates z, r, h.
    """
    clip, (update, reset, hidden) = _clipped(limit), order
    z, r = (f(clip(call("add", Arg(i), Arg(3 + i)))) for i in (update, reset))
    own = call("add", Arg(hidden), Arg(7)) if biased else Arg(hidden)
    new = g(clip(call("add", Arg(3 + hidden), call("mul", r, own))))
    constant = (Arg(7),) if biased else ()
    return (Phase((_mixed(z, new, Arg(6)), *constant), (0, 3)),)


def rnn(f: Activation, *, limit: float = 0.0) -> tuple[Phase, ...]:
    """Return the phase of a plain RNN, which has one gate."""
    return (Phase((f(_clipped(limit)(call("add", Arg(0), Arg(1)))),), (0, 1)),)


def _mixed(z: Expr, new: Expr, h: Expr) -> Expr:
    return call("add", call("mul", call("sub", 1.0, z), new), call("mul", z, h))

"""Steps of recurrent layers."""

from __future__ import annotations

from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import RecurrentStep
from tests.gradients.case import Case

RNN = (call("tanh", call("add", Arg(0), Arg(1))),)
_gates = [call("add", Arg(i), Arg(4 + i)) for i in range(4)]
_in, _out, _forget = (call("sigmoid", gate) for gate in _gates[:3])
_cell = call("add", call("mul", _forget, Arg(9)), call("mul", _in, call("tanh", _gates[3])))
LSTM = (call("mul", _out, call("tanh", _cell)), _cell)

CASES = [
    Case("rnn step", RecurrentStep(RNN, 1), ((1, 3, 2, 1, 4), (1, 1, 4, 4), (1, 2, 1, 1, 4))),
    Case(
        "rnn step of few units",
        RecurrentStep(RNN, units=3),
        ((2, 1, 3, 1, 4), (2, 1, 4, 4), (2, 3, 1, 1, 4)),
    ),
    Case(
        "lstm step",
        RecurrentStep(LSTM, 0, 0, 7),
        ((2, 2, 1, 4, 8), (2, 4, 8, 8), (2, 1, 2, 2, 4)),
    ),
    Case(
        "second state",
        RecurrentStep((formula("a * c"), formula("d * d")), 0, 1),
        ((1, 1, 3, 1, 4), (1, 1, 4, 4), (1, 3, 1, 2, 4)),
    ),
]

"""A layer of an LSTM, a GRU or an RNN, over all steps and in one direction or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.compose import cells
from glnn.graph.compose.directions import Operands, run
from glnn.graph.compose.maker import Maker
from glnn.graph.compose.matmul import matmul
from glnn.graph.compose.recurrent import Phase
from glnn.graph.composite import Composite
from glnn.graph.expression import Expr, call
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.graph.operators import Concat, Expand, Matmul, Pad, Slice, Transpose
from glnn.types import UNRANKED, TensorType

GATES: Mapping[str, int] = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Number of gates of a unit, by kind."""
IFGO = (0, 3, 1, 2)
"""Places of an LSTM's gates i, o, f, c in PyTorch's parameters."""
RZN = (1, 0, 2)
"""Places of a GRU's gates z, r, h in PyTorch's parameters."""


@dataclass(frozen=True, eq=False)
class RecurrentLayer(Composite):
    """x (t, b, i) to y (t, b, d p), the last h (d, b, p) and, of an LSTM, the last c (d, b, u).

    For d directions, of which the second runs from the last step to the first; i inputs, u units,
    and p = u numbers of a result, or fewer of an LSTM that projects them. Operands behind x are,
    for each direction, weight_ih (g u, i), weight_hh (g u, p), bias_ih and bias_hh (g u,) and
    weight_hr (p, u), as far as it has them; then, unless they are zeros, the first h and c. All are
    float32. Gates lie as in PyTorch: of an LSTM i, f, g, o, of a GRU r, z, n, whose reset gate
    follows the product. Hochreiter and Schmidhuber 1997, Cho et al. 2014, Sak et al. 2014, Long
    Short-Term Memory Based Recurrent Neural Network Architectures.
    """

    name: ClassVar[str] = "recurrent_layer"
    kind: str
    """The kind of layer: a key of `GATES`."""
    directions: int = 1
    """Number of directions, 1 or 2."""
    biased: bool = True
    """True where there are biases."""
    projected: bool = False
    """True where the units are projected."""

    def __post_init__(self) -> None:
        strange = self.projected and self.kind != "lstm"
        if self.kind not in GATES or self.directions not in (1, 2) or strange:
            raise ShapeError(f"recurrent_layer: no such attributes: {self}")

    def __reduce__(self) -> tuple[Any, ...]:
        return RecurrentLayer, self._attributes  # without the graphs that it keeps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecurrentLayer) and self._attributes == other._attributes

    def __hash__(self) -> int:
        return hash(self._attributes)

    @property
    def _attributes(self) -> tuple[Any, ...]:
        return self.kind, self.directions, self.biased, self.projected

    def __str__(self) -> str:
        return self.kind

    @property
    def parts(self) -> tuple[str, ...]:
        """The operands of a direction."""
        biases = ("bias_ih", "bias_hh") if self.biased else ()
        return ("weight_ih", "weight_hh", *biases, *(("weight_hr",) if self.projected else ()))

    @property
    def states(self) -> int:
        """Number of states after the last step: 2 of an LSTM, else 1."""
        return 2 if self.kind == "lstm" else 1

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        missing = TensorType((UNRANKED,))
        return (missing,) * (1 + self.states)

    def expand(self, operand_values: Sequence[Value | None]) -> Graph:
        operands = [value for value in operand_values if value is not None]
        own, count = 1 + len(self.parts) * self.directions, len(operands)
        if count not in (own, own + self.states):
            raise ShapeError(f"{self.kind}: there must be {own} operands and states, got {count}")
        make = Maker(Builder(self.name), self.kind)
        for value in operands:
            if value.kind is not Kind.CONSTANT:
                make.builder.take(value)
        x, weights, states = operands[0], operands[1:own], operands[own:]
        parts = {
            name: _stacked(make, weights[i :: len(self.parts)]) for i, name in enumerate(self.parts)
        }
        taken = self._operands(make, x, parts, states)
        biased = len(taken.states) > self.states
        backwards = (False, True)[: self.directions]
        y, *ends = run(make, taken, self._phases(biased), backwards, self.states)
        if self.projected:
            ends[0] = matmul(make, ends[0], parts["weight_hr"], transposed=True)
        return make.builder.graph([self._joined(make, y, parts.get("weight_hr")), *ends])

    def _joined(self, make: Maker, y: Value, down: Value | None) -> Value:
        """Project y (t, d, b, u) by `down` and put directions behind one another: (t, b, d p)."""
        t, d, b, u = y.type.shape
        if down is None:
            y = make(Transpose((0, 2, 1, 3)), y) if d > 1 else y
            return make.reshape(y, (t, b, d * u))
        (_, p, _), found = down.type.shape, []
        for i in range(d):
            one = make(Slice((i,), (i + 1,), (1,), (1,)), y) if d > 1 else y
            weight = make(Slice((i,), (i + 1,), (0,), (1,)), down) if d > 1 else down
            rows = make(Matmul(), make.reshape(one, (t * b, u)), make.reshape(weight, (p, u)))
            found.append(make.reshape(rows, (t, b, p)))
        return make(Concat(2), *found) if d > 1 else found[0]

    def _phases(self, biased: bool) -> tuple[Phase, ...]:
        if self.kind == "lstm":
            return cells.lstm(_sigmoid, _tanh, _tanh, order=IFGO)
        if self.kind == "gru":
            return cells.gru_after(_sigmoid, _tanh, biased=biased, order=RZN)
        return cells.rnn(_tanh if self.kind == "rnn_tanh" else _relu)

    def _operands(
        self, make: Maker, x: Value, parts: Mapping[str, Value], states: Sequence[Value]
    ) -> Operands:
        """Return the operands of all directions. A GRU's last bias stays with its product: it is
        passed as a state that never changes.
        """
        weight, recurrent = parts["weight_ih"], parts["weight_hh"]
        (_, b, _), (d, rows, _) = x.type.shape, weight.type.shape
        units = rows // GATES[self.kind]
        bias, last = self._biases(make, parts, units)
        found = list(states)
        if not found:
            zero = make.constant(0, np.float32)
            found = [make(Expand((d, b, units)), zero) for _ in range(self.states)]
        taken = Operands(x, weight, recurrent, bias, tuple(found))
        if self.projected:
            taken = _projected(make, taken, parts["weight_hr"], given=bool(states))
        if last is not None:
            wide = make(Expand((d, b, units)), make.reshape(last, (d, 1, units)))
            taken = replace(taken, states=(*taken.states, wide))
        return taken

    def _biases(
        self, make: Maker, parts: Mapping[str, Value], units: int
    ) -> tuple[Value | None, Value | None]:
        """The bias of the inputs, (d, g u), and that of a GRU's last product, (d, u)."""
        if not self.biased:
            return None, None
        ours, theirs = parts["bias_ih"], parts["bias_hh"]
        last = None
        if self.kind == "gru":
            last = make(Slice((2 * units,), (3 * units,), (1,), (1,)), theirs)
            theirs = make(Slice((0,), (2 * units,), (1,), (1,)), theirs)
            theirs = make(Pad((0, 0), (0, units)), theirs)
        return make.pointwise("a + b", ours, theirs), last


def _projected(make: Maker, taken: Operands, down: Value, *, given: bool) -> Operands:
    """Return `taken` for units that are projected by `down` (d, p, u) before they are summed.

    What is summed are the units themselves, by the product of both weights, so that a step is one
    launch; what the first h (d, b, p) leads to, where it is given, goes to the first step's inputs.
    """
    d, _, units = down.type.shape
    h, cell = taken.states
    zero = make(Expand((d, h.type.shape[1], units)), make.constant(0, np.float32))
    first = matmul(make, h, taken.recurrent, transposed=True) if given else None
    summed = matmul(make, taken.recurrent, down)
    return replace(taken, recurrent=summed, states=(zero, cell), first=first)


def _stacked(make: Maker, values: Sequence[Value]) -> Value:
    """Stack `values` of one shape, one for each direction, along a new first dimension."""
    apart = [make.reshape(value, (1, *value.type.shape)) for value in values]
    return make(Concat(0), *apart) if len(apart) > 1 else apart[0]


def _sigmoid(x: Expr) -> Expr:
    return call("sigmoid", x)


def _tanh(x: Expr) -> Expr:
    return call("tanh", x)


def _relu(x: Expr) -> Expr:
    return call("relu", x)

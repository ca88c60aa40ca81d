"""Recurrent layers of one step."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.compose.recurrent_layer import GATES, RecurrentLayer
from glnn.graph.graph import Value
from glnn.graph.operators import Squeeze, Unsqueeze
from glnn.layers.arguments import flag, integer, plain, with_unusual
from glnn.layers.scope import Scope
from glnn.layers.stateful import Stateful, kind_of
from glnn.types import Shape


class Cell(Stateful):
    """The base class of LSTMCell, GRUCell and RNNCell.

    They take x (n, input_size), or (input_size,), and the states before, each (n, hidden_size), and
    return the states after; the first of these is the layer's output.

    weight_ih: (g hidden_size, input_size), weight_hh: (g hidden_size, hidden_size), bias_ih and
    bias_hh: (g hidden_size,), for g gates; the last two only with `bias`.
    """

    def __init__(
        self,
        kind: str,
        input_size: int,
        hidden_size: int,
        bias: bool,
        device: None,
        dtype: DTypeLike | None,
        seed: int,
    ) -> None:
        name = type(self).__name__
        plain(name, device, dtype)
        self.input_size = integer(f"{name} input_size", input_size)
        self.hidden_size = integer(f"{name} hidden_size", hidden_size)
        self.bias = flag(f"{name} bias", bias)
        rows = GATES[kind] * self.hidden_size
        shapes: dict[str, Shape] = {
            "weight_ih": (rows, self.input_size),
            "weight_hh": (rows, self.hidden_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        op = RecurrentLayer(kind, 1, self.bias)
        super().__init__(op, shapes, fan_in=self.hidden_size, seed=seed)

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        op, add = self.op, scope.add
        assert isinstance(op, RecurrentLayer)
        self._check(*inputs)
        more = (0, 1) if len(inputs[0].type.dims) == 1 else (0,)  # a step, and one sample
        given = [add(Unsqueeze(more), value) for value in inputs]
        weights = (self.variable(scope, name) for name in self.shapes)
        _, *ends = scope.expand(op, given[0], *weights, *given[1:])
        h, *others = (add(Squeeze(more), value) for value in ends)
        return scope.named(h), *map(scope.further, self.more, others)

    def _check(self, x: Value, *states: Value) -> None:
        """Raise ShapeError unless they belong together."""
        name, dims = type(self).__name__, x.type.dims
        if len(dims) not in (1, 2) or dims[-1] != self.input_size:
            size = self.input_size
            raise ShapeError(f"{name}: x must have shape (n, {size}) or ({size},), got {dims}")
        wanted = (*dims[:-1], self.hidden_size)
        self._check_states(states, wanted, wanted)

    def config(self) -> dict[str, Any]:
        found = {"input_size": self.input_size, "hidden_size": self.hidden_size}
        return with_unusual(found, bias=(self.bias, True))


class LSTMCell(Cell):
    """A step of an LSTM: x and, unless they are zeros, (h_0, c_0) to (h_1, c_1).

    See `Cell`; four gates in the order i, f, g, o. Hochreiter and Schmidhuber 1997, Long Short-Term
    Memory. device, dtype: None and None or float32; parameters are float32.
    """

    more: ClassVar[tuple[str, ...]] = ("c_1",)
    states: ClassVar[tuple[str, ...]] = ("h_0", "c_0")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("lstm", input_size, hidden_size, bias, device, dtype, seed)


class GRUCell(Cell):
    """A step of a GRU: x and, unless it is zeros, h_0 to h_1.

    See `Cell`; three gates in the order r, z, n. Cho et al. 2014, Learning Phrase Representations.
    device, dtype: None and None or float32; parameters are float32.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__("gru", input_size, hidden_size, bias, device, dtype, seed)


class RNNCell(Cell):
    """A step of an RNN: x and, unless it is zeros, h_0 to h_1.

    See `Cell`; one gate. nonlinearity: "tanh" or "relu". Elman 1990, Finding Structure in Time.
    device, dtype: None and None or float32; parameters are float32.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        kind = kind_of("RNNCell", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(kind, input_size, hidden_size, bias, device, dtype, seed)

    def config(self) -> dict[str, Any]:
        return with_unusual(super().config(), nonlinearity=(self.nonlinearity, "tanh"))

"""Recurrent layers over whole sequences."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import DTypeLike

from glnn.errors import ShapeError
from glnn.graph.compose.directions import MOST_STEPS
from glnn.graph.compose.recurrent_layer import GATES, RecurrentLayer
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Slice, Squeeze, Transpose, Unsqueeze
from glnn.layers.arguments import flag, integer, number, plain, with_unusual
from glnn.layers.dropout import drop_operands, scaled
from glnn.layers.layer import Array
from glnn.layers.scope import Scope
from glnn.layers.stateful import Stateful, kind_of
from glnn.types import Dim, Shape

MOST_LAYERS = 1000  # one within another; a file may say any number
MOST_LAUNCHES = 4 * MOST_STEPS


class Recurrent(Stateful):
    """The base class of LSTM, GRU and RNN.

    Called with x and, unless they are zeros, the initial states `hx`, as PyTorch's are; in a model
    a node reads x, or x and each state: `("x", "h_0", "c_0")`. It makes the output, and then the
    last states, which are called after it: `lstm1`, `lstm1.h_n`, `lstm1.c_n`.
    """

    def __init__(
        self,
        kind: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        device: None,
        dtype: DTypeLike | None,
        seed: int,
    ) -> None:
        name = type(self).__name__
        plain(name, device, dtype)
        self.input_size = integer(f"{name} input_size", input_size)
        self.hidden_size = integer(f"{name} hidden_size", hidden_size)
        self.num_layers = integer(f"{name} num_layers", num_layers)
        if self.num_layers > MOST_LAYERS:
            raise ShapeError(
                f"{name} num_layers must be at most {MOST_LAYERS}, got {self.num_layers}"
            )
        self.bias = flag(f"{name} bias", bias)
        self.batch_first = flag(f"{name} batch_first", batch_first)
        self.dropout = number(f"{name} dropout", dropout, 0, 1)
        self.bidirectional = flag(f"{name} bidirectional", bidirectional)
        self.proj_size = integer(f"{name} proj_size", proj_size, 0)
        if self.proj_size >= self.hidden_size:
            raise ShapeError(
                f"{name} proj_size must be less than hidden_size {self.hidden_size}, "
                f"got {self.proj_size}"
            )
        directions = 2 if self.bidirectional else 1
        op = RecurrentLayer(kind, directions, self.bias, self.proj_size > 0)
        super().__init__(op, self._shapes(op), fan_in=self.hidden_size, seed=seed)

    @property
    def width(self) -> int:
        """The size of a direction's output in a step."""
        return self.proj_size or self.hidden_size

    def _shapes(self, op: RecurrentLayer) -> dict[str, Shape]:
        rows, found = GATES[op.kind] * self.hidden_size, dict[str, Shape]()
        for layer in range(self.num_layers):
            features = self.input_size if layer == 0 else self.width * op.directions
            sizes: dict[str, Shape] = {
                "weight_ih": (rows, features),
                "weight_hh": (rows, self.width),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
                "weight_hr": (self.width, self.hidden_size),
            }
            found |= {
                called: sizes[part]
                for part, called in zip(op.parts * op.directions, _names(op, layer), strict=True)
            }
        return found

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        x, op, add = inputs[0], self.op, scope.add
        assert isinstance(op, RecurrentLayer)
        self._check(*inputs)
        alone, states = len(x.type.dims) == 2, list(inputs[1:])
        if alone:
            x, *states = (add(Unsqueeze((1,)), value) for value in inputs)
        elif self.batch_first:
            x = add(Transpose((1, 0, 2)), x)
        ends: list[tuple[Value, ...]] = []
        for layer in range(self.num_layers):
            if layer and scope.training is not None and self.dropout:
                x = add(
                    *drop_operands(scope, scope.training, x, self.dropout, scaled(self.dropout))
                )
            weights = [self.variable(scope, name) for name in _names(op, layer)]
            own = [_rows(scope, one, layer, op.directions, self.num_layers) for one in states]
            x, *last = scope.expand(op, x, *weights, *own)
            ends.append(tuple(last))
        found = [add(Concat(0), *one) if len(one) > 1 else one[0] for one in zip(*ends)]
        if alone:
            x, *found = (add(Squeeze((1,)), value) for value in (x, *found))
        elif self.batch_first:
            x = add(Transpose((1, 0, 2)), x)
        return scope.named(x), *map(scope.further, self.more, found)

    def _check(self, x: Value, *states: Value) -> None:
        """Raise ShapeError unless they belong together."""
        name, dims = type(self).__name__, x.type.dims
        if len(dims) not in (2, 3) or dims[-1] != self.input_size:
            size = self.input_size
            wanted = f"(n, t, {size})" if self.batch_first else f"(t, n, {size})"
            raise ShapeError(f"{name}: x must have shape {wanted} or (t, {size}), got {dims}")
        steps = dims[1 if len(dims) == 3 and self.batch_first else 0]
        most = min(MOST_STEPS, MOST_LAUNCHES // self.num_layers)
        if isinstance(steps, int) and not 1 <= steps <= most:
            raise ShapeError(f"{name}: there must be from 1 to {most} steps, got {steps}")
        batch: tuple[Dim, ...] = () if len(dims) == 2 else (dims[0 if self.batch_first else 1],)
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = self.width, self.hidden_size
        self._check_states(states, *((count, *batch, size) for size in sizes))

    def config(self) -> dict[str, Any]:
        found = {"input_size": self.input_size, "hidden_size": self.hidden_size}
        return with_unusual(
            found,
            num_layers=(self.num_layers, 1),
            bias=(self.bias, True),
            batch_first=(self.batch_first, False),
            dropout=(self.dropout, 0.0),
            bidirectional=(self.bidirectional, False),
        )


class LSTM(Recurrent):
    """Long short-term memory: x (t, n, input_size), or (n, t, input_size) with `batch_first`, or
    (t, input_size), to the output (t, n, d p), h_n (d num_layers, n, p) and c_n (d num_layers, n,
    hidden_size), for d = 1 direction, or 2 with `bidirectional`, and p = hidden_size.

    proj_size: how many numbers h is projected to, which p is then; 0 is none. Of layer l, from 0
    on: weight_ih_l0 (4 hidden_size, its inputs), weight_hh_l0 (4 hidden_size, p), with `bias`
    bias_ih_l0 and bias_hh_l0 (4 hidden_size,), with `proj_size` weight_hr_l0 (p, hidden_size); of
    the second direction weight_ih_l0_reverse and so on. Gates are in the order i, f, g, o. dropout:
    in training, between layers. device, dtype: None and None or float32; parameters are float32.
    Sequences have from 1 to 4096 steps. Hochreiter and Schmidhuber 1997, Long Short-Term Memory.
    """

    more: ClassVar[tuple[str, ...]] = ("h_n", "c_n")
    states: ClassVar[tuple[str, ...]] = ("h_0", "c_0")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(
            "lstm",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            proj_size,
            device,
            dtype,
            seed,
        )

    def _format_results(self, results: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        y, h, c = results
        return y, (h, c)

    def config(self) -> dict[str, Any]:
        return with_unusual(super().config(), proj_size=(self.proj_size, 0))


class GRU(Recurrent):
    """Gated recurrent units: x (t, n, input_size), or (n, t, input_size) with `batch_first`, or
    (t, input_size), to the output (t, n, d hidden_size) and h_n (d num_layers, n, hidden_size), for
    d = 1 direction, or 2 with `bidirectional`.

    Of layer l, from 0 on: weight_ih_l0 (3 hidden_size, its inputs), weight_hh_l0 (3 hidden_size,
    hidden_size), with `bias` bias_ih_l0 and bias_hh_l0 (3 hidden_size,); of the second direction
    weight_ih_l0_reverse and so on. Gates are in the order r, z, n, and r follows the product.
    dropout: in training, between layers. device, dtype: None and None or float32; parameters are
    float32. Sequences have from 1 to 4096 steps. Cho et al. 2014, Learning Phrase Representations.
    """

    more: ClassVar[tuple[str, ...]] = ("h_n",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(
            "gru",
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
            seed,
        )


class RNN(Recurrent):
    """Elman's: x (t, n, input_size), or (n, t, input_size) with `batch_first`, or (t, input_size),
    to the output (t, n, d hidden_size) and h_n (d num_layers, n, hidden_size), for d = 1 direction,
    or 2 with `bidirectional`.

    nonlinearity: "tanh" or "relu", of W_ih x + b_ih + W_hh h + b_hh. Parameters are called as GRU's
    are, with hidden_size rows. dropout: in training, between layers. device, dtype: None and None
    or float32; parameters are float32. Sequences have from 1 to 4096 steps. Elman 1990, Finding
    Structure in Time.
    """

    more: ClassVar[tuple[str, ...]] = ("h_n",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: None = None,
        dtype: DTypeLike | None = None,
        *,
        seed: int = 0,
    ) -> None:
        kind = kind_of("RNN", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(
            kind,
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            0,
            device,
            dtype,
            seed,
        )

    def config(self) -> dict[str, Any]:
        return with_unusual(super().config(), nonlinearity=(self.nonlinearity, "tanh"))


def _names(op: RecurrentLayer, layer: int) -> list[str]:
    """The parameters of a layer, as PyTorch calls and orders them."""
    ends = ("", "_reverse")[: op.directions]
    return [f"{part}_l{layer}{end}" for end in ends for part in op.parts]


def _rows(scope: Scope, states: Value, layer: int, directions: int, layers: int) -> Value:
    """Slice the states of one layer from the states of all layers."""
    if layers == 1:
        return states
    start = layer * directions
    return scope.add(Slice((start,), (start + directions,), (0,), (1,)), states)

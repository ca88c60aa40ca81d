"""Recurrent layers, and cells of a single step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from numpy.typing import DTypeLike

from glnn.core.types import Array, Dim, Shape
from glnn.errors import ShapeError, shown
from glnn.graph.compose.recurrent import GATES, MOST_STEPS, RecurrentLayer
from glnn.graph.graph import Value
from glnn.graph.operators import Concat, Slice, Squeeze, Transpose, Unsqueeze
from glnn.layers.arguments import flag, integer, number, plain, with_unusual
from glnn.layers.dropout import drop_operands, scale_kept
from glnn.layers.layer import Layer, Parameter, Scope


class Stateful(Layer):
    """A layer whose initial states can be given, and whose parameters' names follow from its
    arguments.

    states: what the initial states are called. They are zeros unless they are given.
    """

    states: ClassVar[tuple[str, ...]] = ("h_0",)

    @property
    def counts(self) -> tuple[int, ...]:
        return (1, 1 + len(self.states))

    def __call__(  # type: ignore[override]  # as PyTorch's: x, and then all states as one
        self, x: Array, hx: Array | Sequence[Array] | None = None, *, backend: str = "auto"
    ) -> Any:
        """The layer's results for x and the initial states `hx`, computed by `backend`.

        Of an LSTM `hx` is (h_0, c_0) and what comes back is (output, (h_n, c_n)); else it is h_0
        and (output, h_n). Raises ShapeError where they do not fit, DeviceError where the backend
        does not open.
        """
        states = self._states(hx)
        return self._format_results(self._compute((x, *states), backend))

    def _states(self, hx: Any) -> tuple[Array, ...]:
        if hx is None:
            return ()
        if len(self.states) == 1:
            return (hx,)
        if not isinstance(hx, (tuple, list)) or len(hx) != len(self.states):
            wanted = f"({', '.join(self.states)})"
            raise ShapeError(f"{type(self).__name__} hx must be {wanted}, got {shown(hx)}")
        return tuple(hx)

    def _check_states(self, states: Sequence[Value], *expected: tuple[Dim, ...]) -> None:
        """Raise ShapeError unless the states have the dimensions `expected`; further ones are left
        out.
        """
        for called, state, dims in zip(self.states, states, expected, strict=False):
            if state.type.dims != dims:
                raise ShapeError(
                    f"{type(self).__name__}: {called} must have shape "
                    f"({', '.join(map(str, dims))}), got {state.type.dims}"
                )

    def _format_results(self, results: tuple[Array, ...]) -> Any:
        """Return the results as PyTorch does."""
        return results if len(results) > 1 else results[0]

    def __getattr__(self, name: str) -> Array:
        """A parameter. Raises AttributeError for any other name."""
        if name not in vars(self).get("shapes", ()):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return Parameter[Array].with_name(name).__get__(self, type(self))

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.shapes]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self).get("shapes", ()):
            Parameter[Array].with_name(name).__set__(self, value)
        else:
            super().__setattr__(name, value)


def kind_of(layer: str, nonlinearity: str) -> str:
    """Return the kind of `RecurrentLayer` for a nonlinearity. Raises ShapeError for any but tanh
    and relu.
    """
    if not isinstance(nonlinearity, str) or nonlinearity not in ("tanh", "relu"):
        raise ShapeError(f"{layer} nonlinearity must be tanh or relu, got {shown(nonlinearity)}")
    return f"rnn_{nonlinearity}"


MOST_LAYERS = 1000  # one within another; a file may say any number
MOST_LAUNCHES = 4 * MOST_STEPS


class Recurrent(Stateful):
    """The base class of LSTM, GRU and RNN.

    Called with x and, unless they are zeros, the initial states `hx`, as PyTorch's are; in a model
    a node reads x, or x and each state: `("x", "h_0", "c_0")`. It makes the output, and then the
    last states, which are called after it: `lstm1`, `lstm1.h_n`, `lstm1.c_n`.
    """

    kind: str
    """Kind of `RecurrentLayer`."""
    proj_size: int = 0

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
        if self.proj_size >= self.hidden_size:
            raise ShapeError(
                f"{name} proj_size must be less than hidden_size {self.hidden_size}, "
                f"got {self.proj_size}"
            )
        directions = 2 if self.bidirectional else 1
        op = RecurrentLayer(self.kind, directions, self.bias, self.proj_size > 0)
        super().__init__(op, self._shapes(op), fan_in=self.hidden_size, seed=seed)

    @property
    def width(self) -> int:
        """The size of a direction's output in a step."""
        return self.proj_size or self.hidden_size

    def _shapes(self, op: RecurrentLayer) -> dict[str, Shape]:
        rows, result = GATES[op.kind] * self.hidden_size, dict[str, Shape]()
        for layer in range(self.num_layers):
            features = self.input_size if layer == 0 else self.width * op.directions
            sizes: dict[str, Shape] = {
                "weight_ih": (rows, features),
                "weight_hh": (rows, self.width),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
                "weight_hr": (self.width, self.hidden_size),
            }
            result |= {
                called: sizes[part]
                for part, called in zip(op.parts * op.directions, _names(op, layer), strict=True)
            }
        return result

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
                    *drop_operands(scope, scope.training, x, self.dropout, scale_kept(self.dropout))
                )
            weights = [self.variable(scope, name) for name in _names(op, layer)]
            layer_states = [
                _rows(scope, one, layer, op.directions, self.num_layers) for one in states
            ]
            x, *last = scope.expand(op, x, *weights, *layer_states)
            ends.append(tuple(last))
        ends_joined = [add(Concat(0), *one) if len(one) > 1 else one[0] for one in zip(*ends)]
        if alone:
            x, *ends_joined = (add(Squeeze((1,)), value) for value in (x, *ends_joined))
        elif self.batch_first:
            x = add(Transpose((1, 0, 2)), x)
        return scope.named(x), *map(scope.extra_result, self.more, ends_joined)

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
        config = {"input_size": self.input_size, "hidden_size": self.hidden_size}
        return with_unusual(
            config,
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

    kind = "lstm"
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
        self.proj_size = integer("LSTM proj_size", proj_size, 0)
        sizes = input_size, hidden_size, num_layers
        super().__init__(
            *sizes, bias, batch_first, dropout, bidirectional, device, dtype, seed=seed
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

    kind = "gru"
    more: ClassVar[tuple[str, ...]] = ("h_n",)


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
        self.kind = kind_of("RNN", nonlinearity)
        self.nonlinearity = nonlinearity
        sizes = input_size, hidden_size, num_layers
        super().__init__(
            *sizes, bias, batch_first, dropout, bidirectional, device, dtype, seed=seed
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


class Cell(Stateful):
    """The base class of LSTMCell, GRUCell and RNNCell.

    They take x (n, input_size), or (input_size,), and the states before, each (n, hidden_size), and
    return the states after; the first of these is the layer's output.

    weight_ih: (g hidden_size, input_size), weight_hh: (g hidden_size, hidden_size), bias_ih and
    bias_hh: (g hidden_size,), for g gates; the last two only with `bias`.
    """

    kind: str
    """Kind of `RecurrentLayer`."""

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
        name = type(self).__name__
        plain(name, device, dtype)
        self.input_size = integer(f"{name} input_size", input_size)
        self.hidden_size = integer(f"{name} hidden_size", hidden_size)
        self.bias = flag(f"{name} bias", bias)
        rows = GATES[self.kind] * self.hidden_size
        shapes: dict[str, Shape] = {
            "weight_ih": (rows, self.input_size),
            "weight_hh": (rows, self.hidden_size),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        op = RecurrentLayer(self.kind, 1, self.bias)
        super().__init__(op, shapes, fan_in=self.hidden_size, seed=seed)

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        op, add = self.op, scope.add
        assert isinstance(op, RecurrentLayer)
        self._check(*inputs)
        more = (0, 1) if len(inputs[0].type.dims) == 1 else (0,)  # a step, and one sample
        operands = [add(Unsqueeze(more), value) for value in inputs]
        weights = (self.variable(scope, name) for name in self.shapes)
        _, *ends = scope.expand(op, operands[0], *weights, *operands[1:])
        h, *others = (add(Squeeze(more), value) for value in ends)
        return scope.named(h), *map(scope.extra_result, self.more, others)

    def _check(self, x: Value, *states: Value) -> None:
        """Raise ShapeError unless they belong together."""
        name, dims = type(self).__name__, x.type.dims
        if len(dims) not in (1, 2) or dims[-1] != self.input_size:
            size = self.input_size
            raise ShapeError(f"{name}: x must have shape (n, {size}) or ({size},), got {dims}")
        wanted = (*dims[:-1], self.hidden_size)
        self._check_states(states, wanted, wanted)

    def config(self) -> dict[str, Any]:
        config = {"input_size": self.input_size, "hidden_size": self.hidden_size}
        return with_unusual(config, bias=(self.bias, True))


class LSTMCell(Cell):
    """A step of an LSTM: x and, unless they are zeros, (h_0, c_0) to (h_1, c_1).

    See `Cell`; four gates in the order i, f, g, o. Hochreiter and Schmidhuber 1997, Long Short-Term
    Memory. device, dtype: None and None or float32; parameters are float32.
    """

    kind = "lstm"
    more: ClassVar[tuple[str, ...]] = ("c_1",)
    states: ClassVar[tuple[str, ...]] = ("h_0", "c_0")


class GRUCell(Cell):
    """A step of a GRU: x and, unless it is zeros, h_0 to h_1.

    See `Cell`; three gates in the order r, z, n. Cho et al. 2014, Learning Phrase Representations.
    device, dtype: None and None or float32; parameters are float32.
    """

    kind = "gru"


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
        self.kind = kind_of("RNNCell", nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype, seed=seed)

    def config(self) -> dict[str, Any]:
        return with_unusual(super().config(), nonlinearity=(self.nonlinearity, "tanh"))

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
    """A layer with optional initial states, whose arguments decide its parameters' names.

    states: the names of the initial states, which are zeros by default.
    """

    states: ClassVar[tuple[str, ...]] = ("h_0",)

    @property
    def counts(self) -> tuple[int, ...]:
        return (1, 1 + len(self.states))

    def __call__(  # type: ignore[override]  # as PyTorch's: x, and then all states as one
        self, x: Array, hx: Array | Sequence[Array] | None = None, *, backend: str = "auto"
    ) -> Any:
        """Return the layer's results for x and the initial states `hx`, computed by `backend`.

        An LSTM takes (h_0, c_0) as `hx` and returns (output, (h_n, c_n)); other layers take h_0 and
        return (output, h_n). Cells return the new states. Raises ShapeError where the inputs do not
        fit, DeviceError where the backend does not open.
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
        """Raise ShapeError unless the states have the dimensions `expected`, in order."""
        for name, state, dims in zip(self.states, states, expected, strict=False):
            if state.type.dims != dims:
                raise ShapeError(
                    f"{type(self).__name__}: {name} must have shape "
                    f"({', '.join(map(str, dims))}), got {state.type.dims}"
                )

    def _format_results(self, results: tuple[Array, ...]) -> Any:
        """Return the results as PyTorch does."""
        return results if len(results) > 1 else results[0]

    def __getattr__(self, name: str) -> Array:
        """Return the parameter `name`. Raises AttributeError for any other name."""
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


MOST_LAYERS = 1000  # a limit, as a file may have any number
MOST_LAUNCHES = 4 * MOST_STEPS


class Recurrent(Stateful):
    """The base class of LSTM, GRU and RNN.

    Called like PyTorch's: with x and, optionally, the initial states `hx`. In a model a node reads
    x, or x and each state: `("x", "h_0", "c_0")`. Its results are the output and the final states,
    as `lstm1`, `lstm1.h_n` and `lstm1.c_n`.
    """

    kind: str
    """The kind of `RecurrentLayer`."""
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
        """The size of one direction's output of a step."""
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
                name: sizes[part]
                for part, name in zip(op.parts * op.directions, _names(op, layer), strict=True)
            }
        return result

    def results(self, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
        x, op, add = inputs[0], self.op, scope.add
        assert isinstance(op, RecurrentLayer)
        self._check(*inputs)
        has_no_batch, states = len(x.type.dims) == 2, list(inputs[1:])
        if has_no_batch:
            x, *states = (add(Unsqueeze((1,)), value) for value in inputs)
        elif self.batch_first:
            x = add(Transpose((1, 0, 2)), x)
        layers_final_states: list[tuple[Value, ...]] = []
        for layer in range(self.num_layers):
            if layer and scope.training is not None and self.dropout:
                x = add(
                    *drop_operands(scope, scope.training, x, self.dropout, scale_kept(self.dropout))
                )
            weights = [self.variable(scope, name) for name in _names(op, layer)]
            layer_states = [
                _states_of_layer(scope, one, layer, op.directions, self.num_layers)
                for one in states
            ]
            x, *last = scope.expand(op, x, *weights, *layer_states)
            layers_final_states.append(tuple(last))
        final_states = [
            add(Concat(0), *one) if len(one) > 1 else one[0] for one in zip(*layers_final_states)
        ]
        if has_no_batch:
            x, *final_states = (add(Squeeze((1,)), value) for value in (x, *final_states))
        elif self.batch_first:
            x = add(Transpose((1, 0, 2)), x)
        return scope.named(x), *map(scope.extra_result, self.more, final_states)

    def _check(self, x: Value, *states: Value) -> None:
        """Raise ShapeError unless the shapes of x and the states fit the layer and each other."""
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
    """Long short-term memory of x (t, n, input_size), or (n, t, input_size) with `batch_first`, or
    (t, input_size).

    Its results are the output (t, n, d p), h_n (d num_layers, n, p) and c_n (d num_layers, n,
    hidden_size), for d = 1 direction, or 2 with `bidirectional`, and p = `proj_size`, or
    hidden_size where that is 0.

    proj_size: the number of elements that h is projected to; 0 for no projection. The parameters of
    layer 0 are weight_ih_l0 (4 hidden_size, input_size), weight_hh_l0 (4 hidden_size, p), with
    `bias` bias_ih_l0 and bias_hh_l0 (4 hidden_size,), and with `proj_size` weight_hr_l0 (p,
    hidden_size); those of the second direction are weight_ih_l0_reverse and so on. Further layers
    have d p inputs. Gates are in the order i, f, g, o. dropout: in training, between layers.
    device: None. dtype: None or float32. Sequences have from 1 to 4096 steps. Hochreiter and
    Schmidhuber 1997, Long Short-Term Memory.
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
    """Gated recurrent units of x (t, n, input_size), or (n, t, input_size) with `batch_first`, or
    (t, input_size).

    Its results are the output (t, n, d hidden_size) and h_n (d num_layers, n, hidden_size), for
    d = 1 direction, or 2 with `bidirectional`.

    The parameters of layer 0 are weight_ih_l0 (3 hidden_size, input_size), weight_hh_l0 (3
    hidden_size, hidden_size), and with `bias` bias_ih_l0 and bias_hh_l0 (3 hidden_size,); those of
    the second direction are weight_ih_l0_reverse and so on. Further layers have d hidden_size
    inputs. Gates are in the order r, z, n; r is applied after the product with weight_hh. dropout:
    in training, between layers. device: None. dtype: None or float32. Sequences have from 1 to 4096
    steps. Cho et al. 2014, Learning Phrase Representations.
    """

    kind = "gru"
    more: ClassVar[tuple[str, ...]] = ("h_n",)


class RNN(Recurrent):
    """Elman's recurrent network of x (t, n, input_size), or (n, t, input_size) with `batch_first`,
    or (t, input_size).

    Its results are the output (t, n, d hidden_size) and h_n (d num_layers, n, hidden_size), for
    d = 1 direction, or 2 with `bidirectional`.

    nonlinearity: "tanh" or "relu", applied to W_ih x + b_ih + W_hh h + b_hh. Parameters have the
    names of GRU's, and hidden_size rows. dropout: in training, between layers. device: None. dtype:
    None or float32. Sequences have from 1 to 4096 steps. Elman 1990, Finding Structure in Time.
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
    """Return the names of a layer's parameters, in PyTorch's order."""
    suffixes = ("", "_reverse")[: op.directions]
    return [f"{part}_l{layer}{suffix}" for suffix in suffixes for part in op.parts]


def _states_of_layer(
    scope: Scope, states: Value, layer: int, directions: int, layers: int
) -> Value:
    """Slice the states of one layer from the states of all `layers`."""
    if layers == 1:
        return states
    start = layer * directions
    return scope.add(Slice((start,), (start + directions,), (0,), (1,)), states)


class Cell(Stateful):
    """The base class of LSTMCell, GRUCell and RNNCell.

    They take x (n, input_size), or (input_size,), and the previous states, each (n, hidden_size),
    and return the new states, the first of which is the layer's output.

    weight_ih: (g hidden_size, input_size), weight_hh: (g hidden_size, hidden_size), bias_ih and
    bias_hh: (g hidden_size,), for g gates; the biases only with `bias`.
    """

    kind: str
    """The kind of `RecurrentLayer`."""

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
        axes = (0, 1) if len(inputs[0].type.dims) == 1 else (0,)  # steps, and the batch
        operands = [add(Unsqueeze(axes), value) for value in inputs]
        weights = (self.variable(scope, name) for name in self.shapes)
        _, *final_states = scope.expand(op, operands[0], *weights, *operands[1:])
        h, *others = (add(Squeeze(axes), value) for value in final_states)
        return scope.named(h), *map(scope.extra_result, self.more, others)

    def _check(self, x: Value, *states: Value) -> None:
        """Raise ShapeError unless the shapes of x and the states fit the cell and each other."""
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
    """A step of an LSTM: x and, optionally, (h_0, c_0) to (h_1, c_1).

    See `Cell`; it has four gates, in the order i, f, g, o. device: None. dtype: None or float32.
    Hochreiter and Schmidhuber 1997, Long Short-Term Memory.
    """

    kind = "lstm"
    more: ClassVar[tuple[str, ...]] = ("c_1",)
    states: ClassVar[tuple[str, ...]] = ("h_0", "c_0")


class GRUCell(Cell):
    """A step of a GRU: x and, optionally, h_0 to h_1.

    See `Cell`; it has three gates, in the order r, z, n. device: None. dtype: None or float32. Cho
    et al. 2014, Learning Phrase Representations.
    """

    kind = "gru"


class RNNCell(Cell):
    """A step of an RNN: x and, optionally, h_0 to h_1.

    See `Cell`; it has one gate. nonlinearity: "tanh" or "relu". device: None. dtype: None or
    float32. Elman 1990, Finding Structure in Time.
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

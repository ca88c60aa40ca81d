"""The base class of layers with states: their parameters' names, initial states, and results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from glnn.errors import ShapeError, shown
from glnn.graph.graph import Value
from glnn.layers.layer import Array, Layer
from glnn.layers.parameter import Parameter
from glnn.types import Dim


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
        given = self._states(hx)
        return self._format_results(self._computed((x, *given), backend))

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

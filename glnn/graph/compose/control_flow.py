"""Branches, loops and scans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glnn.core.types import DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.builder import Builder, constant
from glnn.graph.graph import Value
from glnn.graph.operators import Gather, If, Loop
from glnn.graph.operators.control_flow import FLAG

COUNT = TensorType((), DType.int32)
Body = tuple[Builder, Sequence[Value]]
"""A body (`Builder.body`) and its outputs."""


def branch(
    builder: Builder, condition: Value, then: Body, otherwise: Body, *, name: str
) -> tuple[Value, ...]:
    """The outputs of `then` where the condition, one bool, is true, else those of `otherwise`.

    Raises ShapeError where they are not of the same dtypes and ranks.
    """
    operator = If(then[0].graph(then[1]), otherwise[0].graph(otherwise[1]))
    captures = (*then[0].captures, *otherwise[0].captures)
    return builder.add(operator, condition, *captures, name=name)


def loop(
    builder: Builder,
    body: Body,
    *initial_states: Value,
    trips: Value | None = None,
    condition: Value | None = None,
    name: str,
) -> tuple[Value, ...]:
    """The results of `operators.Loop` for values that are `initial_states` first.

    body: its inputs are the number of the iteration, whether to go on, and a value for each that is
    carried; its outputs are whether to go on, these values anew, and those that are stacked.
    """
    operator = Loop(body[0].graph(body[1]), len(initial_states))
    return builder.add(operator, trips, condition, *initial_states, *body[0].captures, name=name)


class Scan:
    """Values walked along their axes, one place of all of them in each iteration. ONNX: Scan.

    A loop: `states` are the values that are carried, and `places` those of the iteration, without
    the axis; its `number` is from 0. All of these `body` may read. What it makes goes to `results`.
    """

    def __init__(
        self,
        builder: Builder,
        initial_states: Sequence[Value],
        scanned: Sequence[Value],
        axes: Sequence[int] | None = None,
        *,
        name: str,
    ) -> None:
        """axes: of the scanned values, 0 of each unless said. Raises ShapeError without any."""
        if not scanned:
            raise ShapeError(f"{name}: at least one value must be scanned")
        self._builder, self._name = builder, name
        self._carried, self._scanned = tuple(initial_states), tuple(scanned)
        self._axes = (0,) * len(scanned) if axes is None else tuple(axes)
        self.body = builder.body(name)
        self.number = self.body.input(f"{name}: iteration", COUNT)
        self._going = self.body.input(f"{name}: going", FLAG)
        self.states = tuple(self.body.input(v.name, v.type) for v in initial_states)
        whole = [self.body.input(v.name, v.type) for v in scanned]
        self.slices = tuple(
            self.body.add(Gather(axis), value, self.number, name=f"{value.name}: place")[0]
            for value, axis in zip(whole, self._axes, strict=True)
        )

    def results(self, states: Sequence[Value], stacked: Sequence[Value] = ()) -> tuple[Value, ...]:
        """The states at the end, then of each value of `stacked` those of all iterations."""
        graph = self.body.graph((self._going, *states, *stacked))
        return self._builder.add(
            Loop(graph, len(self._carried), self._axes),
            None,
            None,
            *self._carried,
            *self._scanned,
            *self.body.captures,
            name=self._name,
        )


def number(value: int, name: str = "number") -> Value:
    """A constant int32, as a loop's trips."""
    return constant(np.array(value, np.int32), name)

"""Control flow: which body runs, and how often, is for the host; tensors stay where they are.

A body is planned as any graph is. What goes into it and comes out is copied on the device, so that
a body may hand back what it was given. The host reads conditions, one number each, and only those
that are not known before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from glnn.backends.backend import Backend, Launch
from glnn.errors import UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators import If, Loop
from glnn.runtime.store import Store
from glnn.types import Array


@dataclass(frozen=True)
class Body:
    """A graph made ready to run."""

    inputs: tuple[Store, ...]
    """In the graph's order."""
    run: Launch
    """Performs all steps, without waiting."""
    results: tuple[Callable[[], Store], ...]
    """Give the outputs, row major, once it has run."""


@dataclass(frozen=True)
class Called:
    """A step that runs bodies."""

    backend: Backend
    op: Operator
    numbers: Mapping[str, Callable[[], Array]]
    """Read the operands that decide: conditions and trips."""
    given: tuple[Callable[[], Store], ...]
    """The other operands, row major."""
    bodies: tuple[Body, ...]
    """Those of the operator."""
    outs: tuple[Store, ...]
    """The results."""

    def copy(self, sources: Iterable[Store], targets: Iterable[Store]) -> None:
        """What `sources` hold into `targets`, as long as there are some of both."""
        for source, target in zip(sources, targets, strict=False):
            self.backend.copy(source, target)


def launch(called: Called) -> Launch:
    """What performs `called`. Raises UnsupportedOpError where nobody knows how."""
    if isinstance(called.op, If):
        return _branch(called)
    if isinstance(called.op, Loop):
        return _loop(called, called.op)
    raise UnsupportedOpError(f"nothing here runs the bodies of {called.op.name}")


def _branch(called: Called) -> Launch:
    then, otherwise = called.bodies

    def perform() -> None:
        taken = bool(called.numbers["condition"]().item())
        body, first = (then, 0) if taken else (otherwise, len(then.inputs))
        called.copy((given() for given in called.given[first:]), body.inputs)
        body.run()
        called.copy((result() for result in body.results), called.outs)

    return perform


def _loop(called: Called, op: Loop) -> Launch:
    (body,) = called.bodies
    number, going, *inputs = body.inputs
    asked = "condition" in called.numbers and not op.endless
    carried, stacked = called.outs[: op.carried], called.outs[op.carried :]
    rows = body.results[1 + op.carried :]

    def begin() -> int | None:
        """Set all up that stays; how often it runs at the most, None where nothing says so."""
        given = [store() for store in called.given]
        called.copy(given, carried)
        called.copy(given[op.carried :], inputs[op.carried :])
        _put(going, True)
        bounds = [called.numbers["trips"]().item()] if "trips" in called.numbers else []
        bounds += [s.shape[a] for s, a in zip(inputs[op.carried :], op.scanned, strict=False)]
        if "condition" in called.numbers and not called.numbers["condition"]().item():
            return 0
        return min(bounds, default=None)

    def perform() -> None:
        most, done = begin(), 0
        while most is None or done < most:
            if op.counts:
                _put(number, done)
            called.copy(carried, inputs)
            body.run()
            called.copy((result() for result in body.results[1:]), carried)
            for row, out in zip(rows, stacked, strict=True):
                called.backend.copy(row(), out, done)
            done += 1
            if asked and not body.results[0]().pull().item():
                break

    return perform


def _put(store: Store, number: int | bool) -> None:
    """One number into `store`."""
    store.put(np.full(store.shape, number, store.dtype.numpy))

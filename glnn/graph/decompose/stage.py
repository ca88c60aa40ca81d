"""What an op is made of where one kernel does not compute it whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from glnn.graph.operator import Operator
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Stage:
    """One op on the way.

    operands: for each of its operands the name of an operand of the whole op, of a derived
    parameter, or of an earlier stage. kernel: the one to take; None leaves the choice open.
    """

    name: str
    op: Operator
    operands: Mapping[str, str]
    kernel: str | None = None


@dataclass(frozen=True)
class Derived:
    """A parameter computed from the one called `source`, once, when a model is made ready."""

    source: str
    shape: Shape
    make: Callable[[Array], Array]


@dataclass(frozen=True)
class Lowered:
    """The stages that compute an op, the last of which gives its result."""

    stages: tuple[Stage, ...]
    derived: Mapping[str, Derived] = field(default_factory=dict)

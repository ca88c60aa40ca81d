"""Stages of an op that no single kernel computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glnn.graph.operator import Operator
from glnn.types import Shape


@dataclass(frozen=True)
class Stage:
    """A stage: an op that computes an intermediate or the final result of a whole op.

    operands: for each of its operands the name of an operand of the whole op, of a derived
    parameter, or of an earlier stage. kernel: the one to take; None leaves the choice open.
    finishes: whether the whole op's epilogue is its.
    """

    name: str
    op: Operator
    operands: Mapping[str, str]
    kernel: str | None = None
    finishes: bool = False


@dataclass(frozen=True)
class Derived:
    """An operand made of the fixed one called `source`, by the host, once for each weight."""

    source: str
    shape: Shape
    operator: Operator


@dataclass(frozen=True)
class Lowered:
    """The stages that compute an op: the last gives its result, one takes its epilogue."""

    stages: tuple[Stage, ...]
    derived: Mapping[str, Derived] = field(default_factory=dict)

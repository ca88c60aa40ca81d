"""Expressions of scalar functions: what is computed of the numbers at one place of some tensors.

An expression is a node of its own (`operators.Pointwise`) or the epilogue of a contraction. Kernels
get it as a line of GLSL, the numbers in it (`Scalar`) as uniforms: programs are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.functions import FUNCTIONS, Function
from glnn.types import Array

MOST_CALLS = 64  # of one expression: longer ones are cut into several


class Expr(ABC):
    """A scalar expression of arguments."""

    @abstractmethod
    def evaluate(self, *arrays: Array) -> Array:
        """The value by NumPy for these arguments, which broadcast."""

    @abstractmethod
    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        """The same with each part that `change` gives something for replaced by that."""

    @abstractmethod
    def parts(self) -> Iterator[Expr]:
        """All parts, arguments of a call before the call, the whole last."""

    @property
    def scalars(self) -> tuple[float | int | bool, ...]:
        """The numbers in it, in the order of `parts`."""
        return tuple(part.value for part in self.parts() if isinstance(part, Scalar))

    @property
    def structure(self) -> str:
        """What it is but for the values of its numbers: what makes a program another one."""
        return self.text()

    @property
    def arity(self) -> int:
        """How many arguments it takes."""
        return 1 + max((p.index for p in self.parts() if isinstance(p, Arg)), default=-1)

    @property
    def calls(self) -> int:
        """How many functions it calls."""
        return sum(isinstance(part, Call) for part in self.parts())

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that it calls, each once, in the order in which they are needed."""
        names = dict.fromkeys(part.function for part in self.parts() if isinstance(part, Call))
        return tuple(FUNCTIONS[name] for name in names)

    def text(self) -> str:
        """`add(#0, mul(a, #1))`: arguments by their number, numbers as letters."""
        return _text(self)

    def __call__(self, *arguments: Expr) -> Expr:
        """The expression of other arguments."""
        return self.replace(lambda part: arguments[part.index] if isinstance(part, Arg) else None)


@dataclass(frozen=True)
class Arg(Expr):
    """The argument number `index`."""

    index: int

    def evaluate(self, *arrays: Array) -> Array:
        return arrays[self.index]

    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        return change(self) or self

    def parts(self) -> Iterator[Expr]:
        yield self


@dataclass(frozen=True)
class Scalar(Expr):
    """A number that is known when a graph is planned: float, int or bool as Python has it."""

    value: float | int | bool

    def evaluate(self, *arrays: Array) -> Any:
        return self.value

    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        return change(self) or self

    def parts(self) -> Iterator[Expr]:
        yield self


@dataclass(frozen=True)
class Call(Expr):
    """The function of FUNCTIONS called `function`, of expressions."""

    function: str
    arguments: tuple[Expr, ...]

    def __post_init__(self) -> None:
        function = FUNCTIONS.get(self.function)
        if function is None:
            raise ShapeError(f"unknown function {self.function!r}")
        if len(self.arguments) != function.arity:
            raise ShapeError(
                f"{self.function} takes {function.arity} arguments, got {len(self.arguments)}"
            )

    def evaluate(self, *arrays: Array) -> Array:
        found = (argument.evaluate(*arrays) for argument in self.arguments)
        return np.asarray(FUNCTIONS[self.function].evaluate(*found))

    def replace(self, change: Callable[[Expr], Expr | None]) -> Expr:
        changed = change(self)
        if changed is not None:
            return changed
        return Call(self.function, tuple(part.replace(change) for part in self.arguments))

    def parts(self) -> Iterator[Expr]:
        for argument in self.arguments:
            yield from argument.parts()
        yield self


def call(function: str, *arguments: Expr | float | int | bool) -> Call:
    """The function so called of expressions and numbers."""
    made = (a if isinstance(a, Expr) else Scalar(a) for a in arguments)
    return Call(function, tuple(made))


def chain(expressions: Sequence[Expr]) -> Expr:
    """Each of `expressions`, of one argument, of what the one before gives."""
    whole: Expr = Arg(0)
    for expression in expressions:
        whole = expression(whole)
    return whole


def _text(expr: Expr) -> str:
    if isinstance(expr, Arg):
        return f"#{expr.index}"
    if isinstance(expr, Scalar):
        return type(expr.value).__name__[0]
    assert isinstance(expr, Call)
    return f"{expr.function}({', '.join(map(_text, expr.arguments))})"

"""Recognise affine expressions: an argument that is multiplied and added to, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.graph.expression import Arg, Call, Expr, Scalar, call


@dataclass(frozen=True)
class Affine:
    """scale x + shift, of which either may be missing."""

    scale: Expr | None = None
    shift: Expr | None = None

    def plus(self, other: Expr) -> Affine:
        """Return the sum of this and `other`."""
        return Affine(self.scale, other if self.shift is None else call("add", self.shift, other))

    def times(self, other: Expr) -> Affine:
        """Return the product of this and `other`."""
        scale = other if self.scale is None else call("mul", self.scale, other)
        return Affine(scale, None if self.shift is None else call("mul", self.shift, other))


def affine(expr: Expr, index: int) -> Affine | None:
    """Return `expr` as a scale of argument number `index` and a shift, both of the other arguments;
    None where it is not affine, or has not that argument.
    """

    def part(one: Expr, given: tuple[Expr | Affine | None, ...]) -> Expr | Affine | None:
        if isinstance(one, Arg) and one.index == index:
            return Affine()
        if not isinstance(one, Call) or all(isinstance(each, Expr) for each in given):
            return one
        return _called(one.function, given)

    found = expr.fold(part)[-1]
    return found if isinstance(found, Affine) else None


def _called(function: str, given: tuple[Expr | Affine | None, ...]) -> Affine | None:
    """A function of arguments, one of which is that one with a scale and a shift."""
    match function, *given:
        case ["neg", Affine() as x]:
            return x.times(Scalar(-1.0))
        case ["add", Affine() as x, Expr() as other] | ["add", Expr() as other, Affine() as x]:
            return x.plus(other)
        case ["mul", Affine() as x, Expr() as other] | ["mul", Expr() as other, Affine() as x]:
            return x.times(other)
        case ["sub", Affine() as x, Expr() as other]:
            return x.plus(call("neg", other))
        case ["sub", Expr() as other, Affine() as x]:
            return x.times(Scalar(-1.0)).plus(other)
        case ["div", Affine() as x, Expr() as other]:
            return x.times(call("div", 1.0, other))
    return None

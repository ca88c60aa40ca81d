"""Sizes of an executable as numbers or as expressions of its open dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glnn.symint import Atom, Expr, SymFloat, SymInt


@dataclass(frozen=True)
class SizeIndex:
    """A size that depends on open dimensions: the place of its expression in a `SizeTable`."""

    index: int


Size = int | SizeIndex
"""A number that is known, or the place of an expression."""


class SizeTable:
    """Expressions of open dimensions, each held once."""

    def __init__(self) -> None:
        self._places: dict[Expr, int] = {}

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """All of them, in the order of their places."""
        return tuple(self._places)

    def size(self, value: Any) -> Any:
        """Return `value` with a SizeIndex for each SymInt, also within tuples and mappings."""
        if isinstance(value, SymInt):
            return SizeIndex(self._places.setdefault(value.expr, len(self._places)))
        if isinstance(value, SymFloat):
            return self.size(value.size)
        if isinstance(value, tuple):
            return tuple(map(self.size, value))
        if isinstance(value, Mapping):
            return {name: self.size(one) for name, one in value.items()}
        return value


def depends(value: Any) -> bool:
    """Return True where a SizeIndex is in `value`, or in a tuple, list or mapping within it."""
    return any(True for _ in places(value))


def places(value: Any) -> Iterator[Any]:
    """Yield the places of all expressions in `value`, also within tuples, lists and mappings."""
    if isinstance(value, SizeIndex):
        yield value.index
    elif isinstance(value, Mapping):
        yield from places(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from places(one)


def number(value: Any, numbers: Sequence[int]) -> Any:
    """Return `value` with the numbers of a binding for each SizeIndex."""
    if isinstance(value, SizeIndex):
        return numbers[value.index]
    if isinstance(value, tuple):
        return tuple([number(one, numbers) for one in value])
    if isinstance(value, Mapping):
        return {name: number(one, numbers) for name, one in value.items()}
    return value


def compiled(
    expressions: Sequence[Expr], symbols: Sequence[str]
) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """Return a function from the sizes of `symbols`, in their order, to the expressions' numbers.

    It is one Python function, so that hundreds of expressions take some ten microseconds. Raises
    ValueError for what is no expression of these symbols, as in a damaged file.
    """
    writer = _Writer(symbols)
    values = [writer.text(one) for one in expressions]
    names = "".join(f"    {name}, = sizes[{i}:{i + 1}]\n" for i, name in enumerate(writer.names))
    body = "".join(f"    {line}\n" for line in writer.lines)
    values = [f"{value}, " for value in values]
    text = f"def numbers(sizes):\n{names}{body}    return ({''.join(values)})\n"
    scope: dict[str, Any] = {}
    exec(compile(text, "<sizes>", "exec"), {"__builtins__": {}}, scope)
    found: Callable[[Sequence[int]], tuple[int, ...]] = scope["numbers"]
    return found


class _Writer:
    """Writes expressions as Python; quotients that several have are computed once."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._names = {symbol: f"n{i}" for i, symbol in enumerate(symbols)}
        self._quotients: dict[Atom, str] = {}
        self.lines: list[str] = []

    @property
    def names(self) -> Sequence[str]:
        """The variables that stand for the symbols."""
        return tuple(self._names.values())

    def text(self, expression: Expr) -> str:
        """An expression, in parentheses where it has several terms."""
        terms = []
        for atoms, factor in expression:
            factors = [self._atom(atom) for atom in atoms]
            if factor != 1 or not factors:
                factors.append(str(factor) if factor >= 0 else f"({factor})")
            terms.append("*".join(factors))
        return f"({' + '.join(terms)})" if terms else "0"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, str):
            if atom not in self._names:
                raise ValueError(f"a size of the unknown dimension {atom!r}")
            return self._names[atom]
        if atom not in self._quotients:
            dividend, divisor = atom
            text = f"{self.text(dividend)}//{self.text(divisor)}"
            name = f"q{len(self._quotients)}"
            self.lines.append(f"{name} = {text}")
            self._quotients[atom] = name
        return self._quotients[atom]

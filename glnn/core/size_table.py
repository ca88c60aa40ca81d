"""Sizes of an executable as numbers or as expressions of its open dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.symint import PLAIN, SIMPLE, Atom, Expr, Substitution, SymFloat, SymInt

T = TypeVar("T")


@dataclass(frozen=True)
class SizeIndex:
    """A size that depends on open dimensions: the index of its expression in a `SizeTable`."""

    index: int


Size = int | SizeIndex
"""A number, or the index of an expression in a SizeTable."""


class SizeTable:
    """Expressions of open dimensions, without duplicates."""

    def __init__(self) -> None:
        self._indices: dict[Expr, int] = {}

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The expressions in the order of their indices."""
        return tuple(self._indices)

    def size(self, value: Any) -> Any:
        """Return `value` with a SizeIndex for each SymInt, also within tuples and mappings."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, SymInt):
            return SizeIndex(self._indices.setdefault(value.expr, len(self._indices)))
        if isinstance(value, SymFloat):
            return self.size(value.size)
        if isinstance(value, tuple):
            return tuple(map(self.size, value))
        if isinstance(value, Mapping):
            return {name: self.size(one) for name, one in value.items()}
        return value


class Template(Generic[T]):
    """A structure of tuples, mappings and dataclasses, to be filled with the numbers of a binding.

    The sizes in it are located once, when the template is made. Filled structures are not checked:
    the template was checked, and the plan's guards admit the numbers.
    """

    def __init__(self, value: T, sizes: SizeTable | None = None) -> None:
        self._value, self._make = value, maker(value, sizes)

    @property
    def is_open(self) -> bool:
        """Return True where the template contains sizes."""
        return self._make is not None

    def __call__(self, numbers: Sequence[int]) -> T:
        """Return the structure with these numbers of the table's expressions."""
        return self._value if self._make is None else cast(T, self._make(numbers))


Maker = Callable[[Sequence[int]], Any]


def maker(value: Any, sizes: SizeTable | None = None) -> Maker | None:
    """Return the function that fills `value` with numbers; None where it contains no sizes.

    sizes: the table of the SymInts in `value`; None where it has only SizeIndexes.
    """
    if isinstance(value, SizeIndex):
        return itemgetter(value.index)
    if sizes is not None and isinstance(value, SymInt):
        return itemgetter(sizes.size(value).index)
    if sizes is not None and isinstance(value, SymFloat):
        index = sizes.size(value).index
        return lambda numbers: float(numbers[index])
    if type(value) in PLAIN or isinstance(value, SIMPLE):
        return None
    if isinstance(value, Mapping):
        value, kind = tuple(value.items()), dict
    elif is_dataclass(value) and not isinstance(value, type):
        return _dataclass_maker(value, sizes)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        shape, elements = value.shape, Template(tuple(value.reshape(-1)), sizes)
        if not elements.is_open:
            return None
        return lambda numbers: _object_array(shape, elements(numbers))
    else:
        kind = type(value)
    if not isinstance(value, (tuple, list)):
        return None
    parts = [(one, maker(one, sizes)) for one in value]
    if all(make is None for _, make in parts):
        return None
    return lambda numbers: kind([one if make is None else make(numbers) for one, make in parts])


def _object_array(shape: tuple[int, ...], elements: Any) -> Any:
    result = np.empty(shape, object)
    result.reshape(-1)[:] = elements
    return result


def _dataclass_maker(value: Any, sizes: SizeTable | None) -> Maker | None:
    kind: type[Any] = type(value)
    values = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    makers = {name: make for name, one in values.items() if (make := maker(one, sizes))}
    if not makers:
        return None
    if sizes is not None and not kind.__dataclass_params__.eq:
        # Values of a graph are compared by identity: a Substitution replaces each object once.
        table = sizes
        return lambda numbers: Substitution(lambda one: numbers[table.size(one).index])(value)
    others = vars(value).keys() - values.keys()
    if any(not isinstance(getattr(kind, name, None), cached_property) for name in others):
        return lambda numbers: replace(value, **{k: make(numbers) for k, make in makers.items()})

    def make_instance(numbers: Sequence[int]) -> Any:
        result = object.__new__(kind)
        result.__dict__.update(values)
        for name, make in makers.items():
            result.__dict__[name] = make(numbers)
        return result

    return make_instance


def depends(value: Any) -> bool:
    """Return True where `value` is a SizeIndex, or contains one in tuples, lists or mappings."""
    return any(True for _ in size_indices(value))


def size_indices(value: Any) -> Iterator[Any]:
    """Yield the index of each SizeIndex in `value`, also within tuples, lists and mappings."""
    if isinstance(value, SizeIndex):
        yield value.index
    elif type(value) in PLAIN:
        return
    elif isinstance(value, Mapping):
        yield from size_indices(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from size_indices(one)


def number(value: Any, numbers: Sequence[int]) -> Any:
    """Return `value` with the number of a binding in the place of each SizeIndex."""
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

    It is compiled as one Python function, so that hundreds of expressions take some ten
    microseconds. Raises ValueError where an expression, as of a damaged file, has other symbols.
    """
    writer = _Writer(symbols)
    values = [writer.text(one) for one in expressions]
    names = "".join(f"    {name}, = sizes[{i}:{i + 1}]\n" for i, name in enumerate(writer.names))
    body = "".join(f"    {line}\n" for line in writer.lines)
    values = [f"{value}, " for value in values]
    text = f"def numbers(sizes):\n{names}{body}    return ({''.join(values)})\n"
    scope: dict[str, Any] = {}
    exec(compile(text, "<sizes>", "exec"), {"__builtins__": {}}, scope)
    result: Callable[[Sequence[int]], tuple[int, ...]] = scope["numbers"]
    return result


class _Writer:
    """Writes expressions as Python, with common quotients computed once."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._names = {symbol: f"n{i}" for i, symbol in enumerate(symbols)}
        self._quotients: dict[Atom, str] = {}
        self.lines: list[str] = []

    @property
    def names(self) -> Sequence[str]:
        """The Python variables of the symbols."""
        return tuple(self._names.values())

    def text(self, expression: Expr) -> str:
        """Return an expression as Python, in parentheses, adding the quotients to `lines`."""
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

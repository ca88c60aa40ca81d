"""Objects whose attributes stay as they were made, but for parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from types import MemberDescriptorType
from typing import Any, TypeVar

from glnn.errors import ReadOnlyError
from glnn.types import Shape

V = TypeVar("V")


class Fixed(Mapping[str, V]):
    """A mapping that stays as it was made; it can be copied and pickled."""

    __slots__ = ("_content",)

    def __init__(self, content: Mapping[str, V]) -> None:
        self._content = dict(content)

    def __getitem__(self, name: str) -> V:
        return self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def __len__(self) -> int:
        return len(self._content)

    def __repr__(self) -> str:
        return repr(self._content)


class ReadOnly:
    """Attributes can be set until the constructor is done, then only by the class's own setters.

    A constructor is done when that of the object's own class is: subclasses may set their
    attributes before and after they call the one above. Such setters are `Parameter`s and
    properties. Raises ReadOnlyError, an AttributeError, for what is set or deleted besides.
    shapes: of the parameters, by their names.
    """

    shapes: Mapping[str, Shape]
    _made = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if constructor := vars(cls).get("__init__"):
            type.__setattr__(cls, "__init__", _closing(constructor))

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and not _is_setter(getattr(type(self), name, None)):
            raise self._refused(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._made:
            kind = type(self).__name__
            raise ReadOnlyError(f"{kind} {name} cannot be deleted: a layer stays as it was made")
        super().__delattr__(name)

    def _refused(self, name: str) -> ReadOnlyError:
        kind, known = type(self).__name__, [*self.shapes, *dir(self)]
        known = [one for one in known if not one.startswith("_")]
        if name in dir(self):
            fault = f"{kind} {name} is read-only: a layer stays as it was made, so make another"
        else:
            close = get_close_matches(name, known, 1)
            fault = f"{kind} has no attribute {name!r}"
            fault += f": did you mean {close[0]!r}?" if close else ""
        assigned = f" ({', '.join(self.shapes)} can be assigned)" if self.shapes else ""
        return ReadOnlyError(fault + assigned)


def _closing(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap `constructor`: nothing can be set after that of the object's own class."""

    @wraps(constructor)
    def construct(self: ReadOnly, *arguments: Any, **named: Any) -> None:
        last = getattr(type(self), "__init__", None) is construct
        try:
            constructor(self, *arguments, **named)
        except TypeError as error:
            unknown = _unknown(type(self), named) if last else None
            raise unknown or error from None
        if last:
            vars(self)["_made"] = True

    return construct


def _unknown(kind: type, named: Mapping[str, object]) -> TypeError | None:
    """Return a TypeError where one of the arguments `named` is none of `kind`'s, else None."""
    known = signature(kind).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return None
    for name in named:
        if name not in known:
            close = get_close_matches(name, known, 1)
            other = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            return TypeError(f"{kind.__name__} has no argument {name!r}: {other}")
    return None


def _is_setter(attribute: object) -> bool:
    """Return True where an attribute of a class, other than a slot, handles assignment."""
    if isinstance(attribute, MemberDescriptorType):
        return False
    if isinstance(attribute, property):
        return attribute.fset is not None
    return hasattr(attribute, "__set__")

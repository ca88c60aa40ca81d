"""A property that is computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 (as functools has it)
        """A property that is computed on first use, and is an attribute of its object from then on.

        Python's own takes a lock up to 3.11, one for all objects of a class: in a fork beside a
        thread that had it, nobody would ever free it. Without, two threads may compute it at once;
        both get what the first one stored.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__
            self._name = compute.__name__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return vars(instance).setdefault(self._name, self._compute(instance))


__all__ = ["cached_property"]

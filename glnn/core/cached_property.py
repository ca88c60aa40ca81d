"""A property that is computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 (as functools has it)
        """A property that is computed on first use, and is an attribute of its object from then on.

        functools' takes a lock up to Python 3.11, one for all objects of a class; if a thread holds
        it during a fork, the fork never gets it. Without a lock two threads may compute the
        property at once; both get the value that is stored first.
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

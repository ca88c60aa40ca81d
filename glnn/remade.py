"""Lazy unpickling: objects pickled as their arguments and constructed again on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from glnn.process import process_lock


class Unpickled:
    """The pickled arguments of an object, and the attributes that a subclass added."""

    def __init__(self, made: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self.made, self.more = made, more
        self.lock = process_lock()
        self.begun = False


class Remade(ABC):
    """Base of objects pickled as their arguments, plus attributes set after `_noted`.

    Unpickling constructs nothing, so it cannot fail: a process pool whose worker cannot unpickle an
    object waits for ever. The first use constructs the object, and raises what that raises.
    """

    _own: frozenset[str] = frozenset()

    @abstractmethod
    def _made_of(self) -> Mapping[str, Any]:
        """Return the arguments for `_remake`. Raises GlnnError for what only this process has."""

    @abstractmethod
    def _remake(self, made: Mapping[str, Any]) -> None:
        """Construct the object again from the arguments `made`."""

    def _noted(self) -> None:
        """Mark all attributes so far as derived from the arguments, not to be pickled."""
        self._own = frozenset((*vars(self), "_own"))

    def __getstate__(self) -> dict[str, Any]:
        unpickled = vars(self).get("_unpickled")
        if unpickled is not None:
            return {"made": unpickled.made, "more": unpickled.more}
        more = {name: value for name, value in vars(self).items() if name not in self._own}
        return {"made": self._made_of(), "more": more}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._unpickled = Unpickled(state["made"], state["more"])

    if not TYPE_CHECKING:  # else any attribute would be one

        def __getattr__(self, name: str) -> Any:
            unpickled = vars(self).get("_unpickled")
            if unpickled is not None and not name.startswith("__"):
                with unpickled.lock:
                    if vars(self).get("_unpickled") is unpickled and not unpickled.begun:
                        _remake(self, unpickled)
            return object.__getattribute__(self, name)


def _remake(one: Remade, unpickled: Unpickled) -> None:
    unpickled.begun = True  # what is missing while it is made is not there
    try:
        one._remake(unpickled.made)
        vars(one).update(unpickled.more)
        del one._unpickled
    finally:
        unpickled.begun = False

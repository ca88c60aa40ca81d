"""Objects that are pickled as their constructor arguments, and reconstructed on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from glnn.core.process import process_lock
from glnn.errors import ModelError

OTHER_VERSION = "pickled by another version"
"""The only argument of an object that another version of glnn pickled."""


class _PickledState:
    """The pickled arguments of an object, and the attributes that a subclass added."""

    def __init__(self, arguments: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        self.arguments, self.attributes = arguments, attributes
        self.lock = process_lock()
        self.in_progress = False


class LazyPickle(ABC):
    """Base of objects pickled as their arguments, plus attributes set after `_mark_derived`.

    Unpickling does not construct the object, so that it cannot fail: a process pool whose worker
    fails to unpickle waits forever. The first use constructs the object, and raises its errors.
    """

    _derived: frozenset[str] = frozenset()

    @abstractmethod
    def _constructor_arguments(self) -> Mapping[str, Any]:
        """Return the arguments for `_reconstruct`. Raises GlnnError where one is a device."""

    @abstractmethod
    def _reconstruct(self, arguments: Mapping[str, Any]) -> None:
        """Construct this object from the `arguments`."""

    def _mark_derived(self) -> None:
        """Mark all current attributes as derived from the arguments, and not to be pickled."""
        self._derived = frozenset((*vars(self), "_derived"))

    def __getstate__(self) -> dict[str, Any]:
        unpickled = vars(self).get("_unpickled")
        if unpickled is not None:
            return {"arguments": unpickled.arguments, "attributes": unpickled.attributes}
        attributes = {
            name: value for name, value in vars(self).items() if name not in self._derived
        }
        return {"arguments": self._constructor_arguments(), "attributes": attributes}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Keep `state` for the first use, which raises ModelError for another version's."""
        is_current = isinstance(state, Mapping) and set(state) == {"arguments", "attributes"}
        unpickled = _PickledState(state["arguments"], state["attributes"]) if is_current else None
        self._unpickled = unpickled or _PickledState({OTHER_VERSION: True}, {})

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> Any:
            unpickled = vars(self).get("_unpickled")
            if unpickled is not None and not name.startswith("__"):
                with unpickled.lock:
                    if vars(self).get("_unpickled") is unpickled and not unpickled.in_progress:
                        _construct(self, unpickled)
            return object.__getattribute__(self, name)


def _construct(lazy: LazyPickle, unpickled: _PickledState) -> None:
    if OTHER_VERSION in unpickled.arguments:
        name = type(lazy).__name__
        raise ModelError(f"{name}: it was pickled by another version of glnn; make it anew")
    unpickled.in_progress = True  # attributes missing during construction raise AttributeError
    try:
        lazy._reconstruct(unpickled.arguments)
        vars(lazy).update(unpickled.attributes)
        del lazy._unpickled
    finally:
        unpickled.in_progress = False

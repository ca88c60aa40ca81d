"""Layers' parameters: attributes that hold float32 arrays of a fixed shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar, cast, overload

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import ASSIGNMENTS
from glnn.types import Array, Shape, to_float32

T = TypeVar("T")


class Parametrised(Protocol):
    """An object with parameters.

    shapes: of those that it has, by their names. _revisions: counts the assignments to each.
    """

    shapes: Mapping[str, Shape]
    _revisions: dict[str, int]

    def initial(self, name: str) -> Array: ...


class Parameter(Generic[T]):
    """An attribute of a layer: a float32 array, checked when it is assigned.

    Arrays of other real numbers are converted to float32.

    It reads as None where the layer has no such parameter. A parameter that was never assigned
    gets its initial values when it is first read. What is assigned is copied, and what is read
    cannot be written to: sessions notice a new array, not new values in an old one.
    """

    @classmethod
    def with_name(cls, name: str) -> Parameter[T]:
        """Return the parameter `name` of a layer whose parameters' names follow from its
        arguments.
        """
        found = cls()
        found.name = name
        return found

    def __set_name__(self, owner: type[Parametrised], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[Parametrised]) -> Parameter[T]: ...
    @overload
    def __get__(self, layer: Parametrised, owner: type[Parametrised]) -> T: ...
    def __get__(self, layer: Parametrised | None, owner: type[Parametrised]) -> Parameter[T] | T:
        if layer is None:
            return self
        if self.name not in layer.shapes:
            return cast(T, None)
        if self.name not in vars(layer):
            vars(layer)[self.name] = read_only(layer.initial(self.name))
        return cast(T, vars(layer)[self.name])

    def __set__(self, layer: Parametrised, value: T) -> None:
        what = f"{type(layer).__name__} {self.name}"
        shape = layer.shapes.get(self.name)
        if shape is None:
            if value is not None:
                raise ShapeError(f"{what}: this layer was made without one")
            return
        given = to_float32(what, value)
        if given.shape != shape:
            raise ShapeError(f"{what} must have shape {shape}, got {given.shape}")
        vars(layer)[self.name] = read_only(np.array(given))
        layer._revisions[self.name] += 1
        ASSIGNMENTS.add()


def read_only(array: Array) -> Array:
    """Return `array`, which nobody else has, as a view that stays read-only."""
    whole: Array = np.ascontiguousarray(array)
    whole.flags.writeable = False
    view: Array = whole.view()
    return view

"""Layers' parameters: attributes that hold float32 arrays of a fixed shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ShapeError
from glnn.graph.operator import to_float32

if TYPE_CHECKING:
    from glnn.layers.layer import Layer

Array = NDArray[Any]
T = TypeVar("T")


class Parameter(Generic[T]):
    """An attribute of a layer: a float32 array, checked when it is assigned.

    Arrays of other real numbers are converted to float32.

    It reads as None where the layer has no such parameter. A parameter that was never assigned
    gets its initial values when it is first read. What is assigned is copied, and what is read
    cannot be written to: sessions notice a new array, not new values in an old one.
    """

    def __set_name__(self, owner: type[Layer], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, layer: None, owner: type[Layer]) -> Parameter[T]: ...
    @overload
    def __get__(self, layer: Layer, owner: type[Layer]) -> T: ...
    def __get__(self, layer: Layer | None, owner: type[Layer]) -> Parameter[T] | T:
        if layer is None:
            return self
        if self.name not in layer.shapes:
            return cast(T, None)
        if self.name not in vars(layer):
            vars(layer)[self.name] = _read_only(layer.initial(self.name))
        return cast(T, vars(layer)[self.name])

    def __set__(self, layer: Layer, value: T) -> None:
        what = f"{type(layer).__name__} {self.name}"
        shape = layer.shapes.get(self.name)
        if shape is None:
            if value is not None:
                raise ShapeError(f"{what}: this layer was made without one")
            return
        given = to_float32(what, value)
        if given.shape != shape:
            raise ShapeError(f"{what} must have shape {shape}, got {given.shape}")
        vars(layer)[self.name] = _read_only(np.array(given))
        layer.revisions[self.name] += 1


def _read_only(array: Array) -> Array:
    view: Array = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view

"""A run that was begun: the device may still be at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from glnn.errors import ShapeError, shown
from glnn.types import Array, DType, Shape


class Run(Protocol):
    """Some run, to be asked inside `Backend.perform`."""

    def wait(self, seconds: float = float("inf")) -> bool:
        """Wait for the device no longer than `seconds`; whether it is done.

        Raises DeviceError where the device was closed or reset.
        """

    def results(self) -> dict[str, Array]:
        """The outputs that were asked for, by name, waiting for them. Raises the same."""


@dataclass(frozen=True)
class Done:
    """A run that was over when it was begun."""

    found: dict[str, Array]
    """The outputs that were asked for."""

    def wait(self, seconds: float = float("inf")) -> bool:
        return True

    def results(self) -> dict[str, Array]:
        return self.found


def check_out(name: str, array: object, shape: Shape, dtype: DType) -> None:
    """Raise ShapeError unless `array` can take the output called `name`, of that type."""
    like = isinstance(array, np.ndarray) and (array.shape, array.dtype) == (shape, dtype.numpy)
    if like and array.flags.writeable:  # type: ignore[attr-defined]
        return
    got = shown(array)
    if isinstance(array, np.ndarray):
        fixed = "" if array.flags.writeable else "read-only "
        got = f"a {fixed}{array.dtype} array of shape {array.shape}"
    wanted = f"a writeable {dtype.value} array of shape {shape}"
    raise ShapeError(f"out[{name!r}] must be {wanted}, got {got}")

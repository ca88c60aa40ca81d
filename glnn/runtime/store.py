"""A tensor where it is computed, and what has it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from glnn.device import Device, Fence
from glnn.types import Array, DType, Shape

T = TypeVar("T")


class Store(Protocol):
    """Where one tensor is kept.

    Content is `set` and goes to the device when it is needed, or is `put` there, which is for where
    the device may be used. It is read by `pull`, which may keep it, or by `fetch`, as an array that
    is the caller's own: `out`, where given. `ask` has it on its way before.
    """

    shape: Shape
    dtype: DType

    @property
    def nbytes(self) -> int: ...

    def set(self, array: Array) -> None: ...
    def pull(self) -> Array: ...
    def put(self, array: Array) -> None: ...
    def ask(self) -> None: ...
    def fetch(self, out: Array | None = None) -> Array: ...
    def wrote(self) -> None:
        """Note that the device's memory of it was written by way of another store."""


class HostStore:
    """A tensor in the host's memory."""

    def __init__(self, shape: Shape, dtype: DType = DType.float32) -> None:
        self.shape, self.dtype = shape, dtype
        self.array: NDArray[Any] = np.zeros(shape, dtype.numpy)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def set(self, array: NDArray[Any]) -> None:
        self.array = array

    def pull(self) -> NDArray[Any]:
        return self.array

    def put(self, array: NDArray[Any]) -> None:
        self.array = array

    def ask(self) -> None:
        pass  # it is here

    def wrote(self) -> None:
        pass  # it is nowhere else

    def fetch(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        if out is None:
            return np.array(self.array)  # it may be a view of an input, the caller's own
        np.copyto(out, self.array.reshape(out.shape), casting="unsafe")
        return out


class Performer(Protocol):
    """Where runs are performed: a backend, or a device by itself (`OnDevice`)."""

    device: Device | None
    """None where no GL is involved."""

    def perform(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, called where the device may be used. From any thread."""

    def fence(self) -> Fence | None:
        """What waits for all that was asked so far; None where a call returns when it is done."""


class OnDevice:
    """Runs on `device`, for which no backend need be there."""

    def __init__(self, device: Device) -> None:
        self.device: Device | None = device
        self._own = device

    def perform(self, work: Callable[[], T]) -> T:
        """See `Performer`."""
        return self._own.perform(work)

    def fence(self) -> Fence:
        """See `Performer`."""
        fence = self._own.fence()
        self._own.flush()  # nobody may wait for a while
        return fence

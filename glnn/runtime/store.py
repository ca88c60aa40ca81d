"""Store: the memory of one tensor. Performer: the backend or device that uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from glnn.core.types import Array, DType, Shape
from glnn.gl import Device, Fence

T = TypeVar("T")


class Store(Protocol):
    """The memory of one tensor, in the host's or a device's.

    `set` takes an array, which goes to the device when it is needed; `put` moves it there at once,
    inside `perform`. `pull` returns the content, perhaps an array that the store keeps; `fetch`
    copies it to a new array, or to `out`. `start_download` starts the download that `fetch` waits
    for.
    """

    shape: Shape
    dtype: DType

    @property
    def nbytes(self) -> int: ...

    def set(self, array: Array) -> None: ...
    def pull(self) -> Array: ...
    def put(self, array: Array) -> None: ...
    def start_download(self) -> None: ...
    def fetch(self, out: Array | None = None) -> Array: ...
    def mark_written(self) -> None:
        """Note that the device's memory of it was written by way of another store."""


class HostStore:
    """A tensor in the host's memory, of zeros until it is set."""

    def __init__(self, shape: Shape, dtype: DType = DType.float32) -> None:
        self.dtype = dtype
        self.resize(shape)

    def resize(self, shape: Shape) -> None:
        """Be of another shape from now on."""
        self.shape = shape
        self._array: NDArray[Any] | None = None  # most are set before somebody reads them

    @property
    def nbytes(self) -> int:
        return self.pull().nbytes

    def set(self, array: NDArray[Any]) -> None:
        self._array = array

    def pull(self) -> NDArray[Any]:
        if self._array is None:
            self._array = np.zeros(self.shape, self.dtype.numpy)
        return self._array

    def put(self, array: NDArray[Any]) -> None:
        self._array = array

    def release(self) -> None:
        """Drop the content: its memory is free for others, which find it in a cache."""
        self._array = None

    def start_download(self) -> None:
        pass  # it is here

    def mark_written(self) -> None:
        pass  # it is nowhere else

    def fetch(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = self.pull()
        if out is None:
            return np.array(array, order="C")  # it may be a view of an input, the caller's own
        np.copyto(out, array.reshape(out.shape), casting="unsafe")
        return out


class Performer(Protocol):
    """Calls work where the device may be used: a backend, or a device by itself (`OnDevice`)."""

    device: Device | None
    """The device; None where no GL is involved."""

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` where the device may be used; return or raise what it does. Any thread."""

    def fence(self) -> Fence | None:
        """Return a fence behind all commands so far; None where a call returns when it is done."""


class OnDevice:
    """A performer on `device` without a backend, as for stored plans."""

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

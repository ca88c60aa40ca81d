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
    """The memory of one tensor, on the host or on a device.

    `set` takes an array, which is uploaded when it is needed; `put` uploads it at once, inside
    `perform`. `pull` returns the content, perhaps an array that the store keeps; `fetch` copies it
    to a new array, or to `out`. `start_download` starts the download that `fetch` waits for.
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
        """Note that a kernel or another store wrote the tensor's memory on the device."""


class HostStore:
    """A tensor in the host's memory, of zeros until it is set."""

    def __init__(self, shape: Shape, dtype: DType = DType.float32) -> None:
        self.dtype = dtype
        self.resize(shape)

    def resize(self, shape: Shape) -> None:
        """Change the shape, and drop the content."""
        self.shape = shape
        self._array: NDArray[Any] | None = None  # zeros, allocated only if read before `set`

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
        """Drop the content, so that other arrays reuse its memory, which is in the CPU's cache."""
        self._array = None

    def start_download(self) -> None:
        pass

    def mark_written(self) -> None:
        pass

    def fetch(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = self.pull()
        if out is None:
            return np.array(array, order="C")  # a copy: it may be a view of the caller's input
        np.copyto(out, array.reshape(out.shape), casting="unsafe")
        return out


class Performer(Protocol):
    """Calls work on the thread that may use the device: a backend, or `OnDevice`."""

    device: Device | None
    """The device; None where no GL is involved."""

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` on the device's thread; return or raise what it does. From any thread."""

    def fence(self) -> Fence | None:
        """Return a fence behind all commands so far; None where calls are synchronous."""


class OnDevice:
    """A performer on `device` without a backend, as for stored plans."""

    def __init__(self, device: Device) -> None:
        self.device: Device | None = device
        self._device = device  # the same, never None

    def perform(self, work: Callable[[], T]) -> T:
        """See `Performer`."""
        return self._device.perform(work)

    def fence(self) -> Fence:
        """See `Performer`."""
        fence = self._device.fence()
        self._device.flush()  # nobody may wait for a while
        return fence

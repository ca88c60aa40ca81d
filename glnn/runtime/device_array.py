"""DeviceArray: a tensor that runs leave on a device, for further runs to read there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from glnn.core.layout.layout import DENSE
from glnn.core.types import Array, ArrayTypes, DType, Shape, as_float, to_float16
from glnn.errors import DeviceError, ShapeError, shown
from glnn.gl import Buffer, Device
from glnn.gl.block_pool import Allocation, BlockPool
from glnn.gl.buffer import UnclearedBlock, gather

if TYPE_CHECKING:
    from typing_extensions import Self

FLOATS = (DType.float32, DType.float16)
"""The types that lie on a device: numbers of others are checked by the host before a run."""


class DeviceArray:
    """A tensor of which no number changes, on the device whose runs made it or read it last.

    `InferenceSession.run` gives one for each output whose `out` is this class, and takes it for an
    input, of any session: on the same device it is read where it lies, on another it goes by way of
    the host. On a device it is row major, float16 as float32. Integers stay with the host, and so
    does everything on the `cpu` backend. It outlives its session. Any thread may use it.
    """

    def __init__(self, array: Array) -> None:
        """array: the numbers, which are copied. They go to a device with the first run there.

        Raises ShapeError for what is no array of numbers.
        """
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            got = f"a {array.dtype} array" if isinstance(array, np.ndarray) else shown(array)
            raise ShapeError(f"a DeviceArray is made of a NumPy array of numbers, got {got}")
        dtype = DType.from_array(array).numpy
        self._make(array.shape, dtype, np.array(array, dtype, order="C"), None)

    def _make(
        self, shape: Shape, dtype: np.dtype[Any], host: Array | None, block: UnclearedBlock | None
    ) -> Self:
        self.shape = shape
        """The sizes of its dimensions."""
        self.dtype = dtype
        """NumPy's type of its numbers."""
        self._host, self._block = host, block
        self._moved: DeviceArray | None = None
        """The one that has the block, where that is not this one's own."""
        self._allocation: Allocation | None = None
        """The use of the block, where that is this one's own."""
        return self

    @classmethod
    def of_host(cls, array: Array) -> Self:
        """Return one that has `array` itself, which nobody changes any more."""
        return cls.__new__(cls)._make(array.shape, array.dtype, array, None)

    @classmethod
    def allocate(
        cls,
        device: Device,
        shape: Shape,
        dtype: DType,
        available: Callable[[], int | None] = lambda: None,
    ) -> Self:
        """Return one of FLOATS on `device` that is yet to be written. Only inside `perform`.

        available: see `BlockPool.allocate`, whose errors it raises.
        """
        pool = BlockPool.for_device(device)
        (allocation,) = pool.allocate(1, DENSE.size(shape), available=available)
        return cls.from_allocation(shape, dtype, allocation)

    @classmethod
    def from_allocation(cls, shape: Shape, dtype: DType, allocation: Allocation) -> Self:
        """Return one of FLOATS in memory that is yet to be written. Only inside `perform`."""
        result = cls.__new__(cls)._make(shape, dtype.numpy, None, allocation.block)
        result._allocation = allocation
        return result

    def hand_over(self, dtype: DType) -> DeviceArray:
        """Return one with this one's memory, which a run writes to, and give this one up.

        Only inside `perform`, and where `is_at` says that there is such memory.
        """
        owner = self._moved or self
        allocation, owner._allocation = owner._allocation, None
        assert allocation is not None
        self.give_up()
        return self.from_allocation(self.shape, dtype, allocation)

    def is_at(self, block: object) -> bool:
        """Return True where its numbers lie in `block`."""
        return self._block is block

    def give_up(self) -> None:
        """Have no numbers any more: a run was given the memory for an output."""
        self._moved = self._block = self._host = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers in NumPy's type."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device | None:
        """The device that it lies on; None where it is with the host."""
        block = self._block
        return None if block is None else block.device

    def __repr__(self) -> str:
        """The type, the shape, and where it is."""
        where = "with the host" if self.device is None else f"on {self.device}"
        return f"DeviceArray({self.dtype} {self.shape} {where})"

    def numpy(self) -> Array:
        """Return its numbers as a new array; waits for the runs that compute them.

        Raises DeviceError where its device was closed or lost.
        """
        array = self._on_host()
        return array.copy() if array is self._host else array

    def _on_host(self) -> Array:
        """Return the numbers: the array that it keeps, if there is one, else a new one."""
        host, block = self._host, self._block  # in this order: `_move` sets them in the other
        if host is not None:
            return host
        if block is None:
            raise self._given_up()
        return self._open(block).perform(lambda: self._read(block))

    def _open(self, block: UnclearedBlock) -> Device:
        """Return the device of `block`. Raises DeviceError where that is closed."""
        device = block.device
        if device.closed:
            why = device.lost or "its device was closed"
            raise DeviceError(f"the numbers of {self._text()} are lost: {why}")
        return device

    def _given_up(self) -> DeviceError:
        return DeviceError(
            f"the numbers of {self._text()} are gone: a run was given its memory, as `out`, for an "
            "output"
        )

    def _text(self) -> str:
        return f"a DeviceArray of {self.dtype} {self.shape}"

    def block(self, device: Device) -> UnclearedBlock:
        """Return its memory on `device`, where `located` had it. Only inside `perform`."""
        block = self._block
        if block is None:  # by another thread, since `located` had it
            raise self._given_up()
        assert block.device is device
        return block

    def buffer(self, device: Device) -> Buffer:
        """Return its numbers on `device` as a buffer. Only inside `perform`."""
        result = Buffer(self.shape, DENSE, memory=self.block(device))
        result.mark_written()
        return result

    def _read(self, block: UnclearedBlock) -> Array:
        """Copy the numbers from the device. Only inside `Device.perform`."""
        buffer = self.buffer(block.device)
        numbers = gather(block.device, buffer, [(0, self.size)]).reshape(self.shape)
        return to_float16(numbers) if self.dtype == DType.float16.numpy else numbers

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the numbers of a DeviceArray are copied, which copy=False excludes")
        return np.asarray(self.numpy(), dtype)

    def wait(self) -> None:
        """Wait for the runs that compute it. Raises DeviceError where its device was closed."""
        if self._block is not None:
            self._open(self._block).finish()

    def located(self, device: Device | None) -> DeviceArray | Array:
        """Return what a run on `device` reads: this or another one there, or an array of the host.

        Not inside `perform` of any device but that one. Raises DeviceError where its own was
        closed.
        """
        block = self._block
        if block is not None and block.device is device and not block.device.closed:
            return self
        array = self._on_host()
        if device is None or DType.from_array(array) not in FLOATS:
            return array
        numbers = as_float(array)

        def upload() -> DeviceArray:
            result = DeviceArray.allocate(device, self.shape, DType.from_array(array))
            result.buffer(device).put(numbers)
            return result

        return self._move(device.perform(upload))

    def _move(self, uploaded: DeviceArray) -> DeviceArray:
        """Be where `uploaded` is, of the same numbers, from now on; return it for this run."""
        self._moved, self._block = uploaded, uploaded._block
        self._host = None
        return uploaded


Feed = Array | DeviceArray
"""What a run is given for an input."""


def stays_on_device(out: object) -> bool:
    """Return True where an output stays on the device: `out` is DeviceArray, or one to give up."""
    return out is DeviceArray or isinstance(out, DeviceArray)


def any_on_device(feeds: Mapping[str, Feed]) -> bool:
    """Return True where one of `feeds` is a DeviceArray."""
    for one in feeds.values():  # noqa: SIM110 (by `any` it takes longer, in every run)
        if isinstance(one, DeviceArray):
            return True
    return False


def located(feeds: Mapping[str, Feed], device: Device | None) -> Mapping[str, Feed]:
    """Return `feeds` with each DeviceArray as a run on `device` reads it; see that."""
    if not any_on_device(feeds):
        return feeds
    return {
        name: one.located(device) if isinstance(one, DeviceArray) else one
        for name, one in feeds.items()
    }


def host_arrays(feeds: Mapping[str, Feed]) -> dict[str, Array]:
    """Return those of `feeds` that are arrays of the host."""
    return {name: one for name, one in feeds.items() if isinstance(one, np.ndarray)}


def deciding_types(feeds: Mapping[str, Feed], *, small: bool = False) -> ArrayTypes | None:
    """Return the shapes and dtypes of `feeds`, if these decide which plan runs them.

    Return None where numbers decide, too, which they do in int64 arrays, or where one lies on the
    device. small: True where the numbers of int64 arrays need not be looked at, because the runs of
    the plan check that they are small.
    """
    arrays, wide = host_arrays(feeds), DType.int64.numpy
    if len(arrays) < len(feeds):
        return None
    if not small and any(one.dtype == wide for one in arrays.values()):
        return None
    return ArrayTypes(arrays)


def as_host_array(feed: Feed) -> Array:
    """Return `feed` as an array of the host, which the caller must not change."""
    return feed._on_host() if isinstance(feed, DeviceArray) else feed

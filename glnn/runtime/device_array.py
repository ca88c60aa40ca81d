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
"""The types of DeviceArrays on a device: the host checks the numbers of others before a run."""


class DeviceArray:
    """An immutable tensor on the device whose runs wrote it or read it last.

    `InferenceSession.run` returns one for each output whose `out` is this class, and takes it as an
    input of any session: on the same device it is read in place, on another it goes by way of the
    host. On a device it is row major, float16 as float32. Integers stay in the host's memory, and
    so does everything on the `cpu` backend. It outlives its session. Any thread may use it.
    """

    def __init__(self, array: Array) -> None:
        """array: the numbers, which are copied. The first run on a device uploads them.

        Raises ShapeError for anything but an array of numbers.
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
        self._uploaded: DeviceArray | None = None
        """The array that owns the block, where an upload created that; None where this one does."""
        self._allocation: Allocation | None = None
        """The allocation of the block, where this array owns it."""
        return self

    @classmethod
    def of_host(cls, array: Array) -> Self:
        """Return one of `array` itself, which must not change any more."""
        return cls.__new__(cls)._make(array.shape, array.dtype, array, None)

    @classmethod
    def allocate(
        cls,
        device: Device,
        shape: Shape,
        dtype: DType,
        available: Callable[[], int | None] = lambda: None,
    ) -> Self:
        """Return one of undefined content on `device`. Only inside `perform`. dtype: of FLOATS.

        available: see `BlockPool.allocate`, whose errors it raises.
        """
        pool = BlockPool.for_device(device)
        (allocation,) = pool.allocate(1, DENSE.size(shape), available=available)
        return cls.from_allocation(shape, dtype, allocation)

    @classmethod
    def from_allocation(cls, shape: Shape, dtype: DType, allocation: Allocation) -> Self:
        """Return one of undefined content in `allocation`. Only inside `perform`."""
        result = cls.__new__(cls)._make(shape, dtype.numpy, None, allocation.block)
        result._allocation = allocation
        return result

    def hand_over(self, dtype: DType) -> DeviceArray:
        """Return a new DeviceArray with this one's memory, for an output, and give this one up.

        Only inside `perform`, and where this one has memory (`is_at`).
        """
        owner = self._uploaded or self
        allocation, owner._allocation = owner._allocation, None
        assert allocation is not None
        self.give_up()
        return self.from_allocation(self.shape, dtype, allocation)

    def is_at(self, block: object) -> bool:
        """Return True where its memory is `block`."""
        return self._block is block

    def give_up(self) -> None:
        """Drop the numbers, as a run writes an output to their memory."""
        self._uploaded = self._block = self._host = None

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
        """The device that has it; None for the host."""
        block = self._block
        return None if block is None else block.device

    def __repr__(self) -> str:
        """Return the type, the shape, and the device."""
        where = "with the host" if self.device is None else f"on {self.device}"
        return f"DeviceArray({self.dtype} {self.shape} {where})"

    def numpy(self) -> Array:
        """Return its numbers as a new array; waits for the runs that compute them.

        Raises DeviceError where its device was closed or lost.
        """
        array = self._on_host()
        return array.copy() if array is self._host else array

    def _on_host(self) -> Array:
        """Return the numbers: its own array, if it has one, else a new one."""
        host, block = self._host, self._block  # in this order: `_move_to` sets them in the other
        if host is not None:
            return host
        if block is None:
            raise self._given_up_error()
        return self._open_device(block).perform(lambda: self._read(block))

    def _open_device(self, block: UnclearedBlock) -> Device:
        """Return the device of `block`. Raises DeviceError where that is closed."""
        device = block.device
        if device.closed:
            why = device.lost or "its device was closed"
            raise DeviceError(f"the numbers of {self._description()} are lost: {why}")
        return device

    def _given_up_error(self) -> DeviceError:
        return DeviceError(
            f"the numbers of {self._description()} are gone: a run was given its memory, as `out`, "
            "for an output"
        )

    def _description(self) -> str:
        return f"a DeviceArray of {self.dtype} {self.shape}"

    def block(self, device: Device) -> UnclearedBlock:
        """Return its memory on `device`, after `located(device)`. Only inside `perform`."""
        block = self._block
        if block is None:  # another thread gave it up since `located`
            raise self._given_up_error()
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
            self._open_device(self._block).finish()

    def located(self, device: Device | None) -> DeviceArray | Array:
        """Return the array that a run on `device` reads: a DeviceArray on it, or the host's array.

        Not inside `perform` of another device. Raises DeviceError where its own device was closed.
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

        return self._move_to(device.perform(upload))

    def _move_to(self, uploaded: DeviceArray) -> DeviceArray:
        """Share the memory of `uploaded`, of the same numbers, from now on, and return that."""
        self._uploaded, self._block = uploaded, uploaded._block
        self._host = None
        return uploaded


Feed = Array | DeviceArray
"""The argument of a run for an input."""


def stays_on_device(out: object) -> bool:
    """Return True where an output stays on the device: `out` is the class or an instance."""
    return out is DeviceArray or isinstance(out, DeviceArray)


def any_on_device(feeds: Mapping[str, Feed]) -> bool:
    """Return True where one of `feeds` is a DeviceArray."""
    for one in feeds.values():  # noqa: SIM110 (by `any` it takes longer, in every run)
        if isinstance(one, DeviceArray):
            return True
    return False


def located(feeds: Mapping[str, Feed], device: Device | None) -> Mapping[str, Feed]:
    """Return `feeds` with each DeviceArray as a run on `device` reads it (`located`)."""
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
    """Return the shapes and dtypes of `feeds`, if these alone decide which plan runs them.

    Return None where the numbers of int64 arrays decide, too, or where one is on a device. small:
    True where the numbers need no check, because the plan's runs check that they are small.
    """
    arrays, int64 = host_arrays(feeds), DType.int64.numpy
    if len(arrays) < len(feeds):
        return None
    if not small and any(one.dtype == int64 for one in arrays.values()):
        return None
    return ArrayTypes(arrays)


def as_host_array(feed: Feed) -> Array:
    """Return `feed` as an array of the host, which the caller must not change."""
    return feed._on_host() if isinstance(feed, DeviceArray) else feed

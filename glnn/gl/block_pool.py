"""Blocks of device memory for tensors that come and go, as caches of keys and values do."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from glnn.core.settings import Settings
from glnn.errors import NoRoomError
from glnn.gl.buffer import MIN_WORDS, UnclearedBlock
from glnn.gl.device import Device

MOST_UNUSED = 2
"""A block is taken for a tensor of no less than this part of it."""


class Lease:
    """The use of `block`, which is the pool's again once nobody has the lease, in any thread."""

    __slots__ = ("_pool", "block")

    def __init__(self, pool: BlockPool, block: UnclearedBlock) -> None:
        self._pool, self.block = pool, block

    def __del__(self) -> None:
        self._pool.take_back(self.block)


class BlockPool:
    """Blocks of `device` that no tensor has, for the next. Only inside `Device.perform`.

    It keeps no more bytes than tensors have at the time, so that two caches that take turns
    allocate nothing.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[UnclearedBlock, None] = {}
        """The first has been free for the longest."""
        self._by_size: dict[int, list[UnclearedBlock]] = {}
        """The same by their words, in order."""
        self._free_bytes = self._used_bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks, those of tensors and those that are free."""
        return self._used_bytes + self._free_bytes

    @classmethod
    def for_device(cls, device: Device) -> BlockPool:
        """Return the pool of `device`, created on first use."""
        if device.blocks is None:
            device.blocks = cls(device)
        result: BlockPool = device.blocks
        return result

    def allocate(
        self, words: int, slack: int = 0, available: Callable[[], int | None] = lambda: None
    ) -> Lease:
        """Return the use of a block of at least `words`, whose content nobody knows.

        slack: further words of a new one, where larger ones will be wanted. available: returns the
        bytes that a new one may take, None where nobody knows. Raises NoRoomError where memory runs
        out.
        """
        words = max(words, MIN_WORDS)
        block = self._free_fitting(words, slack)
        if block is None:
            self._device.collect()  # which gives back what was dropped
            block = self._free_fitting(words, slack) or self._new_block(words, slack, available)
        self._used_bytes += block.nbytes
        return Lease(self, block)

    def _free_fitting(self, words: int, slack: int) -> UnclearedBlock | None:
        """Take a free block of a fitting size; None where there is none.

        Always in one order, whichever was free first: what takes turns finds its own again.
        """
        most = MOST_UNUSED * (words + slack)
        size = min((one for one in self._by_size if words <= one <= most), default=None)
        if size is None:
            return None
        block = self._by_size[size][0]
        self._remove(block)
        return block

    def _remove(self, block: UnclearedBlock) -> None:
        """Have a free block no more."""
        alike = self._by_size[block.size]
        alike.remove(block)
        if not alike:
            del self._by_size[block.size]
        del self._free[block]
        self._free_bytes -= block.nbytes

    def _new_block(
        self, words: int, slack: int, available: Callable[[], int | None]
    ) -> UnclearedBlock:
        free = available()
        if free is not None and 4 * (words + slack) > free:
            self._free.clear()  # which are too small, or too large
            self._by_size.clear()
            self._free_bytes = slack = 0
            self._device.collect()
            free = available()
            if free is not None and 4 * words > free:
                raise NoRoomError(
                    f"a tensor that stays on the device needs {4 * words} bytes, {free} are free; "
                    f"others that were left there have {self._used_bytes}"
                )
        return UnclearedBlock(words + slack, self._device)

    def take_back(self, block: UnclearedBlock) -> None:
        """Have `block` be free with the next use of GL; in any thread."""
        self._device.drop(partial(self._free_block, block))

    def _free_block(self, block: UnclearedBlock) -> None:
        self._used_bytes -= block.nbytes
        self._free[block] = None
        insort(self._by_size.setdefault(block.size, []), block, key=attrgetter("order"))
        self._free_bytes += block.nbytes
        while self._free_bytes > self._used_bytes:
            self._remove(next(iter(self._free)))


def available(device: Device) -> int | None:
    """Return the bytes that plans may take on `device`; None where nobody knows.

    What `GLNN_MEMORY` allows is for tensors that stay there, too.
    """
    allowed, pool = Settings.from_environment().memory, device.blocks
    if allowed is None:
        return device.memory_available()
    return allowed - (0 if pool is None else pool.nbytes)

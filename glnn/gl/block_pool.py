"""Blocks of device memory for tensors that come and go, as caches of keys and values do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from glnn.core.settings import Settings
from glnn.errors import NoRoomError
from glnn.gl.buffer import MIN_WORDS, UnclearedBlock
from glnn.gl.device import Device

MAX_OVERSIZE_FACTOR = 2
"""The most times the size of a new block that a free block may have to be used instead."""


class Allocation:
    """The use of `block`: once it is garbage, in any thread, the block is the pool's again."""

    __slots__ = ("_pool", "block")

    def __init__(self, pool: BlockPool, block: UnclearedBlock) -> None:
        self._pool, self.block = pool, block

    def __del__(self) -> None:
        self._pool.free(self.block)


class BlockPool:
    """Free blocks of `device`, for new tensors to reuse. Only inside `Device.perform`.

    It keeps no more free bytes than tensors use at the time, which is enough for two caches that
    take turns to allocate nothing. An exception, as of Ctrl-C, may end any method anywhere: a block
    that was being moved is then in no list, and Python frees it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[UnclearedBlock, None] = {}
        """The free blocks, the one that has been free for the longest first."""
        self._used: dict[UnclearedBlock, None] = {}
        """The blocks of allocations, none of which is free."""
        self._returned: deque[UnclearedBlock] = deque()
        """The blocks whose allocations are gone, and that are not in `_free` yet."""
        self._is_queued = False
        """True where the next use of GL will move them to `_free`."""

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks, both used and free."""
        return self._used_bytes + self._free_bytes

    @property
    def _used_bytes(self) -> int:
        return _nbytes(self._used)

    @property
    def _free_bytes(self) -> int:
        return _nbytes(self._free)

    @classmethod
    def for_device(cls, device: Device) -> BlockPool:
        """Return the pool of `device`, created on first use."""
        if device.blocks is None:
            device.blocks = cls(device)
        result: BlockPool = device.blocks
        return result

    def allocate(
        self,
        count: int,
        words: int,
        slack: int = 0,
        available: Callable[[], int | None] = lambda: None,
    ) -> list[Allocation]:
        """Allocate `count` blocks of at least `words` each, of undefined content.

        slack: further words of new blocks, for tensors that grow. available: returns the bytes that
        new blocks may take, None where unknown. Raises NoRoomError where memory runs out.
        """
        words = max(words, MIN_WORDS)
        allocations = self._take_fitting(count, words, slack)
        if len(allocations) < count:
            self._collect()
            allocations += self._take_fitting(count - len(allocations), words, slack)
        if len(allocations) < count:
            slack = self._make_room(count - len(allocations), words, slack, available)
        while len(allocations) < count:
            allocations.append(self._allocation(UnclearedBlock(words + slack, self._device)))
        return allocations

    def _allocation(self, block: UnclearedBlock) -> Allocation:
        """Return the use of a block that is neither free nor used."""
        result = Allocation(self, block)  # first: its `__del__` returns the block after Ctrl-C
        self._used[block] = None
        return result

    def _take_fitting(self, count: int, words: int, slack: int) -> list[Allocation]:
        """Take up to `count` free blocks of fitting sizes.

        Always in the same order, whichever was free first, so that tensors that take turns get the
        same blocks again.
        """
        result: list[Allocation] = []
        most = MAX_OVERSIZE_FACTOR * (words + slack)
        fitting = [block for block in self._free if words <= block.size <= most]
        for block in sorted(fitting, key=attrgetter("order"))[:count]:
            del self._free[block]
            result.append(self._allocation(block))
        return result

    def _collect(self) -> None:
        """Free the device's garbage and the returned blocks, also where none were queued."""
        self._device.collect_garbage()
        self._free_returned()

    def _make_room(
        self, count: int, words: int, slack: int, available: Callable[[], int | None]
    ) -> int:
        """Free memory for `count` new blocks; return the slack that fits, `slack` or 0."""
        free = available()
        if free is None or 4 * count * (words + slack) <= free:
            return slack
        self._free.clear()  # the free blocks do not fit: they are too small, or too large
        self._collect()
        free = available()
        if free is not None and 4 * count * words > free:
            subject = f"{count} tensors that stay on the device need"
            subject = "a tensor that stays on the device needs" if count == 1 else subject
            raise NoRoomError(
                f"{subject} {4 * count * words} bytes, {free} are free; others that were left "
                f"there have {self._used_bytes}"
            )
        return 0

    def free(self, block: UnclearedBlock) -> None:
        """Free `block` with the next use of GL; in any thread."""
        self._returned.append(block)
        if not self._is_queued:
            self._is_queued = True
            self._device.delete_later(self._free_returned)

    def _free_returned(self) -> None:
        """Free the returned blocks, and keep no more free bytes than tensors use."""
        self._is_queued = False  # first: blocks that return from now on are queued again
        while self._returned:
            block = self._returned[0]
            self._used.pop(block, None)
            self._returned.popleft()
            self._free[block] = None  # last: a free block is in no other list
        excess = self._free_bytes - self._used_bytes
        while excess > 0:
            block = next(iter(self._free))
            excess -= block.nbytes
            del self._free[block]


def _nbytes(blocks: Iterable[UnclearedBlock]) -> int:
    """Return the bytes of all blocks, in any thread."""
    return sum([block.nbytes for block in tuple(blocks)])  # a copy: another thread may add some


def available(device: Device) -> int | None:
    """Return the bytes that plans may take on `device`; None where unknown.

    `GLNN_MEMORY` limits the blocks of the pool, too.
    """
    allowed, pool = Settings.from_environment().memory, device.blocks
    if allowed is None:
        return device.memory_available()
    return allowed - (0 if pool is None else pool.nbytes)

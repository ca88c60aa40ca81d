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
"""A free block is taken for a tensor where it has at most this many times what a new one would."""


class Allocation:
    """The use of `block`, which is the pool's again once nobody has this, in any thread."""

    __slots__ = ("_pool", "block")

    def __init__(self, pool: BlockPool, block: UnclearedBlock) -> None:
        self._pool, self.block = pool, block

    def __del__(self) -> None:
        self._pool.free(self.block)


class BlockPool:
    """Blocks of `device` that no tensor has, for the next. Only inside `Device.perform`.

    It keeps no more bytes than tensors have at the time, so that two caches that take turns
    allocate nothing. An exception, as Ctrl-C's, may end any of it anywhere: a block that it was
    about to move is then nobody's, and Python frees it.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[UnclearedBlock, None] = {}
        """The first has been free for the longest."""
        self._used: dict[UnclearedBlock, None] = {}
        """Those that allocations have, none of which is free."""
        self._returned: deque[UnclearedBlock] = deque()
        """Blocks that nobody uses any more, and that are not in `_free` yet."""
        self._is_queued = False
        """Whether the device puts them there with the next use of GL."""

    @property
    def nbytes(self) -> int:
        """Bytes of its blocks, those of tensors and those that are free."""
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
        """Allocate `count` blocks of at least `words` each, whose content nobody knows.

        slack: further words of new ones, where larger ones will be wanted. available: returns the
        bytes that new ones may take, None where nobody knows. Raises NoRoomError where memory runs
        out.
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
        result = Allocation(self, block)  # first: whatever ends this takes the block back
        self._used[block] = None
        return result

    def _take_fitting(self, count: int, words: int, slack: int) -> list[Allocation]:
        """Take up to `count` free blocks of fitting sizes.

        Always in one order, whichever was free first: what takes turns finds its own again.
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
        """Return the slack that there is room for in `count` new blocks; see `allocate`."""
        free = available()
        if free is None or 4 * count * (words + slack) <= free:
            return slack
        self._free.clear()  # which are too small, or too large
        self._collect()
        free = available()
        if free is not None and 4 * count * words > free:
            those = f"{count} tensors that stay on the device need"
            those = "a tensor that stays on the device needs" if count == 1 else those
            raise NoRoomError(
                f"{those} {4 * count * words} bytes, {free} are free; others that were left there "
                f"have {self._used_bytes}"
            )
        return 0

    def free(self, block: UnclearedBlock) -> None:
        """Have `block` be free with the next use of GL; in any thread."""
        self._returned.append(block)
        if not self._is_queued:
            self._is_queued = True
            self._device.delete_later(self._free_returned)

    def _free_returned(self) -> None:
        """Have the returned blocks be free, and keep no more bytes than tensors have."""
        self._is_queued = False  # first: what comes from now on is queued again
        while self._returned:
            block = self._returned[0]
            self._used.pop(block, None)
            self._returned.popleft()
            self._free[block] = None  # last: what is free is nowhere else
        excess = self._free_bytes - self._used_bytes
        while excess > 0:
            block = next(iter(self._free))
            excess -= block.nbytes
            del self._free[block]


def _nbytes(blocks: Iterable[UnclearedBlock]) -> int:
    """Return the bytes of all of them, in any thread."""
    return sum([block.nbytes for block in tuple(blocks)])  # a copy: another thread may add some


def available(device: Device) -> int | None:
    """Return the bytes that plans may take on `device`; None where nobody knows.

    What `GLNN_MEMORY` allows is for tensors that stay there, too.
    """
    allowed, pool = Settings.from_environment().memory, device.blocks
    if allowed is None:
        return device.memory_available()
    return allowed - (0 if pool is None else pool.nbytes)

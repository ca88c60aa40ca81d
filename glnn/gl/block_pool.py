"""Blocks of device memory for tensors that come and go, as caches of keys and values do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from weakref import finalize

from glnn.core.settings import Settings
from glnn.errors import NoRoomError
from glnn.gl.buffer import MIN_WORDS, UnclearedBlock
from glnn.gl.device import Device

MOST_UNUSED = 2
"""A block is taken for a tensor of no less than this part of it."""


class BlockPool:
    """Blocks of `device` that no tensor has, for the next. Only inside `Device.perform`.

    It keeps no more bytes than tensors have at the time, so that two caches that take turns
    allocate nothing.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: deque[UnclearedBlock] = deque()
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
    ) -> UnclearedBlock:
        """Return a block of at least `words`, whose content nobody knows.

        slack: further words of a new one, where larger ones will be wanted. available: returns the
        bytes that a new one may take, None where nobody knows. Raises NoRoomError where memory runs
        out.
        """
        self._device.collect()  # which gives back what was dropped
        words = max(words, MIN_WORDS)
        fitting = [one for one in self._free if words <= one.size <= MOST_UNUSED * (words + slack)]
        if fitting:
            # Always in one order, whichever was free first: what takes turns finds its own again.
            block = min(fitting, key=attrgetter("order"))
            self._free.remove(block)
            self._free_bytes -= block.nbytes
        else:
            block = self._new_block(words, slack, available)
        self._used_bytes += block.nbytes
        return block

    def _new_block(
        self, words: int, slack: int, available: Callable[[], int | None]
    ) -> UnclearedBlock:
        free = available()
        if free is not None and 4 * (words + slack) > free:
            self._free.clear()  # which are too small, or too large
            self._free_bytes = slack = 0
            self._device.collect()
            free = available()
            if free is not None and 4 * words > free:
                raise NoRoomError(
                    f"a tensor that stays on the device needs {4 * words} bytes, {free} are free; "
                    f"others that were left there have {self._used_bytes}"
                )
        return UnclearedBlock(words + slack, self._device)

    def free_with(self, owner: object, block: UnclearedBlock) -> finalize[..., object]:
        """Have `block` be free once `owner` is gone, in whatever thread that is; return what does
        it, which may be detached.
        """
        freed = finalize(owner, self._device.drop, partial(self._free_block, block))
        freed.atexit = False
        return freed

    def _free_block(self, block: UnclearedBlock) -> None:
        self._used_bytes -= block.nbytes
        self._free.append(block)
        self._free_bytes += block.nbytes
        while self._free_bytes > self._used_bytes:
            self._free_bytes -= self._free.popleft().nbytes


def available(device: Device) -> int | None:
    """Return the bytes that plans may take on `device`; None where nobody knows.

    What `GLNN_MEMORY` allows is for tensors that stay there, too.
    """
    allowed, pool = Settings.from_environment().memory, device.blocks
    if allowed is None:
        return device.memory_available()
    return allowed - (0 if pool is None else pool.nbytes)

"""Blocks of device memory for tensors that come and go, as caches of keys and values do."""

from __future__ import annotations

from collections import deque
from functools import partial
from weakref import finalize

from glnn.gl.buffer import UnclearedBlock
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

    @classmethod
    def for_device(cls, device: Device) -> BlockPool:
        """Return the pool of `device`, created on first use."""
        if device.blocks is None:
            device.blocks = cls(device)
        result: BlockPool = device.blocks
        return result

    def allocate(self, words: int, slack: int = 0) -> UnclearedBlock:
        """Return a block of at least `words`, whose content nobody knows.

        slack: further words of a new one, where larger ones will be wanted. Raises DeviceError,
        NoRoomError where memory runs out.
        """
        self._device.collect()  # which gives back what was dropped
        fitting = [one for one in self._free if words <= one.size <= MOST_UNUSED * (words + slack)]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self._free.remove(block)
            self._free_bytes -= block.nbytes
        else:
            block = UnclearedBlock(words + slack, self._device)
        self._used_bytes += block.nbytes
        return block

    def free_with(self, owner: object, block: UnclearedBlock) -> None:
        """Have `block` be free once `owner` is gone, in whatever thread that is."""
        freed = partial(self._device.drop, partial(self._free_block, block))
        finalize(owner, freed).atexit = False

    def _free_block(self, block: UnclearedBlock) -> None:
        self._used_bytes -= block.nbytes
        self._free.append(block)
        self._free_bytes += block.nbytes
        while self._free_bytes > self._used_bytes:
            self._free_bytes -= self._free.popleft().nbytes

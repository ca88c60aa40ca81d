"""Progress of a device: fences that tell which of its commands are complete."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint, c_uint64, c_void_p
from typing import Any

from glnn.gl.waiting import BLOCK, polled

SYNC_GPU_COMMANDS_COMPLETE, SYNC_FLUSH_COMMANDS = 0x9117, 1
TIMEOUT_EXPIRED, WAIT_FAILED = 0x911B, 0x911D
LONGEST = 1.0  # seconds of one wait, so that Ctrl-C is seen


class Timeline:
    """The commands of a context, in stretches: fences end them, and waits for all.

    how: one of WAITS, in which fences are waited for.
    """

    def __init__(self, how: str = BLOCK) -> None:
        self.how = how
        self.now = 1
        """The stretch that commands given now belong to."""
        self.done = 0
        """The last stretch known to be over."""
        self._functions: tuple[Any, Any, Any] | None = None

    @property
    def idle(self) -> bool:
        """Return True where all stretches that were ended are known to be over."""
        return self.done + 1 == self.now

    def end(self, *, over: bool = False) -> int:
        """End the stretch, and say which it was. over: whether all its commands are done."""
        ended, self.now = self.now, self.now + 1
        if over:
            self.done = ended
        return ended

    def fence(self, load: Callable[..., Any], check: Callable[[str], None]) -> Fence:
        """A fence behind all commands so far.

        load: gives GL's functions. check: raises DeviceError where the context was reset.
        """
        if self._functions is None:
            self._functions = (
                load("glFenceSync", c_void_p, c_uint, c_uint),
                load("glClientWaitSync", c_uint, c_void_p, c_uint, c_uint64),
                load("glDeleteSync", None, c_void_p),
            )
        make, wait, delete = self._functions
        return Fence(self, make(SYNC_GPU_COMMANDS_COMPLETE, 0), wait, delete, check)


class Fence:
    """The end of a stretch of a device's commands, to be waited for. Only inside `perform`."""

    def __init__(
        self,
        timeline: Timeline,
        sync: int | None,
        wait: Any,
        delete: Any,
        check: Callable[[str], None],
    ) -> None:
        self._timeline, self._sync = timeline, sync
        self._wait, self._delete, self._check = wait, delete, check
        self.stretch = timeline.end()

    @property
    def over(self) -> bool:
        """Return True where the stretch is known to be over."""
        return self._timeline.done >= self.stretch

    def wait(self, seconds: float = float("inf"), *, checked: bool = True) -> bool:
        """Wait for it no longer than `seconds`; whether it is over.

        checked: whether to raise DeviceError where the driver has reset the context, which closes
        the device: what is mapped is gone then.
        """
        if self._timeline.how != BLOCK and not self._polled(seconds):
            return False
        while not self.over and self._sync is not None:
            part = min(seconds, LONGEST)
            said = self._wait(self._sync, SYNC_FLUSH_COMMANDS, int(1e9 * part))
            if said == TIMEOUT_EXPIRED:
                seconds -= part
                if seconds <= 0:
                    return False
                continue
            if said != WAIT_FAILED:
                self._timeline.done = max(self._timeline.done, self.stretch)
            break
        if self._sync is not None:
            self.drop()
            if checked:
                self._check("wait")
        return True

    def _polled(self, seconds: float) -> bool:
        """Ask for no longer than `seconds` whether it is over, or cannot be; whether that is so."""

        def over() -> bool:
            if self.over or self._sync is None:
                return True
            return bool(self._wait(self._sync, SYNC_FLUSH_COMMANDS, 0) != TIMEOUT_EXPIRED)

        return polled(over, self._timeline.how, seconds)

    def drop(self) -> None:
        """Give up what GL keeps for it: nobody waits for it any more."""
        if self._sync is not None:
            self._delete(self._sync)
            self._sync = None

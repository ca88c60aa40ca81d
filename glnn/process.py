"""Forked processes: what they inherit of locks and of GL is of no use to them."""

from __future__ import annotations

import os
import threading
from typing import Any

from glnn.errors import DeviceError


class ProcessLock:
    """A reentrant lock for the threads of one process. A fork finds it free, whoever held it."""

    def __init__(self) -> None:
        self._locks: dict[int, Any] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.RLock()).acquire()

    def __exit__(self, *error: object) -> None:
        self._locks[os.getpid()].release()


class GlProcess:
    """The process that uses GL.

    A fork of it cannot: the driver's threads are not in it, its locks may be held by them.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._opened = False

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that uses GL."""
        return self._pid is not None and self._pid != os.getpid()

    def check(self) -> None:
        """Raise DeviceError in a fork. To be called before any lock is taken."""
        if self.forked:
            raise DeviceError(
                f"process {self._pid} used GL before this one was forked from it, and GL does not "
                'survive that: start processes by "spawn", as multiprocessing.get_context("spawn") '
                "does, or fork before GL is used"
            )

    def opening(self) -> None:
        """Note that this process begins with GL. Raises DeviceError in a fork."""
        self.check()
        self._pid = os.getpid()

    def opened(self, *, any: bool) -> None:
        """Note whether a context opened: where none ever did, forks may try for themselves."""
        self._opened |= any
        self._pid = os.getpid() if self._opened else None


GL_PROCESS = GlProcess()

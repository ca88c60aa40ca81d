"""Who has a GL context: one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from glnn.device.context import Context
from glnn.errors import DeviceError


class Lease:
    """Lends a context to the thread that asks for it, and takes it back.

    GL gives a context to a thread only after the one that has it let go of it. So a thread has it
    from `take` to `give`, which nest, and leaves it then; or, after `hold`, until `release`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()
        self._depth = 0
        self._user: threading.Thread | None = None
        self._holder: threading.Thread | None = None
        self._restore: Callable[[], object] | None = None

    @property
    def held_here(self) -> bool:
        """Whether this thread holds the context."""
        return self._holder is threading.current_thread()

    @property
    def inside(self) -> bool:
        """Whether this thread is between `take` and `give`, or holds the context."""
        return threading.current_thread() in (self._user, self._holder)

    def take(self) -> None:
        """Have the context current in this thread, once no other uses it.

        Raises DeviceError where another thread holds it, StepError where GL refuses.
        """
        self._lock.acquire()
        try:
            if self._holder is not None and not self.held_here:
                raise DeviceError(
                    f"the device is held by the thread {self._holder.name!r}: give it work by "
                    "perform(), or let that thread, if it called activate(), call release()"
                )
            current = self._context.is_current()
            if not self._depth and self._holder is None:
                self._restore = None if current else self._context.remember()
            if not current:
                self._context.make_current()
        except BaseException:
            self._lock.release()
            raise
        self._depth += 1
        self._user = threading.current_thread()

    def give(self) -> None:
        """End what the last `take` began."""
        self._depth -= 1
        try:
            if not self._depth:
                self._user = None
                if self._holder is None:
                    self._leave()
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Keep the context after the `give` that ends the outermost `take`, if that is the last."""
        if self._depth == 1 and self._holder is None:
            self._holder, self._restore = threading.current_thread(), None

    def release(self) -> None:
        """End what `hold` began. Harmless in a thread that holds nothing."""
        with self._lock:
            if self.held_here:
                self._holder = None
                if not self._depth:
                    self._leave()

    def end(self, destroy: Callable[[], object]) -> None:
        """Call `destroy`, which destroys the context, once no other thread uses it."""
        with self._lock:
            destroy()

    def _leave(self) -> None:
        restore, self._restore = self._restore, None
        self._context.leave()
        if restore is not None:
            restore()

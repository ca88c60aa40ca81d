"""Who has a GL context: one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from glnn.errors import DeviceError
from glnn.gl.context import Context
from glnn.process import KEEPING, alone

KEPT_SECONDS = 1.0  # to wait for a thread that keeps the context


class Lease:
    """Lends a context to the thread that asks for it, and takes it back.

    GL gives a context to a thread only after the one that has it let go of it. So a thread has it
    from `take` to `give`, which nest, and leaves it then; or, after `hold`, until `release`. While
    there is no other thread it keeps it after `give`, if it had no other context before, until it
    starts a thread, takes another context, or calls `release`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Condition()  # notified when a thread keeps the context no more
        self._depth = 0
        self._user: threading.Thread | None = None
        self._holder: threading.Thread | None = None
        self._keeper: threading.Thread | None = None
        self._restore: Callable[[], object] | None = None

    @property
    def held_here(self) -> bool:
        """Return True where this thread holds the context."""
        return self._holder is threading.current_thread()

    @property
    def taken_here(self) -> bool:
        """Return True where this thread is between `take` and `give`."""
        return self._user is threading.current_thread()

    @property
    def inside(self) -> bool:
        """Return True where this thread is between `take` and `give`, or holds the context."""
        return threading.current_thread() in (self._user, self._holder)

    def take(self) -> None:
        """Have the context current in this thread, once no other uses it.

        Raises DeviceError where another thread holds or keeps it, StepError where GL refuses.
        """
        self._lock.acquire()
        try:
            if self._holder is not None and not self.held_here:
                raise DeviceError(
                    f"the device is held by the thread {self._holder.name!r}: give it work by "
                    "perform(), or let that thread, if it called activate(), call release()"
                )
            if self._keeper is None:
                KEEPING.leave()  # another device's
            else:
                self._end_keeping(self._keeper)
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

    def _end_keeping(self, keeper: threading.Thread) -> None:
        """Have it not kept any more. Raises DeviceError where another thread goes on keeping it."""
        if keeper is threading.current_thread():
            self._keeper = None
            KEEPING.forget()
        elif not self._lock.wait_for(lambda: self._keeper is None, KEPT_SECONDS):
            raise DeviceError(
                f"the thread {keeper.name!r} keeps the device, as it knew of no other thread "
                "(C libraries start some by themselves): let it call the device's release()"
            )

    def give(self) -> None:
        """End what the last `take` began."""
        self._depth -= 1
        try:
            if not self._depth:
                self._user = None
                if self._holder is None:
                    self._keep_or_leave()
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Keep the context after the `give` that ends the outermost `take`, if that is the last."""
        if self._depth == 1 and self._holder is None:
            self._holder, self._restore = threading.current_thread(), None

    def release(self) -> None:
        """End what `hold` began, and keeping. Harmless in a thread that does neither."""
        with self._lock:
            if threading.current_thread() in (self._holder, self._keeper):
                self._holder = None
                if not self._depth:
                    self._leave()

    def end(self, destroy: Callable[[], object]) -> None:
        """Call `destroy`, which destroys the context, once no other thread uses it."""
        with self._lock:
            destroy()
            self._keeper = None
            self._lock.notify_all()

    def _keep_or_leave(self) -> None:
        if KEEPING.possible and self._restore is None and self._context.may_stay and alone():
            self._keeper = threading.current_thread()
            KEEPING.keep(self.release)
        else:
            self._leave()

    def _leave(self) -> None:
        restore, self._restore = self._restore, None
        self._context.leave()
        if restore is not None:
            restore()
        if self._keeper is not None:
            self._keeper = None
            self._lock.notify_all()

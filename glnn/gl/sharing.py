"""Choice of the thread that works with a GL context: the caller's or a worker (docs/threads.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from glnn.errors import DeviceError
from glnn.gl.context import Context
from glnn.gl.lease import Lease
from glnn.gl.worker import Begun, Worker
from glnn.process import KEEPING

T = TypeVar("T")
B = TypeVar("B", bound=Begun)


class Sharing:
    """A context for all threads.

    As long as only the thread that opened it asks, that thread does the work, and leaves the
    context after it unless there is no other thread. The first request of another thread begins a
    worker that does it for all from then on: drivers take long to get ready for a thread (NVIDIA's
    38 ms), and a server's are many.

    worker: not yet started, so that whoever destroys the context can stop it.
    """

    def __init__(self, context: Context, worker: Worker) -> None:
        self._context, self._worker = context, worker
        self._opener = threading.current_thread()
        self._lease = Lease(context)
        self._deciding = threading.Lock()

    def perform(self, work: Callable[[], T], ready: Callable[[], object]) -> T:
        """Call `work` and return its result; the outermost call first calls `ready` with the
        context current.

        Raises DeviceError where another thread holds the context, StepError where GL refuses it,
        StoppedError after `end`.
        """
        if self._lease.inside:
            return work()
        if not self._begin_here():
            return self._worker.call(lambda: self._work_there(work, ready))
        try:
            ready()
            return work()
        finally:
            self._lease.give()

    @property
    def contended(self) -> bool:
        """Return True where other threads wait for the worker, and this thread would have to."""
        return self._worker.busy and not self._lease.inside

    def overlap(
        self, begin: Callable[[], B], end: Callable[[B], T], ready: Callable[[], object]
    ) -> T:
        """Call `end` on the result of `begin` and return its result; both are called as by
        `perform`.

        By the worker, others may begin in between: see `Worker.overlap`.
        """
        if not self._worker.started or self._lease.inside:
            return self.perform(lambda: end(begin()), ready)
        KEEPING.leave()
        return self._worker.overlap(
            lambda: self._work_there(begin, ready),
            lambda begun: self._work_there(lambda: end(begun), ready),
        )

    @property
    def current(self) -> bool:
        """Return True where this thread is inside `perform` and has the context current: it is
        ready.
        """
        return self._lease.taken_here and self._context.is_current()

    def _begin_here(self) -> bool:
        """Take the context, if work is for this thread; else see to it that there is a worker."""
        with self._deciding:
            alone = self._opener is threading.current_thread() and not self._worker.started
            if alone or self._lease.held_here:
                self._lease.take()
                return True
            KEEPING.leave()
            self._worker.start()
            return False

    def _work_there(self, work: Callable[[], T], ready: Callable[[], object]) -> T:
        self._hold(ready)  # for good: the first thread can have left it by now
        return work()

    def hold(self, ready: Callable[[], object]) -> None:
        """Have the context current, outside `perform` until `release`, and call `ready`.

        Only for the thread that opened it, and inside `perform`. Raises what `perform` raises.
        """
        if not self._lease.inside and self._opener is not threading.current_thread():
            raise DeviceError(
                "outside perform() the device is for the thread that opened it, "
                f"{self._opener.name!r}: give it the work by perform()"
            )
        if self._lease.inside and self._context.is_current():
            ready()
        else:
            self._hold(ready)

    def _hold(self, ready: Callable[[], object]) -> None:
        self._lease.take()
        try:
            ready()
            self._lease.hold()
        finally:
            self._lease.give()

    def release(self) -> None:
        """End what `hold` began, and keeping. Harmless in a thread that does neither."""
        self._lease.release()

    def end(self, destroy: Callable[[], object]) -> None:
        """Finish what was asked for, end the worker and call `destroy`, all once nobody works."""
        self._worker.stop(self._context.leave_thread, wait=not self._lease.inside)
        self._lease.end(destroy)

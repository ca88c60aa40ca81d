"""The thread that uses a GL context: the caller that holds it, or a worker (docs/threads.md)."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from glnn.core.process import GL_PROCESS, KEEPING, is_single_threaded
from glnn.errors import DeviceError
from glnn.gl.context import Context

T = TypeVar("T")
B = TypeVar("B", bound="PendingWork")
AnswerQueue = SimpleQueue[tuple[Any, BaseException | None]]

MAX_IN_FLIGHT = 2  # one is computed while another's inputs are uploaded
POLL_SECONDS = 1e-4  # seconds after which whoever waits for the device looks for further work
EXIT_SECONDS = 10.0  # that the process's end waits for work that is being done


class StoppedError(Exception):
    """The thread has been told to end."""


class PendingWork(Protocol):
    """Work that the device is at."""

    def wait(self, seconds: float) -> bool:
        """Wait no longer than `seconds` for the device; whether it is done with it."""


@dataclass(frozen=True, eq=False)
class WorkItem:
    """A call that a thread passed to the worker, and the queue for its result."""

    work: Callable[[], Any]
    """The function to call; with `end` it returns a `PendingWork`."""
    end: Callable[[Any], Any] | None = None
    """Makes the result of the pending work, once the device is done; other work may run before."""
    answer: AnswerQueue = field(default_factory=SimpleQueue)
    """Gets the result, and the error or None."""

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        """Put the result, or the error that was raised, into the caller's queue."""
        self.answer.put((result, error))


WorkQueue = SimpleQueue[WorkItem | Callable[[], object]]
"""The tasks in the order in which they came, and what is to be done last."""


class Worker:
    """A thread that does what others ask, one after the other. It begins with `start`.

    first: what it does before all else.
    """

    def __init__(self, name: str, first: Callable[[], object] | None = None) -> None:
        self._name, self._first = name, first
        self._tasks: WorkQueue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.started = False
        """Whether the thread was begun."""
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting = 0
        self._at_exit: weakref.finalize[[WorkQueue], Worker] | None = None

    @property
    def is_busy(self) -> bool:
        """Return True where a thread waits for the worker."""
        return self._waiting > 0

    def start(self) -> None:
        """Let the thread begin. Harmless when repeated."""
        with self._lock:
            if self._thread is None and not self._stopped:
                # It knows the tasks only: neither the device nor this object is kept by it.
                thread = threading.Thread(
                    target=_serve, args=(self._tasks, self._first), name=self._name, daemon=True
                )
                thread.start()
                self._thread, self.started = thread, True
                # No driver is to be torn down in the middle of its work.
                self._at_exit = weakref.finalize(self, _wait_for_queue, self._tasks)

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` in the worker's thread and return its result. Raises StoppedError after
        `stop`.

        Whoever is interrupted while waiting leaves: the work goes on.
        """
        result: T = self._answered(WorkItem(work))
        return result

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` in the worker's thread and return its result.

        Others may begin in between, so that the device is at one while another is uploaded. They
        end in the order in which they came.
        """
        result: T = self._answered(WorkItem(begin, end))
        return result

    def _answered(self, task: WorkItem) -> Any:
        with self._lock:
            if self._stopped:
                raise StoppedError
            self._tasks.put(task)
            self._waiting += 1
        try:
            result, error = task.answer.get()
        finally:
            with self._lock:
                self._waiting -= 1
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return result

    def stop(self, last: Callable[[], object], *, wait: bool = True) -> None:
        """Let the thread do what it was asked for, then `last`, and end; wait for that if told."""
        with self._lock:
            thread, stopped, self._stopped = self._thread, self._stopped, True
            if stopped:
                return
            if self._at_exit is not None:
                self._at_exit.detach()
            if thread is not None:
                self._tasks.put(last)
        if thread is not None and wait and thread is not threading.current_thread():
            thread.join()


def _serve(tasks: WorkQueue, first: Callable[[], object] | None) -> None:
    """Do what comes, until that is no task: it is called once nothing is under way."""
    if first is not None:
        first()
    in_flight: deque[tuple[WorkItem, Any]] = deque()
    while isinstance(task := tasks.get(), WorkItem):
        more = _begin(task, in_flight)
        del task  # else it lives until the next one
        # Whoever begins nothing does not keep the first waiting for ever.
        while in_flight and not (
            more and len(in_flight) < MAX_IN_FLIGHT and _more_queued(tasks, in_flight[0][1])
        ):
            _finish(*in_flight.popleft())
            more = True
    while in_flight:
        _finish(*in_flight.popleft())
    task()


def _begin(task: WorkItem, in_flight: deque[tuple[WorkItem, Any]]) -> bool:
    """Do the work of `task`, or begin with it; whether it is under way."""
    try:
        run = task.work()
    except BaseException as error:  # whatever it is, the caller gets it
        task.resolve(None, error)
        return False
    if task.end is None:
        task.resolve(run)
        return False
    in_flight.append((task, run))
    return True


def _more_queued(tasks: WorkQueue, first: PendingWork) -> bool:
    """Wait until others ask for something or `first` is done; whether others do."""
    with suppress(Exception):  # which comes again with the end
        while tasks.empty():
            if first.wait(POLL_SECONDS):
                return False
        return True
    return False


def _finish(task: WorkItem, pending: Any) -> None:
    """Pass the result of `task` to its caller, once `pending`, the work under way, has ended."""
    assert task.end is not None
    try:
        task.resolve(task.end(pending))
    except BaseException as error:
        task.resolve(None, error)


class _FinishedWork:
    """A fence that has been passed already."""

    def wait(self, seconds: float) -> bool:
        return True


def _wait_for_queue(tasks: WorkQueue) -> None:
    """Wait for the tasks that were asked for."""
    if not GL_PROCESS.forked:
        task = WorkItem(_FinishedWork, lambda over: None)
        tasks.put(task)
        with suppress(Empty):
            task.answer.get(timeout=EXIT_SECONDS)


KEPT_SECONDS = 1.0  # to wait for a thread that keeps the context


class ContextLock:
    """Lock by which one thread at a time has a context current.

    GL gives a context to a thread only after the one that has it let go of it. So a thread has it
    from `take` to `give`, which nest, and leaves it then; or, after `hold`, until `release`. While
    there is no other thread it keeps it after `give`, if it had no other context before, until it
    starts a thread, takes another context, or calls `release`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()  # in C: see `process_lock`
        self._unkept = threading.Condition(self._lock)
        """Notified when a thread keeps the context no more."""
        self._depth = 0
        self.user: threading.Thread | None = None
        """The thread that is between `take` and `give`."""
        self._holder: threading.Thread | None = None
        """The thread that did `hold`."""
        self._keeper: threading.Thread | None = None
        """The thread that keeps it, at work or not."""
        self.wanted = False
        """Whether another thread asks for it: the one that keeps it leaves it in `give`."""
        self._restore: Callable[[], object] | None = None

    @property
    def is_held(self) -> bool:
        """Return True where some thread holds the context."""
        return self._holder is not None

    def is_inside(self, thread: threading.Thread) -> bool:
        """Return True where `thread` is between `take` and `give`, or holds the context."""
        return self.user is thread or self._holder is thread

    def take(self, thread: threading.Thread) -> None:
        """Have the context current in this thread, `thread`, once no other uses it.

        Raises DeviceError where another thread holds or keeps it, StepError where GL refuses.
        """
        try:
            self._lock.acquire()
            if self._keeper is None:
                KEEPING.leave()  # another device's
            elif self._keeper is not thread:
                self._wait_for_keeper(self._keeper)
            if self._holder is not None and self._holder is not thread:
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
            with suppress(RuntimeError):  # Ctrl-C while it waited: it does not have the lock
                self._lock.release()
            raise
        self._depth += 1
        self.user = thread

    def _wait_for_keeper(self, keeper: threading.Thread) -> None:
        """Have it not kept any more. Raises DeviceError where another thread goes on keeping it."""
        self.wanted = True
        if not self._unkept.wait_for(lambda: self._keeper is None, KEPT_SECONDS):
            raise DeviceError(
                f"the thread {keeper.name!r} keeps the device, as it knew of no other thread "
                "(C libraries start some by themselves): let it call the device's release()"
            )

    def give(self) -> None:
        """End what the last `take` began."""
        self._depth -= 1
        try:
            if not self._depth:
                self.user = None
                if self._holder is None:
                    self._keep_or_leave()
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Keep the context after the `give` that ends the outermost `take`, if that is the last."""
        if self._depth == 1 and self._holder is None:
            self._holder, self._restore = threading.current_thread(), None
            self._end_keeping()

    def release(self) -> None:
        """End what `hold` began, and keeping. Harmless in a thread that does neither."""
        with self._lock:
            if threading.current_thread() in (self._holder, self._keeper):
                self._holder = None
                if self._depth:
                    self._end_keeping()
                else:
                    self._leave()

    def end(self, destroy: Callable[[], object]) -> None:
        """Call `destroy`, which destroys the context, once no other thread uses it."""
        with self._lock:
            destroy()
            self._end_keeping()

    def _keep_or_leave(self) -> None:
        """Keep the context, where this thread may, else leave it."""
        may_keep = self._restore is None and not self.wanted
        # Kept since an earlier run, it is kept: KEEPING ends that where another thread begins. It
        # is both that say so, as Ctrl-C may come between the two.
        if may_keep and self._keeper is not None and KEEPING.kept is self:
            return
        if may_keep and KEEPING.possible and self._context.may_stay and is_single_threaded():
            self._keeper = threading.current_thread()
            KEEPING.keep(self)
        else:
            self._leave()

    def _leave(self) -> None:
        """Leave the context, and restore the one that was current before."""
        restore, self._restore = self._restore, None
        self._context.leave()
        self.wanted = False
        if restore is not None:
            restore()
        self._end_keeping()

    def _end_keeping(self) -> None:
        """Note that no thread keeps it, and tell who waits for that."""
        if self._keeper is not None:
            if KEEPING.kept is self:  # first: else a thread that begins has `hold` ended
                KEEPING.forget()
            self._keeper = None
            self._unkept.notify_all()


class SharedContext:
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
        self._context_lock = ContextLock(context)
        self._deciding = threading.Lock()

    def perform(
        self,
        work: Callable[[], T],
        ready: Callable[[], object],
        done: Callable[[], object] | None = None,
    ) -> T:
        """Call `work` and return its result; the outermost call first calls `ready` with the
        context current, and behind `work` `done`, where the context is not held.

        Raises DeviceError where another thread holds the context, StepError where GL refuses it,
        StoppedError after `end`.
        """
        lock, thread = self._context_lock, threading.current_thread()
        if lock.is_inside(thread):
            return work() if self._context.is_current() else self._switched(work)
        try:
            with self._deciding:
                here = self._opener is thread and not self._worker.started
                if here:
                    lock.take(thread)
            if here:
                ready()
                result = work()
                if done is not None and not lock.is_held:
                    done()
                return result
        finally:  # Ctrl-C may have come right behind `take`, and may come right before `give`
            try:
                if lock.user is thread:
                    lock.give()
            finally:
                if lock.user is thread:
                    lock.give()
        return self._call_worker(lambda: self._work_there(work, ready))

    @property
    def contended(self) -> bool:
        """Return True where other threads wait for the worker, and this thread would have to."""
        worker = self._worker
        return worker.started and worker.is_busy and not self.is_inside

    def overlap(
        self, begin: Callable[[], B], end: Callable[[B], T], ready: Callable[[], object]
    ) -> T:
        """Call `end` on the result of `begin` and return its result; both are called as by
        `perform`.

        By the worker, others may begin in between: see `Worker.overlap`.
        """
        if not self._worker.started or self.is_inside:
            return self.perform(lambda: end(begin()), ready)
        KEEPING.leave()
        return self._worker.overlap(
            lambda: self._work_there(begin, ready),
            lambda pending: self._work_there(lambda: end(pending), ready),
        )

    @property
    def current(self) -> bool:
        """Return True where this thread is inside `perform` and has the context current."""
        user = self._context_lock.user
        return user is threading.current_thread() and self._context.is_current()

    @property
    def is_inside(self) -> bool:
        """Return True where this thread may use GL: inside `perform`, or behind `hold`."""
        return self._context_lock.is_inside(threading.current_thread())

    def _switched(self, work: Callable[[], T]) -> T:
        """Return what `work` gives with the context current, in a thread that may use GL by it and
        has another's current: of a device that is held, too, or in whose work this is.
        """
        restore = self._context.remember()
        try:
            self._context.make_current()
            return work()
        finally:
            if restore is not None:
                restore()

    def _call_worker(self, work: Callable[[], T]) -> T:
        """Return what `work` gives in the worker's thread, which begins now unless it did."""
        with self._deciding:
            KEEPING.leave()
            self._context_lock.wanted = True
            self._worker.start()
        return self._worker.call(work)

    def _work_there(self, work: Callable[[], T], ready: Callable[[], object]) -> T:
        self._hold(ready)  # for good: the first thread can have left it by now
        return work()

    def hold(self, ready: Callable[[], object]) -> None:
        """Have the context current, outside `perform` until `release`, and call `ready`.

        Only for the thread that opened it, and inside `perform`. Raises what `perform` raises.
        """
        inside = self.is_inside
        if not inside and self._opener is not threading.current_thread():
            raise DeviceError(
                "outside perform() the device is for the thread that opened it, "
                f"{self._opener.name!r}: give it the work by perform()"
            )
        if inside and self._context.is_current():
            ready()
        else:
            self._hold(ready)

    def _hold(self, ready: Callable[[], object]) -> None:
        self._context_lock.take(threading.current_thread())
        try:
            ready()
            self._context_lock.hold()
        finally:
            self._context_lock.give()

    def release(self) -> None:
        """End what `hold` began, and keeping. Harmless in a thread that does neither."""
        self._context_lock.release()

    def end(self, destroy: Callable[[], object]) -> None:
        """Finish what was asked for, end the worker and call `destroy`, all once nobody works."""
        self._worker.stop(self._context.leave_thread, wait=not self.is_inside)
        self._context_lock.end(destroy)

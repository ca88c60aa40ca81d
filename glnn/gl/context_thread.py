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

from glnn.core.process import GL_PROCESS, KEPT_CONTEXT, is_single_threaded
from glnn.errors import DeviceError
from glnn.gl.context import Context

T = TypeVar("T")
B = TypeVar("B", bound="PendingWork")
AnswerQueue = SimpleQueue[tuple[Any, BaseException | None]]

MAX_IN_FLIGHT = 2  # the device computes one while another's inputs are uploaded
POLL_SECONDS = 1e-4  # seconds after which the worker, waiting for the device, checks its queue
EXIT_SECONDS = 10.0  # the longest that the process's exit waits for the worker's queue


class StoppedError(Exception):
    """The worker was stopped."""


class PendingWork(Protocol):
    """Work that the device has not finished."""

    def wait(self, seconds: float) -> bool:
        """Wait no longer than `seconds` for the device; return True where the work is done."""


@dataclass(frozen=True, eq=False)
class WorkItem:
    """A call that a thread passed to the worker, and the queue for its result."""

    work: Callable[[], Any]
    """The function to call; with `end` it returns a `PendingWork`."""
    end: Callable[[Any], Any] | None = None
    """Returns the result of the pending work; other work may run between `work` and `end`."""
    answer: AnswerQueue = field(default_factory=SimpleQueue)
    """The queue for the result, and the error or None."""

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        """Put the result, or the error that was raised, into the caller's queue."""
        self.answer.put((result, error))


WorkQueue = SimpleQueue[WorkItem | Callable[[], object]]
"""The tasks in order, and at the end the function that the worker calls last."""


class Worker:
    """A thread that performs the calls of other threads in order. It begins with `start`.

    first: a function that it calls before all tasks.
    """

    def __init__(self, name: str, first: Callable[[], object] | None = None) -> None:
        self._name, self._first = name, first
        self._tasks: WorkQueue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.started = False
        """True once the thread was started."""
        self._lock = threading.Lock()
        self._stopped = False
        self._callers = 0
        """The threads that wait for a result."""
        self._at_exit: weakref.finalize[[WorkQueue], Worker] | None = None

    @property
    def is_busy(self) -> bool:
        """Return True where a thread waits for the worker."""
        return self._callers > 0

    def start(self) -> None:
        """Start the thread. Harmless when repeated."""
        with self._lock:
            if self._thread is None and not self._stopped:
                # It refers to the queue only, so that it keeps neither device nor worker alive.
                thread = threading.Thread(
                    target=_serve, args=(self._tasks, self._first), name=self._name, daemon=True
                )
                thread.start()
                self._thread, self.started = thread, True
                # So that the driver does not shut down in the middle of the thread's work.
                self._at_exit = weakref.finalize(self, _wait_for_queue, self._tasks)

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` in the worker's thread and return its result. Raises StoppedError after
        `stop`.

        The work goes on where the caller is interrupted while it waits.
        """
        result: T = self._submit(WorkItem(work))
        return result

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` in the worker's thread and return its result.

        Other tasks may begin in between, so that the device computes one while the inputs of
        another are uploaded. They end in the order of their calls.
        """
        result: T = self._submit(WorkItem(begin, end))
        return result

    def _submit(self, task: WorkItem) -> Any:
        """Queue `task`, wait for its result and return it, or raise its error."""
        with self._lock:
            if self._stopped:
                raise StoppedError
            self._tasks.put(task)
            self._callers += 1
        try:
            result, error = task.answer.get()
        finally:
            with self._lock:
                self._callers -= 1
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return result

    def stop(self, last: Callable[[], object], *, wait: bool = True) -> None:
        """Have the thread finish its tasks, call `last`, and end. wait: True to wait for that."""
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
    """Perform the tasks until the queue gives another function, and call that at the end."""
    if first is not None:
        first()
    in_flight: deque[tuple[WorkItem, Any]] = deque()
    while isinstance(task := tasks.get(), WorkItem):
        may_begin_another = _begin(task, in_flight)
        del task  # else it lives until the next one
        # After a task that is not in flight one ends: many such tasks must not delay it for ever.
        while in_flight and not (
            may_begin_another
            and len(in_flight) < MAX_IN_FLIGHT
            and _wait_for_task(tasks, in_flight[0][1])
        ):
            _finish(*in_flight.popleft())
            may_begin_another = True
    while in_flight:
        _finish(*in_flight.popleft())
    task()


def _begin(task: WorkItem, in_flight: deque[tuple[WorkItem, Any]]) -> bool:
    """Perform the work of `task`; return True where its end is pending, and it is in flight."""
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


def _wait_for_task(tasks: WorkQueue, first: PendingWork) -> bool:
    """Wait for a task or for the end of `first`; return True where a task came."""
    with suppress(Exception):  # which `end` raises again
        while tasks.empty():
            if first.wait(POLL_SECONDS):
                return False
        return True
    return False


def _finish(task: WorkItem, pending: Any) -> None:
    """End `pending`, the work of `task`, and pass the result to its caller."""
    assert task.end is not None
    try:
        task.resolve(task.end(pending))
    except BaseException as error:
        task.resolve(None, error)


class _FinishedWork:
    """Pending work that is done."""

    def wait(self, seconds: float) -> bool:
        return True


def _wait_for_queue(tasks: WorkQueue) -> None:
    """Wait until all tasks in the queue are done, no longer than EXIT_SECONDS."""
    if not GL_PROCESS.forked:
        task = WorkItem(_FinishedWork, lambda over: None)
        tasks.put(task)
        with suppress(Empty):
            task.answer.get(timeout=EXIT_SECONDS)


KEPT_SECONDS = 1.0  # the longest wait for a thread that keeps the context


class ContextLock:
    """Lock by which one thread at a time has a context current.

    GL makes a context current in a thread only after another thread has left it. A thread has it
    current

    - from `take` to `give`, which nest;
    - after `hold`, until `release`: it *holds* the context;
    - in a process without other threads after `give`, too, if it had no other context before, until
      it starts a thread, takes another context, or calls `release`: it *keeps* the context.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.RLock()  # in C: see `process_lock`
        self._keeping_ended = threading.Condition(self._lock)
        """Notified when no thread keeps the context any more."""
        self._depth = 0
        """The calls of `take` without their `give`."""
        self.user: threading.Thread | None = None
        """The thread that is between `take` and `give`."""
        self._holder: threading.Thread | None = None
        """The thread that holds it."""
        self._keeper: threading.Thread | None = None
        """The thread that keeps it, also between `take` and `give`."""
        self.wanted = False
        """True where another thread waits for it: `give` does not keep it then."""
        self._restore: Callable[[], object] | None = None
        """Makes the context current that the thread had before `take`."""

    @property
    def is_held(self) -> bool:
        """Return True where some thread holds the context."""
        return self._holder is not None

    def is_inside(self, thread: threading.Thread) -> bool:
        """Return True where `thread` is between `take` and `give`, or holds the context."""
        return self.user is thread or self._holder is thread

    def take(self, thread: threading.Thread) -> None:
        """Make the context current in the calling thread, `thread`, once no other uses it.

        Raises DeviceError where another thread holds or keeps it, StepError where GL refuses it.
        """
        try:
            self._lock.acquire()
            if self._keeper is None:
                KEPT_CONTEXT.release()  # the context of another device
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
            with suppress(RuntimeError):  # after Ctrl-C in `acquire` the lock is not taken
                self._lock.release()
            raise
        self._depth += 1
        self.user = thread

    def _wait_for_keeper(self, keeper: threading.Thread) -> None:
        """Wait until `keeper` leaves the context. Raises DeviceError where it does not."""
        self.wanted = True
        if not self._keeping_ended.wait_for(lambda: self._keeper is None, KEPT_SECONDS):
            raise DeviceError(
                f"the thread {keeper.name!r} keeps the device, as it knew of no other thread "
                "(C libraries start some by themselves): let it call the device's release()"
            )

    def give(self) -> None:
        """End the last `take`."""
        self._depth -= 1
        try:
            if not self._depth:
                self.user = None
                if self._holder is None:
                    self._keep_or_leave()
        finally:
            self._lock.release()

    def hold(self) -> None:
        """Hold the context after the next `give`, where that ends the outermost `take`."""
        if self._depth == 1 and self._holder is None:
            self._holder, self._restore = threading.current_thread(), None
            self._end_keeping()

    def release(self) -> None:
        """Stop holding and keeping the context. Harmless in a thread that does neither."""
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
        # A context that is kept already stays: KEPT_CONTEXT releases it before another thread
        # starts. Both conditions are needed, as Ctrl-C may come between the two assignments.
        if may_keep and self._keeper is not None and KEPT_CONTEXT.context is self:
            return
        if (
            may_keep
            and KEPT_CONTEXT.is_supported
            and self._context.may_stay
            and is_single_threaded()
        ):
            self._keeper = threading.current_thread()
            KEPT_CONTEXT.keep(self)
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
        """Note that no thread keeps the context, and notify the threads that wait for it."""
        if self._keeper is not None:
            if KEPT_CONTEXT.context is self:  # first: else a thread that begins would end `hold`
                KEPT_CONTEXT.forget()
            self._keeper = None
            self._keeping_ended.notify_all()


class SharedContext:
    """A context for all threads.

    As long as only the thread that opened it calls `perform`, that thread runs the work, and leaves
    the context after it where there are other threads. The first call of another thread starts a
    worker that runs the work of all from then on: drivers take long to prepare for a thread
    (NVIDIA's 38 ms), and servers have many threads.

    worker: not started yet; an argument, so that the context's owner can stop it.
    """

    def __init__(self, context: Context, worker: Worker) -> None:
        self._context, self._worker = context, worker
        self._opener = threading.current_thread()
        self._context_lock = ContextLock(context)
        self._start_lock = threading.Lock()
        """Held to decide between this thread and the worker, and to start the worker."""

    def perform(
        self,
        work: Callable[[], T],
        ready: Callable[[], object],
        done: Callable[[], object] | None = None,
    ) -> T:
        """Call `work` with the context current and return its result. The outermost call first
        calls `ready`, and after `work`, where the context is not held, `done`.

        Raises DeviceError where another thread holds the context, StepError where GL refuses it,
        StoppedError after `end`.
        """
        lock, thread = self._context_lock, threading.current_thread()
        if lock.is_inside(thread):
            return work() if self._context.is_current() else self._switch_and_call(work)
        try:
            with self._start_lock:
                in_this_thread = self._opener is thread and not self._worker.started
                if in_this_thread:
                    lock.take(thread)
            if in_this_thread:
                ready()
                result = work()
                if done is not None and not lock.is_held:
                    done()
                return result
        finally:  # Ctrl-C may have come right after `take`, and may come right before `give`
            try:
                if lock.user is thread:
                    lock.give()
            finally:
                if lock.user is thread:
                    lock.give()
        return self._call_worker(lambda: self._work_in_worker(work, ready))

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

        In the worker, the work of other threads may begin in between: see `Worker.overlap`.
        """
        if not self._worker.started or self.is_inside:
            return self.perform(lambda: end(begin()), ready)
        KEPT_CONTEXT.release()
        return self._worker.overlap(
            lambda: self._work_in_worker(begin, ready),
            lambda pending: self._work_in_worker(lambda: end(pending), ready),
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

    def _switch_and_call(self, work: Callable[[], T]) -> T:
        """Call `work` with the context current and return its result, in a thread that may use it
        but has another device's current, which it holds or whose work calls this.
        """
        restore = self._context.remember()
        try:
            self._context.make_current()
            return work()
        finally:
            if restore is not None:
                restore()

    def _call_worker(self, work: Callable[[], T]) -> T:
        """Call `work` in the worker's thread, started on first use, and return its result."""
        with self._start_lock:
            KEPT_CONTEXT.release()
            self._context_lock.wanted = True
            self._worker.start()
        return self._worker.call(work)

    def _work_in_worker(self, work: Callable[[], T], ready: Callable[[], object]) -> T:
        self._hold(ready)  # for good: only the worker uses the context from now on
        return work()

    def hold(self, ready: Callable[[], object]) -> None:
        """Make the context current until `release`, also outside `perform`, and call `ready`.

        Only in the thread that opened it, and inside `perform`. Raises what `perform` raises.
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
        """Stop holding and keeping the context. Harmless in a thread that does neither."""
        self._context_lock.release()

    def end(self, destroy: Callable[[], object]) -> None:
        """Finish the queued work, end the worker, and call `destroy` once no thread uses the
        context.
        """
        self._worker.stop(self._context.leave_thread, wait=not self.is_inside)
        self._context_lock.end(destroy)

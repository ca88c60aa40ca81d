"""A device's own thread, for work that comes from several."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from glnn.process import GL_PROCESS

T = TypeVar("T")
B = TypeVar("B", bound="Begun")
Answer = SimpleQueue[tuple[Any, BaseException | None]]

UNDER_WAY = 2  # one is computed while another's inputs are uploaded
LOOK = 1e-4  # seconds after which whoever waits for the device looks for further work
EXIT_SECONDS = 10.0  # that the process's end waits for work that is being done


class StoppedError(Exception):
    """The thread has been told to end."""


class Begun(Protocol):
    """Work that the device is at."""

    def wait(self, seconds: float) -> bool:
        """Wait no longer than `seconds` for the device; whether it is done with it."""


@dataclass(frozen=True, eq=False)
class Task:
    """A call that a thread passed to the worker, and the queue for its result."""

    work: Callable[[], Any]
    """The function to call; with `end` it returns a `Begun`."""
    end: Callable[[Any], Any] | None = None
    """What makes the answer of that, once the device is done; other work may come in between."""
    answer: Answer = field(default_factory=SimpleQueue)
    """Gets what it gives, or raises."""

    def give(self, found: Any, error: BaseException | None = None) -> None:
        """Tell who asked."""
        self.answer.put((found, error))


Tasks = SimpleQueue[Task | Callable[[], object]]
"""The tasks in the order in which they came, and what is to be done last."""


class Worker:
    """A thread that does what others ask, one after the other. It begins with `start`.

    first: what it does before all else.
    """

    def __init__(self, name: str, first: Callable[[], object] | None = None) -> None:
        self._name, self._first = name, first
        self._tasks: Tasks = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting = 0
        self._at_exit: weakref.finalize[[Tasks], Worker] | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def busy(self) -> bool:
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
                self._thread = thread
                # No driver is to be torn down in the middle of its work.
                self._at_exit = weakref.finalize(self, _wait, self._tasks)

    def call(self, work: Callable[[], T]) -> T:
        """Call `work` in the worker's thread and return its result. Raises StoppedError after
        `stop`.

        Whoever is interrupted while waiting leaves: the work goes on.
        """
        found: T = self._answered(Task(work))
        return found

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` in the worker's thread and return its result.

        Others may begin in between, so that the device is at one while another is uploaded. They
        end in the order in which they came.
        """
        found: T = self._answered(Task(begin, end))
        return found

    def _answered(self, task: Task) -> Any:
        with self._lock:
            if self._stopped:
                raise StoppedError
            self._tasks.put(task)
            self._waiting += 1
        try:
            found, error = task.answer.get()
        finally:
            with self._lock:
                self._waiting -= 1
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return found

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


def _serve(tasks: Tasks, first: Callable[[], object] | None) -> None:
    """Do what comes, until that is no task: it is called once nothing is under way."""
    if first is not None:
        first()
    flying: deque[tuple[Task, Any]] = deque()
    while isinstance(task := tasks.get(), Task):
        more = _begin(task, flying)
        del task  # else it lives until the next one
        # Whoever begins nothing does not keep the first waiting for ever.
        while flying and not (more and len(flying) < UNDER_WAY and _others(tasks, flying[0][1])):
            _end(*flying.popleft())
            more = True
    while flying:
        _end(*flying.popleft())
    task()


def _begin(task: Task, flying: deque[tuple[Task, Any]]) -> bool:
    """Do the work of `task`, or begin with it; whether it is under way."""
    try:
        found = task.work()
    except BaseException as error:  # whatever it is, the caller gets it
        task.give(None, error)
        return False
    if task.end is None:
        task.give(found)
        return False
    flying.append((task, found))
    return True


def _others(tasks: Tasks, first: Begun) -> bool:
    """Wait until others ask for something or `first` is done; whether others do."""
    with suppress(Exception):  # which comes again with the end
        while tasks.empty():
            if first.wait(LOOK):
                return False
        return True
    return False


def _end(task: Task, begun: Any) -> None:
    """Answer `task`, whose work is under way as `begun`."""
    assert task.end is not None
    try:
        task.give(task.end(begun))
    except BaseException as error:
        task.give(None, error)


class _Over:
    """A fence that has been passed already."""

    def wait(self, seconds: float) -> bool:
        return True


def _wait(tasks: Tasks) -> None:
    """Wait for the tasks that were asked for."""
    if not GL_PROCESS.forked:
        task = Task(_Over, lambda over: None)
        tasks.put(task)
        with suppress(Empty):
            task.answer.get(timeout=EXIT_SECONDS)

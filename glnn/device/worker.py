"""A device's own thread, for work that comes from several."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from glnn.process import GL_PROCESS

T = TypeVar("T")
Answer = SimpleQueue[tuple[Any, BaseException | None]]
Tasks = SimpleQueue[tuple[Callable[[], Any], Answer | None]]

EXIT_SECONDS = 10.0  # that the process's end waits for work that is being done


class StoppedError(Exception):
    """The thread has been told to end."""


class Worker:
    """A thread that does what others ask, one after the other. It begins with `start`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: Tasks = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._at_exit: weakref.finalize[[Tasks], Worker] | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Let the thread begin. Harmless when repeated."""
        with self._lock:
            if self._thread is None and not self._stopped:
                # It knows the tasks only: neither the device nor this object is kept by it.
                thread = threading.Thread(
                    target=_serve, args=(self._tasks,), name=self._name, daemon=True
                )
                thread.start()
                self._thread = thread
                # No driver is to be torn down in the middle of its work.
                self._at_exit = weakref.finalize(self, _wait, self._tasks)

    def call(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, done in the thread. Raises StoppedError after `stop`.

        Whoever is interrupted while waiting leaves: the work goes on.
        """
        answer: Answer = SimpleQueue()
        with self._lock:
            if self._stopped:
                raise StoppedError
            self._tasks.put((work, answer))
        result, error = answer.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        found: T = result
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
                self._tasks.put((last, None))
        if thread is not None and wait and thread is not threading.current_thread():
            thread.join()


def _serve(tasks: Tasks) -> None:
    while True:
        work, answer = tasks.get()
        if answer is None:
            work()
            return
        try:
            answer.put((work(), None))
        except BaseException as error:  # whatever it is, the caller gets it
            answer.put((None, error))
        del work, answer  # else they live until the next task


def _wait(tasks: Tasks) -> None:
    """Wait for the tasks that were asked for."""
    answer: Answer = SimpleQueue()
    if not GL_PROCESS.forked:
        tasks.put((lambda: None, answer))
        with suppress(Empty):
            answer.get(timeout=EXIT_SECONDS)

"""Locks of one process: Ctrl-C leaves none taken, and a fork finds all of them free."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from glnn.core.process import process_lock

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of signals")


def free(lock: object) -> bool:
    """Whether another thread may take it."""
    found: list[bool] = []

    def take() -> None:
        found.append(lock.acquire(timeout=5))  # type: ignore[attr-defined]
        if found[0]:
            lock.release()  # type: ignore[attr-defined]

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    return found == [True]


def test_an_interrupt_leaves_it_free() -> None:
    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    lock, count, end = process_lock(), 0, time.monotonic() + 1
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-5 * (count % 13))
                while True:
                    with lock:
                        pass
            except Interrupt:
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count > 100 and free(lock)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_finds_it_free() -> None:
    lock = process_lock()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=5) else 1)  # type: ignore[attr-defined]
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(status) == 0

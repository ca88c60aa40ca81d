"""A device's own thread: the order of what it is asked, what is under way, its end. Without GL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from glnn.gl.context_thread import MAX_IN_FLIGHT, StoppedError, Worker

SECONDS = 20


class Run:
    """Work that is over when `over` is set; notes when it began and ended."""

    def __init__(self, name: str, log: list[str], over: bool = False) -> None:
        self.name, self._log = name, log
        self.over = threading.Event()
        if over:
            self.over.set()
        log.append(f"begin {name}")

    def wait(self, seconds: float) -> bool:
        return self.over.wait(min(seconds, SECONDS))

    def end(self) -> str:
        assert self.over.wait(SECONDS)
        self._log.append(f"end {self.name}")
        return self.name


@pytest.fixture
def worker() -> Iterator[Worker]:
    found = Worker("test")
    found.start()
    yield found
    found.stop(lambda: None)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def until(told: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not told() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert told()


class Asked:
    """Runs that are asked of `worker`, by name."""

    def __init__(self, worker: Worker, pool: ThreadPoolExecutor) -> None:
        self._worker, self._pool = worker, pool
        self.log: list[str] = []
        self.runs: dict[str, Run] = {}

    def overlap(self, name: str) -> Future[str]:
        def begin() -> Run:
            self.runs[name] = Run(name, self.log)
            return self.runs[name]

        return self._pool.submit(self._worker.overlap, begin, Run.end)

    def call(self, name: str) -> Future[None]:
        return self._pool.submit(self._worker.call, lambda: self.log.append(name))

    def until(self, *log: str) -> None:
        until(lambda: self.log == [*log])

    def end(self, name: str) -> None:
        until(lambda: name in self.runs)
        self.runs[name].over.set()


@pytest.fixture
def asked(worker: Worker, pool: ThreadPoolExecutor) -> Asked:
    return Asked(worker, pool)


def test_a_second_begins_before_the_first_is_over_and_a_third_after(asked: Asked) -> None:
    assert MAX_IN_FLIGHT == 2
    one = asked.overlap("1")
    asked.until("begin 1")
    two = asked.overlap("2")
    asked.until("begin 1", "begin 2")
    three = asked.overlap("3")
    asked.end("2")  # answers come in the order in which they were asked for
    time.sleep(0.02)
    assert asked.log == ["begin 1", "begin 2"] and not two.done()
    asked.end("1")
    assert (one.result(SECONDS), two.result(SECONDS)) == ("1", "2")
    asked.end("3")
    assert three.result(SECONDS) == "3"
    assert asked.log.index("end 1") < asked.log.index("begin 3") < asked.log.index("end 3")


def test_a_run_alone_is_ended_and_others_calls_do_not_keep_it(asked: Asked) -> None:
    one = asked.overlap("1")
    asked.until("begin 1")
    asked.end("1")
    assert one.result(SECONDS) == "1"
    two = asked.overlap("2")
    until(lambda: "begin 2" in asked.log)
    called = [asked.call(f"call {i}") for i in range(5)]
    until(lambda: "call 0" in asked.log)
    time.sleep(0.02)
    assert "call 1" not in asked.log  # the first call was done before, and now it is its turn
    asked.end("2")
    assert two.result(SECONDS) == "2"
    for each in called:
        each.result(SECONDS)
    assert asked.log.index("end 2") == asked.log.index("call 0") + 1


def test_errors_are_those_of_who_asked(worker: Worker, asked: Asked) -> None:
    def fail(*arguments: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        worker.overlap(fail, Run.end)
    with pytest.raises(KeyError, match="mine"):
        worker.overlap(lambda: Run("1", [], True), fail)

    class Lost(Run):
        def wait(self, seconds: float) -> bool:
            raise OSError("waited in vain")

    assert worker.overlap(lambda: Lost("2", [], True), Run.end) == "2"
    assert worker.call(lambda: 5) == 5 and not worker.is_busy


def test_what_is_under_way_is_ended_before_the_last(pool: ThreadPoolExecutor) -> None:
    worker = Worker("test", lambda: order.append("first"))
    order: list[str] = []
    worker.start()
    asked = Asked(worker, pool)
    futures = [asked.overlap(name) for name in "123"]
    until(lambda: len(asked.log) == 2 and worker.is_busy)
    ended = pool.submit(worker.stop, lambda: asked.log.append("last"))
    for name in "123":
        asked.end(name)
    ended.result(SECONDS)
    assert sorted(future.result(SECONDS) for future in futures) == ["1", "2", "3"]
    assert asked.log[-1] == "last" and order == ["first"]
    with pytest.raises(StoppedError):
        worker.overlap(lambda: Run("4", [], True), Run.end)

"""Copies in the host's memory: in parts, by threads, interrupted, and in forks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from glnn.core.process import HELPERS
from glnn.gl import transfer
from glnn.gl.transfer import COPY_POOL, copy_in_parts, parts, parts_in_words, threaded_copy


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, and as many threads as an eight-way copy wants."""
    monkeypatch.setattr(transfer, "MIN_PART", 1024)
    monkeypatch.setattr(COPY_POOL, "most", 8)


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(-(2**31), 2**31, count).astype(np.int32)


@pytest.mark.parametrize("count", [0, 1, 3, 127, 511, 513, 1009, 4093, 2**18 + 3])
def test_parts_have_every_number_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = parts(count)
    assert [i for first, last in cuts for i in range(first, last)] == list(range(count))
    assert len(cuts) == min(max(4 * count // 1024, 1), 8)
    ready: list[int] = []
    done: list[int] = []
    source, whole = numbers(count), np.full(count + 2, 5, np.int32)
    assert copy_in_parts(whole[1:-1], source, ready.append, done.append)
    np.testing.assert_array_equal(whole, [5, *source, 5])
    assert ready == list(range(len(cuts))) and sorted(done) == ready


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float16])
@pytest.mark.parametrize("count", [0, 1, 3, 2049, 2**15 + 5])
def test_parts_of_small_numbers_are_whole_words(dtype: type, count: int) -> None:
    source = (numbers(count) % 2).astype(dtype)
    target, size = np.zeros(count, dtype), source.itemsize
    done: list[int] = []
    assert copy_in_parts(target, source, done=done.append)
    np.testing.assert_array_equal(target, source)
    cuts, words = parts(count, size), parts_in_words(count, size)
    assert sorted(done) == list(range(len(cuts))) and len(cuts) == min(
        max(source.nbytes >> 10, 1), 8
    )
    assert [i for first, last in words for i in range(first, last)] == list(
        range(-(-source.nbytes // 4))
    )
    assert all(4 * word == size * first for (first, _), (word, _) in zip(cuts, words, strict=True))


@pytest.mark.parametrize(("rows", "row"), [(1, 900), (2, 700), (7, 131), (200, 5)])
def test_parts_of_padded_rows(rows: int, row: int) -> None:
    memory = numbers(rows * row).reshape(rows, row)
    cuts, words = parts(rows, 4 * row), parts_in_words(rows, 4 * row)
    assert len(cuts) == min(4 * rows * row // 1024, rows)
    assert [i for first, last in cuts for i in range(first, last)] == list(range(rows))
    assert words == [(row * first, row * last) for first, last in cuts]
    target = np.zeros((rows, row - 2), np.int32)
    done: list[int] = []
    assert copy_in_parts(target, memory[:, 1:-1], done=done.append, rows=cuts)
    assert sorted(done) == list(range(len(cuts)))
    np.testing.assert_array_equal(target, memory[:, 1:-1])


def test_what_lies_otherwise_is_copied_at_once_and_rounded() -> None:
    source = np.arange(60, dtype=np.float32).reshape(6, 10) / 4
    for target in (
        np.zeros((10, 6), np.float32).T,
        np.zeros((6, 20), np.float32)[:, ::2],
        np.zeros((6, 10), np.int32),
        np.zeros((6, 10), np.float16),
    ):
        assert not copy_in_parts(target, source)
        threaded_copy(target, source)
        np.testing.assert_array_equal(target, source.astype(target.dtype))
    assert not copy_in_parts(np.zeros((6, 10), np.float32), source[::-1])
    assert not copy_in_parts(np.zeros(8, np.float64), np.ones(8, np.float64))


def test_several_ask_at_once() -> None:
    def work(seed: int) -> bool:
        source, target = numbers(4099 + seed), np.zeros(4099 + seed, np.int32)
        threaded_copy(target, source)
        return bool((target == source).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


def test_where_no_thread_starts_one_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(HELPERS, "start", refuse)
    monkeypatch.setattr(COPY_POOL, "_threads", 0)
    source, target = numbers(4099), np.zeros(4099, np.int32)
    threaded_copy(target, source)
    np.testing.assert_array_equal(target, source)


class Stopped(BaseException):
    """What KeyboardInterrupt is."""


@pytest.mark.parametrize("where", ["ready", "done"])
def test_nobody_writes_after_an_interruption(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is in the middle of its part when `where` raises; others wait for theirs."""
    begun, ended, copyto, late = threading.Event(), threading.Event(), np.copyto, []

    def slow(target: Any, source: Any) -> None:
        if threading.current_thread().name == "glnn copies":
            begun.set()
            late.append(ended.wait(0.05))
        copyto(target, source)

    def stop(number: int) -> None:
        if where == "done" or number == 7:
            assert begun.wait(60)
            raise Stopped

    source, target = numbers(4099), np.zeros(4099, np.int32)
    monkeypatch.setattr(np, "copyto", slow)
    with pytest.raises(Stopped):
        copy_in_parts(target, source, **{where: stop})
    monkeypatch.undo()
    ended.set()
    assert late and not any(late)  # every part that was begun was over before
    left = target.copy()
    threaded_copy(np.zeros(4099, np.int32), source)  # all threads have gone on to other work
    np.testing.assert_array_equal(target, left)


@pytest.mark.parametrize("thread", ["glnn copies", "MainThread"])
def test_what_a_copy_raises_comes_to_who_asked(
    thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copyto: Callable[..., None] = np.copyto

    def wrong(target: Any, source: Any) -> None:
        if threading.current_thread().name == thread:
            raise Stopped
        copyto(target, source)

    source, target = numbers(4099), np.zeros(4099, np.int32)
    with monkeypatch.context() as patched:
        patched.setattr(np, "copyto", wrong)
        with pytest.raises(Stopped):
            threaded_copy(target, source)
    threaded_copy(target, source)
    np.testing.assert_array_equal(target, source)


FORK = """
import multiprocessing, threading
import numpy as np
from glnn.gl import transfer
from glnn.core.process import HELPERS, is_single_threaded

transfer.MIN_PART, transfer.COPY_POOL.most = 1024, 4
source = np.arange(1 << 14, dtype=np.int32)

def copied():
    target = np.zeros_like(source)
    transfer.threaded_copy(target, source)
    return bool((target == source).all())

def work(found):
    found.put([HELPERS.count, copied(), HELPERS.count, threading.active_count()])

assert is_single_threaded() and copied() and HELPERS.count == 3 and is_single_threaded()
context = multiprocessing.get_context("fork")
found = context.SimpleQueue()
child = context.Process(target=work, args=(found,))
child.start()
assert found.get() == [0, True, 3, 4]
child.join()
assert child.exitcode == 0 and copied()
thread = threading.Thread(target=lambda: found.put(is_single_threaded()))
thread.start()
thread.join()
assert found.get() is False and is_single_threaded()
"""


def test_a_fork_has_threads_of_its_own(python: Callable[..., Any]) -> None:
    done = python(FORK)
    assert done.returncode == 0, done.stderr

"""The pool of blocks for tensors that come and go."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from glnn.errors import NoRoomError
from glnn.gl import Device, block_pool
from glnn.gl.block_pool import BlockPool

WORDS = 5000


@pytest.fixture
def device() -> Iterator[Device]:
    with Device() as one:
        one.activate()
        yield one


def test_blocks_that_take_turns_find_their_own_again(device) -> None:
    pool = BlockPool.for_device(device)
    allocations, orders = pool.allocate(60, WORDS, WORDS), []
    for _ in range(4):
        following = pool.allocate(60, WORDS, WORDS)
        orders.append([allocation.block for allocation in following])
        allocations = following
        device.collect_garbage()
    assert orders[0] == orders[2] and orders[1] == orders[3]
    assert not set(orders[0]) & set(orders[1])
    assert pool.nbytes == 2 * 60 * 4 * 2 * WORDS
    del allocations, following, orders
    device.collect_garbage()
    assert pool.nbytes == 0


def test_memory_is_asked_for_once_for_all_new_blocks(device) -> None:
    pool, asked = BlockPool.for_device(device), []

    def available() -> int:
        asked.append(1)
        return 1 << 30

    pool.allocate(10, WORDS, 0, available)
    assert len(asked) == 1


def test_new_blocks_have_no_slack_where_memory_is_short(device) -> None:
    pool = BlockPool.for_device(device)
    allocations = pool.allocate(4, WORDS, WORDS, lambda: 4 * 6 * WORDS)
    assert {allocation.block.size for allocation in allocations} == {WORDS}
    assert pool.nbytes == 4 * 4 * WORDS


def test_too_little_memory_for_all_of_them(device) -> None:
    pool = BlockPool.for_device(device)
    (kept,) = pool.allocate(1, WORDS)
    message = (
        f"^4 tensors that stay on the device need {16 * WORDS} bytes, {12 * WORDS} are free; "
        f"others that were left there have {kept.block.nbytes}$"
    )
    with pytest.raises(NoRoomError, match=message):
        pool.allocate(4, WORDS, 0, lambda: 12 * WORDS)
    with pytest.raises(NoRoomError, match=f"^a tensor that stays on the device needs {4 * WORDS} "):
        pool.allocate(1, WORDS, 0, lambda: WORDS)


def test_free_blocks_are_room_for_new_ones_of_other_sizes(device) -> None:
    pool = BlockPool.for_device(device)
    kept = pool.allocate(3, WORDS)
    given_back = pool.allocate(3, WORDS)
    del given_back
    device.collect_garbage()
    assert pool.nbytes == 6 * 4 * WORDS
    with pytest.raises(NoRoomError):
        pool.allocate(1, 8 * WORDS, 0, lambda: 0)
    assert pool.nbytes == 3 * 4 * WORDS and len(kept) == 3


def test_threads_give_blocks_back(device) -> None:
    pool = BlockPool.for_device(device)
    kept = pool.allocate(200, 16)
    shares = [pool.allocate(50, 16) for _ in range(4)]
    threads = [threading.Thread(target=share.clear) for share in shares]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        device.collect_garbage()
    device.collect_garbage()
    assert len(pool._free) == 200 and pool._used_bytes == pool._free_bytes
    again = pool.allocate(200, 16)
    assert len({allocation.block for allocation in (*kept, *again)}) == 400


FINALIZERS = ("__init__", "__del__", "free")
"""Of allocations: Python goes on after what a finalizer raises, or one of an object half made."""


class Interrupter:
    """Raises KeyboardInterrupt before one of the pool's instructions, as Ctrl-C may."""

    def __init__(self, instruction: int) -> None:
        self.left = instruction
        """The instructions before that one."""

    @contextmanager
    def within(self) -> Iterator[None]:
        """Do so in here."""
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces them if a frame asked before
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename != block_pool.__file__ or code.co_name in FINALIZERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self._step


def interrupt(device: Device, instruction: int) -> bool:
    """Interrupt a pool that gives, and is given, blocks; return False once it was not reached.

    Whatever happened, no block may have two users, and none may be left.
    """
    pool, ended = BlockPool.for_device(device), False
    kept = pool.allocate(2, WORDS)
    others = pool.allocate(1, 2 * WORDS)
    dropped = pool.allocate(2, WORDS)
    del dropped
    device.collect_garbage()
    try:
        with Interrupter(instruction).within():
            others.clear()
            kept += pool.allocate(4, WORDS, 0, lambda: 1 << 30)  # two are free
            device.collect_garbage()
            kept.pop()
            kept += pool.allocate(1, 9 * WORDS, 0, lambda: 36 * WORDS)  # free ones make room
            ended = True
    except KeyboardInterrupt:
        pass
    kept += pool.allocate(3, WORDS)
    device.collect_garbage()
    kept += pool.allocate(2, WORDS)
    blocks = [allocation.block for allocation in kept]
    assert len(set(blocks)) == len(blocks) and not set(blocks) & set(pool._free)
    assert sum(block.nbytes for block in blocks) == pool._used_bytes >= pool._free_bytes
    kept.clear()
    device.collect_garbage()
    assert pool.nbytes == 0
    return not ended


def test_interrupts_anywhere_leave_books_that_are_right(device) -> None:
    gc.collect()
    instruction = 0
    while interrupt(device, instruction):
        instruction += 1
    assert instruction > 200


def test_blocks_far_too_large_are_not_taken(device) -> None:
    pool = BlockPool.for_device(device)
    large = 2 * WORDS + 2
    kept = pool.allocate(3, large)
    for words, taken in ((WORDS, False), (WORDS + 1, True), (large, True), (large + 1, False)):
        given_back = pool.allocate(1, large)
        block = given_back[0].block
        del given_back
        device.collect_garbage()
        (allocation,) = pool.allocate(1, words)
        assert (allocation.block is block) == taken
        del allocation, block
    assert len(kept) == 3

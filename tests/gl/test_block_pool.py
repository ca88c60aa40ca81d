"""The pool of blocks for tensors that come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from glnn.errors import NoRoomError
from glnn.gl import Device
from glnn.gl.block_pool import BlockPool

WORDS = 5000


@pytest.fixture
def device() -> Iterator[Device]:
    with Device() as one:
        one.activate()
        yield one


def test_blocks_that_take_turns_find_their_own_again(device) -> None:
    pool = BlockPool.for_device(device)
    leases, orders = pool.allocate(60, WORDS, WORDS), []
    for _ in range(4):
        following = pool.allocate(60, WORDS, WORDS)
        orders.append([lease.block for lease in following])
        leases = following
        device.collect()
    assert orders[0] == orders[2] and orders[1] == orders[3]
    assert not set(orders[0]) & set(orders[1])
    assert pool.nbytes == 2 * 60 * 4 * 2 * WORDS
    del leases, following, orders
    device.collect()
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
    leases = pool.allocate(4, WORDS, WORDS, lambda: 4 * 6 * WORDS)
    assert {lease.block.size for lease in leases} == {WORDS}
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
    device.collect()
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
        device.collect()
    device.collect()
    assert len(pool._free) == 200 and pool._used_bytes == pool._free_bytes
    again = pool.allocate(200, 16)
    assert len({lease.block for lease in (*kept, *again)}) == 400

"""What threads make before it is asked for: the same as without, in bounds, and nothing left."""

from __future__ import annotations

import threading

import pytest

from glnn.compiler import weights
from glnn.compiler.weights import Ahead


def packers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "glnn packs"]


def test_all_is_made_once() -> None:
    made: list[int] = []

    def make(key: int) -> str:
        made.append(key)
        return str(key)

    with Ahead([(key, 1) for key in range(50)], make, 2) as found:
        got = [found.take(key) for key in range(50)]
        assert found.take(99) is None and found.take(0) is None, "what was taken is gone"
    assert len(made) == len(set(made)), "nothing twice"
    taken = {key for key, value in enumerate(got) if value is not None}
    assert taken == set(made) and all(got[key] == str(key) for key in taken)
    assert not packers()


def test_what_a_thread_is_at_is_waited_for() -> None:
    begun, go = threading.Event(), threading.Event()

    def make(key: str) -> str:
        begun.set()
        assert go.wait(10)
        return key

    with Ahead([("a", 1)], make, 1) as found:
        assert begun.wait(10)
        threading.Timer(0.01, go.set).start()
        assert found.take("a") == "a"


def test_what_fails_is_left_to_who_asks() -> None:
    def make(key: int) -> int:
        if key == 1:
            raise MemoryError
        return key

    with Ahead([(1, 1), (2, 1)], make, 1) as found:
        assert found.take(1) is None
        assert found.take(2) in (2, None)


def test_no_more_is_made_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken counts until the next is asked for: it is being uploaded."""
    monkeypatch.setattr(weights, "MOST", 10)
    made: list[int] = []
    changed = threading.Condition()

    def make(key: int) -> int:
        with changed:
            made.append(key)
            changed.notify_all()
        return key

    def wait(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(made) >= count, 10)

    with Ahead([(0, 4), (1, 4), (2, 100), (3, 4)], make, 2) as found:
        wait(2)
        assert found._held == 8
        assert [found.take(0), found.take(1)] == [0, 1]
        assert sorted(made) == [0, 1] and found._held == 4
        assert found.take(2) in (2, None)  # as large as it is, where nothing else is held
        assert found.take(3) in (3, None)
    assert not packers()


def test_an_end_before_all_is_made() -> None:
    def make(key: int) -> int:
        return key

    with pytest.raises(KeyboardInterrupt), Ahead([(i, 1) for i in range(1000)], make, 3):
        raise KeyboardInterrupt
    assert not packers()


def test_small_ones_begin_no_thread() -> None:
    with Ahead([("a", 1000)], str, None) as found:
        assert not packers() and found.take("a") is None

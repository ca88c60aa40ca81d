"""Weights read and packed by threads of their own, while programs are compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from glnn.process import memory, processors

if TYPE_CHECKING:
    from typing_extensions import Self

Key = TypeVar("Key")
Made = TypeVar("Made")
LEAST = 4 << 20  # bytes in all: below, a thread takes longer than it saves
MOST = 512 << 20  # bytes that are ready or being made
SHARE = 8  # of the process's memory, where that is little
MOST_THREADS = 4


@dataclass
class _Item(Generic[Made]):
    """Something that is wanted."""

    nbytes: int
    """What it takes once it is made."""
    begun: bool = False
    """Whether a thread is at it, was, or need not any more."""
    over: bool = False
    """Whether it is made, or failed."""
    made: Made | None = None
    """What was made; None where that failed, or it was taken."""


class Ahead(Generic[Key, Made]):
    """What `make` gives for keys, made in their order by threads while this is entered.

    It is no other than without: who is given None makes it, and meets the errors that there are.
    """

    def __init__(
        self, wanted: Sequence[tuple[Key, int]], make: Callable[[Key], Made], threads: int | None
    ) -> None:
        """wanted: each key with its bytes. threads: how many; what suits this machine if None."""
        self._items: dict[Key, _Item[Made]] = {key: _Item(nbytes) for key, nbytes in wanted}
        self._make, self._changed = make, threading.Condition()
        self._most = min(MOST, memory() // SHARE)
        self._held, self._ended = 0, False
        self._last: _Item[Made] | None = None
        if threads is None:
            enough = sum(item.nbytes for item in self._items.values()) >= LEAST
            threads = min(processors() - 1, MOST_THREADS) if enough else 0
        count = min(threads, len(self._items))
        work = self._work
        self._threads = [
            threading.Thread(target=work, name="glnn packs", daemon=True) for _ in range(count)
        ]

    def take(self, key: Key) -> Made | None:
        """What was made of `key`, waited for where a thread is at it; None where none is."""
        item = self._items.get(key)
        if item is None:
            return None
        with self._changed:
            self._release()
            if not item.begun:
                item.begun = item.over = True  # whoever asks makes it
                return None
            while not item.over:
                self._changed.wait()
            made, item.made, self._last = item.made, None, item
        return made

    def _release(self) -> None:
        """What was taken last is not needed any more."""
        if self._last is not None:
            self._held -= self._last.nbytes
            self._last = None
            self._changed.notify_all()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            key, item = found
            made: Made | None = None
            with suppress(Exception):  # whoever wants it meets the same one, where it would be
                made = self._make(key)
            with self._changed:
                item.over, item.made = True, made
                if made is None:
                    self._held -= item.nbytes
                self._changed.notify_all()
            del made, found, item  # else they live until the next one is made

    def _next(self) -> tuple[Key, _Item[Made]] | None:
        """What is to be made, once there is room for it; None at the end."""
        with self._changed:
            while not self._ended:
                waiting = ((key, one) for key, one in self._items.items() if not one.begun)
                found = next(waiting, None)
                if found is None:
                    break
                nbytes = found[1].nbytes
                if not self._held or self._held + nbytes <= self._most:
                    self._held += nbytes
                    found[1].begun = True
                    return found
                self._changed.wait()
            return None

    def __enter__(self) -> Self:
        for i, thread in enumerate(self._threads):
            try:
                thread.start()
            except RuntimeError:  # there are no more to be had
                del self._threads[i:]
                break
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._items.clear()

"""Ctrl-C while a step is under way: noted, and raised once the step is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed."""

    noted: bool = False
    """Set at the first time; the second raises KeyboardInterrupt at once."""


@contextmanager
def noted() -> Iterator[Interruption]:
    """Within it the first Ctrl-C is only noted.

    In other threads than the main one, or where the program handles SIGINT itself, nothing is
    changed.
    """
    found = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        if found.noted:
            raise KeyboardInterrupt
        found.noted = True

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield found
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

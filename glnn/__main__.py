"""The command line, as `glnn` and as `python -m glnn`, and what Ctrl-C does to it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
AGAIN = 0.01  # seconds


def main() -> None:
    """Run the command line and exit; Ctrl-C is no traceback even while modules are loaded."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background
    if heeded:
        signal.signal(signal.SIGINT, leave)
    from glnn.cli import load
    from glnn.cli import main as run

    load(sys.argv[1:])
    if heeded:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGALRM, interrupt)
    try:
        run()
    finally:
        if heeded:  # as Python ends, an alarm has no handler any more and would kill the process
            signal.signal(signal.SIGINT, leave)
            signal.setitimer(signal.ITIMER_REAL, 0)


def leave(number: int, frame: FrameType | None) -> None:
    """End the process: an exception would become whatever the module being loaded makes of it."""
    os.write(2, b"glnn: interrupted\n")
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but only once moderngl has returned.

    It calls Python from C and does not look whether that raised: the process would crash.
    """
    caller = frame
    while caller is not None:
        if caller.f_globals.get("__name__", "").partition(".")[0] == "moderngl":
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        caller = caller.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

"""The command line, as `glnn` and as `python -m glnn`, and its handling of Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
AGAIN = 0.01  # seconds


def main() -> None:
    """Run the command line and exit; Ctrl-C shows no traceback, even while modules are imported."""
    # A process in the background ignores SIGINT, and keeps ignoring it.
    handles_sigint = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles_sigint:
        signal.signal(signal.SIGINT, leave)
    from glnn.cli import load
    from glnn.cli import main as run

    load(sys.argv[1:])
    if handles_sigint:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGALRM, interrupt)
    try:
        run()
    finally:
        if handles_sigint:  # without Python's handler an alarm would kill the ending process
            signal.signal(signal.SIGINT, leave)
            signal.setitimer(signal.ITIMER_REAL, 0)


def leave(number: int, frame: FrameType | None) -> None:
    """End the process: a module that is being imported might catch an exception."""
    os.write(2, b"glnn: interrupted\n")
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but only after moderngl has returned.

    moderngl calls Python from C without checking for exceptions: one would crash the process.
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

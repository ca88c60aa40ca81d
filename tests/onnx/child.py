"""Function calls in a child process, which may crash or hang."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

LIMIT = 60.0  # seconds of a call


def _serve(pipe: Any) -> None:
    """Answer requests, a function and its arguments each, in a child process until it is ended."""
    warnings.simplefilter("ignore")
    logging.getLogger("glnn").setLevel(logging.ERROR)
    while True:
        function, arguments = pipe.recv()
        try:
            answer = True, function(*arguments)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            raised = f"{type(error).__name__}: {error}"
            if not type(error).__module__.startswith(("glnn", "onnxruntime")):
                raised += f" ({Path(last.filename).name}:{last.lineno})"
            answer = False, raised
        pipe.send(answer)


class Child:
    """A child process that calls functions, started anew when it crashes or takes too long."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def call(self, function: Callable[..., Any], *arguments: Any) -> tuple[bool, Any]:
        """Return whether `function` returned, with its result or with what was raised."""
        if self._process is None:
            context = get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
        try:
            self._pipe.send((function, arguments))
            if self._pipe.poll(LIMIT):
                return self._pipe.recv()  # type: ignore[no-any-return]
            failed = f"took more than {LIMIT:.0f} s"
        except (EOFError, OSError):
            failed = "crashed"
        self.close()
        return False, failed

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

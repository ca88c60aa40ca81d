"""Pillow's warnings while pictures are read, in one thread or in several."""

from __future__ import annotations

import warnings
from threading import Lock
from types import TracebackType


class Quiet:
    """Ignores warnings, which are of odd metadata, but raises those of pictures that are too large.

    Python's filters are those of all threads: the first that enters sets them, the last that leaves
    restores them.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._kept = warnings.catch_warnings()

    def __enter__(self) -> None:
        from PIL import Image

        with self._lock:
            if not self._inside:
                self._kept = warnings.catch_warnings()
                self._kept.__enter__()
                warnings.simplefilter("ignore")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._kept.__exit__(kind, error, trace)


QUIET = Quiet()
"""The one of this process, as its filters are one."""

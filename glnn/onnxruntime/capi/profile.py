"""The trace of a session's runs, which is written where profiling is enabled."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Any

from glnn.errors import GlnnError
from glnn.session import InferenceSession

if TYPE_CHECKING:
    from glnn.onnxruntime.capi.options import SessionOptions


class Profile:
    """Events of a session, in Chrome's trace event format; nothing where it is off.

    prefix: what the file's name begins with. start: ns since 1970, 0 for off. Besides the session's
    own events there are those of glnn's trace, of each plan as a process of its own.
    """

    def __init__(self, prefix: str, start: int) -> None:
        self.prefix, self.start = prefix, start
        self.on = bool(start)
        self._events: list[dict[str, Any]] = []
        self._trace: Any = None
        self._lock = threading.Lock()

    @classmethod
    def from_options(cls, options: SessionOptions, start: int) -> Profile:
        """Return the profile that `options` ask for; `start` is in nanoseconds."""
        return cls(options.profile_file_prefix, start if options.enable_profiling else 0)

    def add(self, name: str, start: int, **more: Any) -> None:
        """An event that began at `start`, ns since 1970, and ends now."""
        if not self.on:
            return
        begun, took = (start - self.start) / 1e3, (time_ns() - start) / 1e3
        event = {"cat": "Session", "ph": "X", "name": name, "ts": begun, "dur": took, "args": more}
        own = {"pid": os.getpid(), "tid": threading.get_native_id()}
        with self._lock:
            self._events.append({**event, **own})

    def add_run(self, session: InferenceSession, feeds: Mapping[str, Any], start: int) -> None:
        """Add a run of `session` that began at `start` and is over; it is run again to time its
        steps.

        A model that has no single plan, and one whose inputs are no tensors, has no steps here.
        """
        shapes = {name: getattr(value, "shape", ()) for name, value in feeds.items()}
        sizes = {name: list(shape) for name, shape in shapes.items()}
        self.add("model_run", start, inputs=sizes, backend=session.backend_name)
        with self._lock, suppress(GlnnError, AttributeError):
            if self._trace is None:  # what traces is not needed by anybody else, and large
                self._trace = import_module("glnn.profiling.trace").Trace()
            self._trace.run(session.plan(shapes), feeds)

    def end(self) -> str:
        """Write the file, once, and give its name; empty where there is none. Raises OSError."""
        with self._lock:
            if not self.on:
                return ""
            self.on = False
        steps = [] if self._trace is None else self._trace.to_json()["traceEvents"]
        name = f"{self.prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"[:-3] + ".json"
        with open(name, "w", encoding="utf-8") as file:
            json.dump([*self._events, *steps], file)
        return name

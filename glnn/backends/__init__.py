"""The ways to run an op: `compute`, `feedback` and `cpu`, behind one contract."""

from __future__ import annotations

from glnn.backends.backend import Backend, Choice, Launch
from glnn.backends.opening import open_backend, open_each, opened
from glnn.runtime.options import NAMES

__all__ = [
    "NAMES",
    "Backend",
    "Choice",
    "Launch",
    "open_backend",
    "open_each",
    "opened",
]

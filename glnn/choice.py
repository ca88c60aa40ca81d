"""The backend that `auto` chose, with the measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from glnn.settings import BACKENDS
from glnn.span import duration

TIE = 1.15
"""The ratio of times up to which a backend counts as fast as the fastest: timings vary."""


@dataclass(frozen=True)
class Choice:
    """The choice of `auto` for a model and its inputs' shapes.

    Raises ValueError for an unknown backend or an invalid time.
    """

    backend: str
    """The backend's name."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The time of one run, transfers included, on each backend that was timed."""
    why: Mapping[str, str] = field(default_factory=dict)
    """The reason why a backend was not timed, or why a timed one was not timed further."""
    remembered: bool = False
    """True where the times are from an earlier run, of this process or another."""

    def __post_init__(self) -> None:
        for name in (self.backend, *self.seconds, *self.why):
            if name not in BACKENDS:
                raise ValueError(f"expected one of {', '.join(BACKENDS)}, got {name!r}")
        for name, seconds in self.seconds.items():
            if not (isinstance(seconds, float) and isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name}: expected seconds above 0, got {seconds!r}")

    @classmethod
    def of(cls, seconds: Mapping[str, float], why: Mapping[str, str]) -> Choice:
        """Choose by the times of one run on each backend; `seconds` must not be empty.

        Takes the first of BACKENDS among those that are as fast as the fastest within TIE.
        """
        most = TIE * min(seconds.values())
        fast = [name for name in BACKENDS if name in seconds and seconds[name] <= most]
        return cls(fast[0], dict(seconds), dict(why))

    def to_json(self) -> dict[str, Any]:
        """Return the choice as dicts, strings and numbers for JSON."""
        times = {"seconds": dict(self.seconds), "why": dict(self.why)}
        return {"backend": self.backend, **times, "remembered": self.remembered}

    def __str__(self) -> str:
        timed = []
        for name, taken in self.seconds.items():
            short = f" ({self.why[name]})" if name in self.why else ""
            timed.append(f"{name} {duration(taken)}{short}")
        others = [f"{k} not timed: {why}" for k, why in self.why.items() if k not in self.seconds]
        source = " (as seen before)" if self.remembered else ""
        told = "; ".join([*([", ".join(timed)] if timed else []), *others])
        return f"{self.backend}{source}{': ' if told else ''}{told}"

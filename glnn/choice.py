"""Which backend `auto` took, and by which times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from glnn.settings import BACKENDS
from glnn.span import duration

TIE = 1.15
"""How many times as long as the fastest another may take and still be as fast: clocks differ."""


@dataclass(frozen=True)
class Choice:
    """What `auto` took for a model and its inputs' shapes.

    Raises ValueError for a backend that there is not, or times that are none.
    """

    backend: str
    """The backend's name."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of one run, transfers included, by each backend that was timed."""
    why: Mapping[str, str] = field(default_factory=dict)
    """Of each other backend, why it was not timed; of one that was, why no longer."""
    remembered: bool = False
    """Whether the times are those of an earlier run, of this process or another."""

    def __post_init__(self) -> None:
        for name in (self.backend, *self.seconds, *self.why):
            if name not in BACKENDS:
                raise ValueError(f"expected one of {', '.join(BACKENDS)}, got {name!r}")
        for name, seconds in self.seconds.items():
            if not (isinstance(seconds, float) and isfinite(seconds) and seconds > 0):
                raise ValueError(f"{name}: expected seconds above 0, got {seconds!r}")

    @classmethod
    def of(cls, seconds: Mapping[str, float], why: Mapping[str, str]) -> Choice:
        """The choice by times of one run at least: the fastest, or of those that are as fast as it
        within TIE the first of BACKENDS.
        """
        most = TIE * min(seconds.values())
        fast = [name for name in BACKENDS if name in seconds and seconds[name] <= most]
        return cls(fast[0], dict(seconds), dict(why))

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, texts and numbers."""
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

"""Options of a session beside its model, and the choice of a backend by `auto`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from glnn.core.settings import BACKENDS
from glnn.core.trace_spans import duration
from glnn.errors import GlnnError, shown
from glnn.gl import Device

NAMES = BACKENDS
"""The backends, in the order in which `auto` tries them."""
PRECISIONS = ("float32", "float16", "int8")
"""The number types that weights may be stored as."""
PREFERENCES = ("fastest", "gpu")
"""The values of `prefer`."""


@dataclass(frozen=True, eq=False)
class Options:
    """The arguments of an InferenceSession. Raises GlnnError for those that are of no use.

    Of a backend, a device or a pass that there is none of, those tell who look for it.
    """

    backend: str = "auto"
    """`auto`, or the name of one."""
    device: Device | None = None
    """The device to run on; None opens or shares one."""
    gpu: int | str | None = None
    """The GPU to open; None is the environment's."""
    limits: str | None = None
    """The limits of the device; None are the environment's."""
    kernels: Mapping[str, str] | None = None
    """Kernels to take, by the name of the op."""
    precision: str = "float32"
    """As what weights are stored, and what steps give each other: one of PRECISIONS."""
    max_batch: int = 1
    """The most samples that requests are batched to."""
    without: Iterable[Any] = ()
    """Passes that are left out."""
    fused: bool = True
    """True where work may be fused into the step before."""
    prefer: str = "fastest"
    """The backend that `auto` prefers, one of PREFERENCES."""

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str):
            raise GlnnError(f"a backend must be a name, got {shown(self.backend)}")
        if self.kernels is not None and not _names(self.kernels):
            raise GlnnError(f"kernels must map ops to kernels' names, got {shown(self.kernels)}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS[:-1])
            known = f"{known} or {PRECISIONS[-1]}"
            raise GlnnError(f"precision must be {known}, got {shown(self.precision)}")
        if not isinstance(self.prefer, str) or self.prefer not in PREFERENCES:
            known = " or ".join(PREFERENCES)
            raise GlnnError(f"prefer must be {known}, got {shown(self.prefer)}")
        if type(self.max_batch) is not int or self.max_batch < 1:
            raise GlnnError(f"max_batch must be a positive int, got {shown(self.max_batch)}")
        if isinstance(self.without, Iterable) and not isinstance(self.without, str):
            object.__setattr__(self, "without", tuple(self.without))  # it may be gone through once


def _names(kernels: object) -> bool:
    texts = [*kernels, *kernels.values()] if isinstance(kernels, Mapping) else [None]
    return all(isinstance(text, str) for text in texts)


TIE = 1.15
"""The ratio of times up to which a backend counts as fast as the fastest: timings vary."""


@dataclass(frozen=True)
class BackendChoice:
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
    def from_seconds(cls, seconds: Mapping[str, float], why: Mapping[str, str]) -> BackendChoice:
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

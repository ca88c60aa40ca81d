"""When the kernels and functions of a device were looked at, and whether they are the same now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from glnn.device import Capabilities
from glnn.device.device_file import DeviceFile
from glnn.graph.functions import FUNCTIONS
from glnn.kernels.generate.expression import function_fingerprint
from glnn.kernels.library import declared
from glnn.kernels.source import known_fingerprint

FORM = 1  # of the file
TABLE = "certificates"


@dataclass(frozen=True)
class Certificate:
    """That a backend was looked at."""

    backend: str
    """Which."""
    looked: str
    """At what: "all", or the ops and functions."""
    when: float
    """Seconds since 1970."""
    kernels: str
    """The fingerprint of all kernels then."""
    functions: str
    """That of all functions."""
    problems: int
    """How many the kernels computed."""
    wrong: int
    """How many kernels and functions are not used, or not for some."""

    def __post_init__(self) -> None:
        for name in ("backend", "looked", "kernels", "functions"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: expected a text, got {getattr(self, name)!r}")
        if min(self.when, self.problems, self.wrong) < 0:
            raise ValueError("expected no number below 0")

    @property
    def date(self) -> str:
        """`when` in UTC, to the minute."""
        return datetime.fromtimestamp(self.when, timezone.utc).strftime("%Y-%m-%d %H:%M")

    @property
    def holds(self) -> bool:
        """Whether kernels and functions are those of now."""
        return (self.kernels, self.functions) == fingerprints(self.backend)

    @property
    def text(self) -> str:
        """What is to be said of it."""
        what = "all kernels and functions" if self.looked == "all" else self.looked
        found = "nothing wrong" if not self.wrong else f"{self.wrong} of them wrong"
        still = "" if self.holds else "; some have changed since: run glnn doctor again"
        return f"{self.backend}: {what} looked at on {self.date} UTC, {found}{still}"


@dataclass
class Certificates:
    """Those of one device. file: what keeps them."""

    file: DeviceFile
    found: dict[str, Certificate] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities, version: str) -> Certificates:
        """What `folder` keeps for `device`, given by this `version` of glnn."""
        file = DeviceFile.of(folder, TABLE, FORM, device, version)
        return cls(file, file.read(_certificate))

    def keep(self, *given: Certificate) -> None:
        """Take these, in the place of those on the same. Raises OSError where none can be kept."""
        self.found |= {f"{one.backend} {one.looked}": one for one in given}
        self.file.write({key: asdict(one) for key, one in self.found.items()})

    def forget(self) -> None:
        """Drop them, and the file. Raises OSError where it cannot be removed."""
        self.found.clear()
        self.file.remove()


def certificate(
    backend: str,
    ops: Sequence[str] | None,
    functions: Sequence[str] | None,
    problems: int,
    wrong: int,
) -> Certificate:
    """One of now. ops, functions: what was looked at alone; None for all, unless others are."""
    some = [*(ops or ()), *(f"{name}()" for name in functions or ())]
    looked = ", ".join(some) or "all"
    return Certificate(backend, looked, time.time(), *fingerprints(backend), problems, wrong)


def fingerprints(backend: str) -> tuple[str, str]:
    """That of all kernels of `backend`, and that of all functions."""
    kernels = (
        f"{kernel.op} {kernel.name} {known_fingerprint(kernel)}"
        for kernel in declared()
        if kernel.backend == backend
    )
    functions = (f"{name} {function_fingerprint(name)}" for name in FUNCTIONS)
    return _hashed(sorted(kernels)), _hashed(sorted(functions))


def _hashed(lines: Sequence[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def _certificate(value: Any) -> Certificate:
    return Certificate(
        value["backend"],
        value["looked"],
        float(value["when"]),
        value["kernels"],
        value["functions"],
        int(value["problems"]),
        int(value["wrong"]),
    )

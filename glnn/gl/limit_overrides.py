"""Limits that a driver states and does not keep, and the values that hold, in a file by device.

`glnn doctor` finds them, and a device that opens lowers its capabilities to the values that hold.
They depend on the driver alone, so all versions of glnn use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from glnn.gl.device_file import DeviceFile
from glnn.gl.device_info import Capabilities, Triple

FORM = 1  # of the file; a file of another form is not used
TABLE = "limits"
UPWARD = frozenset({"shader_storage_buffer_offset_alignment"})
"""Limits of which a larger number is the weaker requirement."""
Limit = int | Triple


@dataclass(frozen=True)
class BrokenLimit:
    """A limit that a driver does not keep."""

    said: Limit
    """The limit that the driver states."""
    holds: Limit
    """The largest value seen to work."""
    why: str
    """The failure beyond it, in a few words."""

    def __post_init__(self) -> None:
        for number in (self.said, self.holds):
            numbers = number if isinstance(number, tuple) else (number,)
            if len(numbers) not in (1, 3) or not all(type(n) is int and n >= 0 for n in numbers):
                raise ValueError(f"a limit is a count or three of them, got {number!r}")
        if isinstance(self.said, tuple) != isinstance(self.holds, tuple):
            raise ValueError(f"{self.said!r} and {self.holds!r} are no two numbers of one limit")


@dataclass
class LimitOverrides:
    """The limits that one device's driver does not keep, by their names in `Capabilities`.

    file: the file that stores them.
    """

    file: DeviceFile
    limits: dict[str, BrokenLimit] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, device: Capabilities) -> LimitOverrides:
        """Load the limits in `folder` found broken on `device`, whether or not its limits were
        lowered.
        """
        file = DeviceFile.for_device(folder, TABLE, FORM, replace(device, minimum=False), "any")
        known = device.limits()
        kept = file.read(_broken)
        return cls(file, {name: one for name, one in kept.items() if name in known})

    def lowered(self, device: Capabilities) -> Capabilities:
        """Return `device` with the limits that hold, where these are stricter."""
        if not self.limits:
            return device
        lowered: dict[str, Any] = {
            name: _stricter(name, getattr(device, name), one.holds)
            for name, one in self.limits.items()
        }
        return replace(device, **lowered)

    def add(self, limits: Mapping[str, BrokenLimit]) -> None:
        """Add `limits`, and write the file where that is possible."""
        for name, one in limits.items():
            known = self.limits.get(name)
            holds = one.holds if known is None else _stricter(name, known.holds, one.holds)
            said = one.said if known is None else known.said
            self.limits[name] = BrokenLimit(said, holds, one.why)
        entries = {
            **self.file.reread(_broken),
            **self.limits,
        }  # another process may have added some
        with suppress(OSError):  # the doctor finds them again
            self.file.write({name: asdict(one) for name, one in entries.items()})

    def forget(self) -> None:
        """Drop all limits, and remove the file. Raises OSError where that fails."""
        self.limits.clear()
        self.file.remove()


def _stricter(name: str, a: Any, b: Any) -> Any:
    """Return the stricter number of the limit called `name`, along each axis."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(_stricter(name, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, tuple) or isinstance(b, tuple):
        return a  # the file has a wrong kind of number
    return max(a, b) if name in UPWARD else min(a, b)


def _broken(value: Any) -> BrokenLimit:
    said, holds = (
        tuple(number) if isinstance(number, list) else number
        for number in (value["said"], value["holds"])
    )
    return BrokenLimit(said, holds, str(value["why"]))

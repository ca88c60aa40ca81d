"""The doctor's checks, one after another: whatever one raises ends that check alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from glnn.errors import raised
from glnn.gl import Device

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True)
class NoVerdict:
    """A check that an exception ended: what it was to see is not known."""

    step: str
    """The name of the check."""
    error: str
    """The exception's type, and what it says."""

    @property
    def text(self) -> str:
        """The check and its exception, in one line."""
        return f"{self.step}: no verdict: {self.error}"


class Checks:
    """Runs checks, and collects those that raised an exception.

    device: what the checks use, where they are to say at which of them it was lost.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self.failed: list[NoVerdict] = []
        self.lost_at: str | None = None
        """The check after which the device was lost, whether or not that one raised an exception;
        it is not among those that failed. None where the device is there."""

    def run(self, step: str, check: Callable[[], T], otherwise: D) -> T | D:
        """Return what `check` returns, or `otherwise` where it raises any Exception.

        step: what is checked, for people. KeyboardInterrupt and SystemExit pass.
        """
        try:
            return check()
        except Exception as error:  # a driver may fail at anything: the other checks go on
            self.failed.append(NoVerdict(step, raised(error)))
            return otherwise
        finally:
            if self.lost_at is None and self._device is not None and self._device.lost is not None:
                self.lost_at = step
                self.failed = [one for one in self.failed if one.step != step]

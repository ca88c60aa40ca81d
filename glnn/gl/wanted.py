"""Options that a device is opened with."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.errors import DeviceError, shown
from glnn.gl.capabilities import Capabilities
from glnn.gl.context import Attempt, Context
from glnn.gl.opening import (
    check_arguments,
    check_gpu,
    gpu_asked,
    open_behind,
    open_context,
)
from glnn.settings import PRIORITIES, WAITS, Settings

LOW = "low"


@dataclass(frozen=True)
class Wanted:
    """The arguments of a Device. Raises DeviceError for those that are of no use."""

    gpu: int | str | None
    """The GPU; None is the first that opens."""
    limits: str | None
    """MINIMUM_LIMITS, or None for its own."""
    version: tuple[int, int] | None
    """The only version of GL to ask for; None is any."""
    platform: str | None
    """The only way to try; None is any."""
    priority: str
    """A member of PRIORITIES."""
    wait: str
    """A member of WAITS."""

    def __post_init__(self) -> None:
        check_gpu(self.gpu)
        check_arguments(self.limits, self.version, self.platform)
        for name, given, known in (
            ("priority", self.priority, PRIORITIES),
            ("wait", self.wait, WAITS),
        ):
            if not isinstance(given, str) or given not in known:
                raise DeviceError(f"{name} must be one of {known}, got {shown(given)}")

    @classmethod
    def of(
        cls,
        settings: Settings,
        gpu: int | str | None = None,
        limits: str | None = None,
        version: tuple[int, int] | None = None,
        platform: str | None = None,
        priority: str | None = None,
        wait: str | None = None,
    ) -> Wanted:
        """Return the options given, with those that are None taken from `settings`."""
        return cls(
            settings.gpu if gpu is None else gpu,
            settings.limits if limits is None else limits,
            version,
            platform,
            settings.priority if priority is None else priority,
            settings.wait if wait is None else wait,
        )

    @property
    def low(self) -> bool:
        """Return True where the priority is low, so that other work on the GPU goes first."""
        return self.priority == LOW

    def open(self) -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
        """Open a context with these options. Returns and raises what `open_context` does."""
        opening = open_behind if self.low else open_context
        return opening(gpu_asked(self.gpu), self.version, self.platform)

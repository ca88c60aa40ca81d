"""Base class of GL contexts, through EGL or of a window, and their errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glnn.errors import DeviceError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Attempt:
    """A failed attempt to open a context: the configuration tried, the step that failed and why."""

    what: str
    step: str
    error: str

    def __str__(self) -> str:
        return f"{self.what}: {self.step}: {self.error}"


class StepError(Exception):
    """A step on the way to a context failed."""

    def __init__(self, step: str, error: str) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.error = error


class NoDeviceError(DeviceError):
    """No GL context could be opened; `attempts` holds everything that was tried."""

    def __init__(self, message: str, attempts: tuple[Attempt, ...]) -> None:
        tried = "; ".join(str(attempt) for attempt in attempts)
        super().__init__(f"{message} ({tried})" if tried else message)
        self.attempts = attempts


@dataclass(frozen=True)
class Version:
    """A version of GL to ask for: `api` is "es" or "gl"."""

    api: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"OpenGL {'ES ' if self.api == 'es' else ''}{self.major}.{self.minor}"


ES_VERSIONS = (Version("es", 3, 2), Version("es", 3, 1), Version("es", 3, 0))
WINDOW_VERSIONS = (  # compute first
    Version("gl", 4, 3),
    Version("es", 3, 2),
    Version("es", 3, 1),
    Version("gl", 3, 3),
    Version("es", 3, 0),
)


class Context(ABC):
    """A GL context that moderngl can load its functions from."""

    what: str

    @abstractmethod
    def load_opengl_function(self, name: str) -> int:
        """The address of GL's function `name`, 0 where there is none."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return True where this context is the current one of the calling thread."""

    @abstractmethod
    def make_current(self) -> None:
        """Make it this thread's context. Raises StepError."""

    @abstractmethod
    def leave(self) -> None:
        """Leave this thread without a context, if it is this one: others may take it then."""

    @property
    def may_stay(self) -> bool:
        """Return True where the context may stay current while the thread does other things."""
        return False

    def leave_thread(self) -> None:
        """Leave this thread, which ends, without anything of GL."""
        self.leave()

    @abstractmethod
    def remember(self) -> Callable[[], object] | None:
        """Return a callable that restores the thread's current context, of any owner; None if it
        has none.
        """

    @abstractmethod
    def release(self) -> None:
        """Destroy the context. Harmless when repeated, and from any thread."""

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: object) -> None:
        return

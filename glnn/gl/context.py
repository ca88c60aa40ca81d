"""Base class of GL contexts, their errors, and their functions, for ctypes and for moderngl."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import c_uint
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glnn.errors import DeviceError

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self


@dataclass(frozen=True)
class Attempt:
    """A failed attempt to open a context."""

    what: str
    """The configuration."""
    step: str
    """The step that failed."""
    error: str
    """The error of that step."""

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

    def __init__(self, message: str, attempts: tuple[Attempt, ...], advice: str = "") -> None:
        tried = "; ".join(str(attempt) for attempt in attempts)
        text = f"{message} ({tried})" if tried else message
        super().__init__(f"{text}; {advice}" if advice else text)
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
        """Return the address of GL's function `name`, 0 where there is none."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return True where this context is the current one of the calling thread."""

    @abstractmethod
    def make_current(self) -> None:
        """Make the context current in this thread. Raises StepError."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the context, if it is current in this thread: other threads may take it then."""

    @property
    def may_stay(self) -> bool:
        """Return True where the context may stay current while the thread does other work."""
        return False

    def leave_thread(self) -> None:
        """Leave the context and free all of GL's data of this thread, which ends."""
        self.leave()

    @abstractmethod
    def remember(self) -> Callable[[], object] | None:
        """Return a function that restores the thread's current context, of any owner; None without
        one.
        """

    @abstractmethod
    def release(self) -> None:
        """Destroy the context. Harmless when repeated, and from any thread."""

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: object) -> None:
        return


GlCall = tuple[Callable[..., object], tuple[Any, ...]]
"""A function and its arguments."""


class GlFunctions:
    """The functions of one context.

    The functions of every run are `quick`: calls keep Python's lock, and most arguments are not
    converted, which takes less time. `slow` functions release the lock, as they may take long.
    """

    def __init__(self, gl: Context, renderer: str) -> None:
        self._gl, self._renderer = gl, renderer
        self._quick: dict[tuple[Any, ...], Any] = {}  # by name, type of the result, and arguments
        self._slow: dict[tuple[Any, ...], Any] = {}  # likewise

    def _address(self, name: str) -> int:
        """Return a function's address. Raises DeviceError for 0: a call would end the process."""
        if not (address := self._gl.load_opengl_function(name)):
            raise DeviceError(f"{self._renderer} has no {name}")
        return address

    def slow(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return the function `name` of these ctypes types. It releases Python's lock.

        Raises DeviceError where the driver does not have it.
        """
        function = self._slow.get((name, result, arguments))
        if function is None:
            function = ctypes.CFUNCTYPE(result, *arguments)(self._address(name))
            self._slow[name, result, arguments] = function
        return function

    def quick(self, name: str, result: Any = None, *arguments: Any) -> Any:
        """Return the function `name` of these ctypes types. It keeps Python's lock.

        Without `arguments` it takes ints of at most 32 bits, or objects of ctypes, without the time
        for conversions. Raises what `slow` raises.
        """
        function: Any = self._quick.get((name, result, arguments))
        if function is None:
            function = ctypes.PYFUNCTYPE(result, *arguments)(self._address(name))
            function.__name__ = name
            self._quick[name, result, arguments] = function
        return function


COMPUTE, VERTEX = 0x91B9, 0x8B31
STUBBED = (
    *("glShaderSource", "glCompileShader", "glAttachShader", "glDetachShader", "glDeleteShader"),
    *("glTransformFeedbackVaryings", "glLinkProgram"),
)
NO_OP = "glIsShader"  # without effect, and without an error for any argument


class ModernglLoader:
    """Function loader through which moderngl adopts programs that glnn has linked with `gl`."""

    def __init__(self, gl: Context) -> None:
        self._gl = gl
        self._programs: list[int] = []
        self._shaders: dict[int, int] = {}
        program = ctypes.CFUNCTYPE(c_uint)(self._programs.pop)
        shader = ctypes.CFUNCTYPE(c_uint, c_uint)(self._shaders.get)
        nothing = ctypes.CFUNCTYPE(None, c_uint)(int)  # ignores all further arguments
        self._stubs = dict.fromkeys(STUBBED, nothing)
        self._stubs |= {"glCreateProgram": program, "glCreateShader": shader}

    def load_opengl_function(self, name: str) -> int:
        """Return the address that moderngl calls for the function `name`, 0 where there is none."""
        if name in self._stubs:
            return ctypes.cast(self._stubs[name], ctypes.c_void_p).value or 0
        # moderngl flushes after every capture: 5 us on an H200. Command buffers flush instead.
        return self._gl.load_opengl_function(NO_OP if name == "glFlush" else name)

    def adopt(
        self,
        context: moderngl.Context,
        program: int,
        varyings: tuple[str, ...],
        shader: Callable[[int], int],
    ) -> Any:
        """Return moderngl's object for the linked `program`, which owns it from now on.

        varyings: those that it captures; none for a compute program. shader: compiles a minimal
        shader of a stage; called once for each stage.
        """
        stage = VERTEX if varyings else COMPUTE
        if stage not in self._shaders:
            self._shaders[stage] = shader(stage)
        self._programs[:] = [program]
        if varyings:
            return context.program(vertex_shader="", varyings=varyings)
        return context.compute_shader("")

    def release(self) -> None:
        """Destroy the context; moderngl may call it."""
        self._gl.release()

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: object) -> None:
        return

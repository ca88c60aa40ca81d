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


GlCall = tuple[Callable[..., object], tuple[Any, ...]]
"""A function, and what it is called with."""


class GlFunctions:
    """The functions of one context.

    What is called in every run is `quick`: Python looks at no types of most arguments, and its
    other threads wait, which takes less than to have them go on. `slow` functions may take long.
    """

    def __init__(self, gl: Context, renderer: str) -> None:
        self._gl, self._renderer = gl, renderer
        self._quick: dict[tuple[Any, ...], Any] = {}
        self._slow: dict[tuple[Any, ...], Any] = {}  # both by their types, too

    def _address(self, name: str) -> int:
        """Raises DeviceError where there is none: calling address 0 would end the process."""
        if not (address := self._gl.load_opengl_function(name)):
            raise DeviceError(f"{self._renderer} has no {name}")
        return address

    def slow(self, name: str, result: Any, *arguments: Any) -> Any:
        """The function of these ctypes types. Python's other threads run while it does.

        Raises DeviceError where the driver has none.
        """
        known = self._slow.get((name, result, arguments))
        if known is None:
            known = ctypes.CFUNCTYPE(result, *arguments)(self._address(name))
            self._slow[name, result, arguments] = known
        return known

    def quick(self, name: str, result: Any = None, *arguments: Any) -> Any:
        """The function of these ctypes types.

        Without `arguments` it takes ints of at most 32 bits, or objects of ctypes, which takes less
        time than to convert them. Raises as `slow` does.
        """
        known: Any = self._quick.get((name, result, arguments))
        if known is None:
            known = ctypes.PYFUNCTYPE(result, *arguments)(self._address(name))
            known.__name__ = name
            self._quick[name, result, arguments] = known
        return known


COMPUTE, VERTEX = 0x91B9, 0x8B31
STUBBED = (
    *("glShaderSource", "glCompileShader", "glAttachShader", "glDetachShader", "glDeleteShader"),
    *("glTransformFeedbackVaryings", "glLinkProgram"),
)
NO_OP = "glIsShader"  # changes nothing, and is no error whatever it is asked


class ModernglLoader:
    """Function loader through which moderngl adopts programs that glnn has linked with `gl`."""

    def __init__(self, gl: Context) -> None:
        self._gl = gl
        self._programs: list[int] = []
        self._shaders: dict[int, int] = {}
        program = ctypes.CFUNCTYPE(c_uint)(self._programs.pop)
        shader = ctypes.CFUNCTYPE(c_uint, c_uint)(self._shaders.get)
        nothing = ctypes.CFUNCTYPE(None, c_uint)(int)  # the rest of the arguments it does not see
        self._stubs = dict.fromkeys(STUBBED, nothing)
        self._stubs |= {"glCreateProgram": program, "glCreateShader": shader}

    def load_opengl_function(self, name: str) -> int:
        """The address that moderngl is to call for the function `name`, 0 where there is none."""
        if name in self._stubs:
            return ctypes.cast(self._stubs[name], ctypes.c_void_p).value or 0
        # moderngl flushes behind every capture: 5 us on an H200. Commands do where it helps.
        return self._gl.load_opengl_function(NO_OP if name == "glFlush" else name)

    def adopt(
        self,
        context: moderngl.Context,
        program: int,
        varyings: tuple[str, ...],
        shader: Callable[[int], int],
    ) -> Any:
        """The linked `program` as moderngl's `context` has one; it is freed by that.

        varyings: those that it captures; a compute program has none. shader: makes some shader of
        a stage, any that compiles, which is asked for once.
        """
        stage = VERTEX if varyings else COMPUTE
        if stage not in self._shaders:
            self._shaders[stage] = shader(stage)
        self._programs[:] = [program]
        if varyings:
            return context.program(vertex_shader="", varyings=varyings)
        return context.compute_shader("")

    def release(self) -> None:
        """Destroy the context, as moderngl may ask for."""
        self._gl.release()

    def __enter__(self) -> Self:  # moderngl asks for these two
        return self

    def __exit__(self, *error: object) -> None:
        return

"""GL contexts without a display, by EGL through ctypes."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from functools import cached_property, partial
from typing import Any, Protocol

from glnn.device.context import Context, StepError, Version

NAMES = {  # the libraries that hold EGL and GL ES
    "win32": ("libEGL.dll", "libGLESv2.dll"),
    "darwin": ("libEGL.dylib", "libGLESv2.dylib"),
    "linux": ("libEGL.so.1", "libGLESv2.so.2"),
}
DEVICE, SURFACELESS, DEFAULT = "device", "surfaceless", "default"

PLATFORM_DEVICE, PLATFORM_SURFACELESS = 0x313F, 0x31DD
EXTENSIONS, RENDERABLE_TYPE, SURFACE_TYPE, NONE = 0x3055, 0x3040, 0x3033, 0x3038
DRAW, READ = 0x3059, 0x305A
RESET_STRATEGY, LOSE_CONTEXT_ON_RESET = 0x3138, 0x31BF
PBUFFER_BIT, ES3_BIT, GL_BIT, WIDTH, HEIGHT = 0x0001, 0x0040, 0x0008, 0x3057, 0x3056
MAJOR_VERSION, MINOR_VERSION, PROFILE_MASK, CORE_PROFILE = 0x3098, 0x30FB, 0x30FD, 0x1
API = {"es": 0x30A0, "gl": 0x30A2}
ERRORS = (
    *("SUCCESS", "NOT_INITIALIZED", "BAD_ACCESS", "BAD_ALLOC", "BAD_ATTRIBUTE", "BAD_CONFIG"),
    *("BAD_CONTEXT", "BAD_CURRENT_SURFACE", "BAD_DISPLAY", "BAD_MATCH", "BAD_NATIVE_PIXMAP"),
    *("BAD_NATIVE_WINDOW", "BAD_PARAMETER", "BAD_SURFACE", "CONTEXT_LOST"),
)

SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "eglBindAPI": (c_uint, (c_uint,)),
    "eglChooseConfig": (c_uint, (c_void_p, POINTER(c_int), POINTER(c_void_p), c_int, c_void_p)),
    "eglCreateContext": (c_void_p, (c_void_p, c_void_p, c_void_p, POINTER(c_int))),
    "eglCreatePbufferSurface": (c_void_p, (c_void_p, c_void_p, POINTER(c_int))),
    "eglDestroyContext": (c_uint, (c_void_p, c_void_p)),
    "eglDestroySurface": (c_uint, (c_void_p, c_void_p)),
    "eglGetCurrentContext": (c_void_p, ()),
    "eglGetCurrentDisplay": (c_void_p, ()),
    "eglGetCurrentSurface": (c_void_p, (c_int,)),
    "eglGetDisplay": (c_void_p, (c_void_p,)),
    "eglGetError": (c_int, ()),
    "eglGetProcAddress": (c_void_p, (c_char_p,)),
    "eglInitialize": (c_uint, (c_void_p, POINTER(c_int), POINTER(c_int))),
    "eglMakeCurrent": (c_uint, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "eglReleaseThread": (c_uint, ()),
    "eglQueryString": (c_char_p, (c_void_p, c_int)),
}
EXTENSION_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "eglQueryDevicesEXT": (c_uint, (c_int, POINTER(c_void_p), POINTER(c_int))),
    "eglGetPlatformDisplayEXT": (c_void_p, (c_uint, c_void_p, c_void_p)),
}


class Opener(Protocol):
    """Opens a context of the first of `versions` that this way offers. Raises StepError."""

    def __call__(self, versions: Sequence[Version]) -> EglContext: ...


class Egl:
    """The EGL library. Raises StepError where it is not installed."""

    def __init__(self) -> None:
        self._name, self._gles_name = NAMES.get(sys.platform, NAMES["linux"])
        try:
            library = ctypes.CDLL(self._name)
        except OSError as error:
            raise StepError(
                f"load {self._name}",
                f"{error}; on Debian: apt install libegl1 libgles2 libgl1-mesa-dri",
            ) from None
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.extensions = self._extensions(None)
        for name, (result, arguments) in EXTENSION_SIGNATURES.items():
            address = self.eglGetProcAddress(name.encode())
            prototype = ctypes.CFUNCTYPE(result, *arguments)
            setattr(self, name, prototype(address) if address else None)

    def __getattr__(self, name: str) -> Any:  # the functions that __init__ sets, for mypy
        raise AttributeError(name)

    def _extensions(self, display: int | None) -> frozenset[str]:
        text = self.eglQueryString(display, EXTENSIONS)
        if text is None:
            self.eglGetError()  # a library without client extensions: forget the error
        return frozenset((text or b"").decode().split())

    def error(self) -> str:
        code = self.eglGetError()
        name = ERRORS[code - 0x3000] if 0 <= code - 0x3000 < len(ERRORS) else "unknown"
        return f"EGL_{name} (0x{code:04x})"

    @cached_property
    def gles(self) -> ctypes.CDLL | None:
        """The GL ES library: some drivers' eglGetProcAddress knows extensions only."""
        try:
            return ctypes.CDLL(self._gles_name)
        except OSError:
            return None

    def leave(self) -> None:
        """Leave this thread without an EGL context."""
        if self.eglGetCurrentContext():
            self.eglMakeCurrent(self.eglGetCurrentDisplay(), None, None, None)

    def devices(self) -> list[int]:
        """The handles of EGL's devices. Raises StepError where EGL cannot list them."""
        if not self.eglQueryDevicesEXT or not self.eglGetPlatformDisplayEXT:
            raise StepError("eglQueryDevicesEXT", "this EGL has no device platform")
        handles, count = (c_void_p * 64)(), c_int()
        if not self.eglQueryDevicesEXT(64, handles, byref(count)):
            raise StepError("eglQueryDevicesEXT", self.error())
        return [handle or 0 for handle in handles[: count.value]]

    def ways(self, platform: str) -> Iterator[tuple[str, Opener]]:
        """Each way to a context on `platform`: its name and what opens it. Raises StepError."""
        if platform == DEVICE:
            for index, handle in enumerate(self.devices()):
                yield f"EGL device {index}", partial(self._open, index, PLATFORM_DEVICE, handle)
        elif platform == SURFACELESS:
            if "EGL_MESA_platform_surfaceless" not in self.extensions:
                raise StepError("eglGetPlatformDisplayEXT", "no surfaceless platform")
            yield "EGL surfaceless", partial(self._open, None, PLATFORM_SURFACELESS, None)
        else:
            yield "EGL default display", partial(self._open, None, None, None)

    def _open(
        self,
        index: int | None,
        platform: int | None,
        native: int | None,
        versions: Sequence[Version],
    ) -> EglContext:
        if platform is None:
            step, display = "eglGetDisplay", self.eglGetDisplay(None)
        else:
            step = "eglGetPlatformDisplayEXT"
            display = self.eglGetPlatformDisplayEXT(platform, native, None)
        if not display:
            raise StepError(step, self.error())
        # Never terminated: the display is shared by all of the process.
        if not self.eglInitialize(display, None, None):
            raise StepError("eglInitialize", self.error())
        what = {PLATFORM_DEVICE: f"EGL device {index}", PLATFORM_SURFACELESS: "EGL surfaceless"}
        return EglContext(self, what.get(platform or 0, "EGL default display"), display, versions)


class EglContext(Context):
    """A context on an EGL display, current once made."""

    def __init__(self, egl: Egl, what: str, display: int, versions: Sequence[Version]) -> None:
        self.what = what
        self._egl = egl
        self._display = display
        self._surface: int | None = None
        self._handle: int | None = None
        self._extensions = egl._extensions(display)
        failures = []
        for version in versions:
            try:
                self._create(version)
                break
            except StepError as failed:
                failures.append((version, failed))
        else:
            step, asked = failures[-1][1].step, ", ".join(str(v) for v, _ in failures)
            raise StepError(step, f"{failures[-1][1].error}, asked for {asked}")

    def _create(self, version: Version) -> None:
        egl, display = self._egl, self._display
        if not egl.eglBindAPI(API[version.api]):
            raise StepError("eglBindAPI", egl.error())
        surfaceless = "EGL_KHR_surfaceless_context" in self._extensions
        any_config = "EGL_KHR_no_config_context" in self._extensions
        config = None if surfaceless and any_config else self._config(version)
        attributes = [MAJOR_VERSION, version.major, MINOR_VERSION, version.minor]
        if version.api == "gl":
            attributes += [PROFILE_MASK, CORE_PROFILE]
        handle = None
        if "EGL_EXT_create_context_robustness" in self._extensions:  # then a reset can be asked for
            more = (RESET_STRATEGY, LOSE_CONTEXT_ON_RESET)
            handle = egl.eglCreateContext(display, config, None, _integers(*attributes, *more))
        handle = handle or egl.eglCreateContext(display, config, None, _integers(*attributes))
        if not handle:
            raise StepError("eglCreateContext", egl.error())
        self._api, self._handle = API[version.api], handle
        try:
            if not surfaceless:
                size = _integers(WIDTH, 1, HEIGHT, 1)
                self._surface = egl.eglCreatePbufferSurface(display, config, size)
                if not self._surface:
                    raise StepError("eglCreatePbufferSurface", egl.error())
            self.make_current()
        except StepError:
            self.release()
            raise

    def _config(self, version: Version) -> int:
        kind = ES3_BIT if version.api == "es" else GL_BIT
        wanted = _integers(SURFACE_TYPE, PBUFFER_BIT, RENDERABLE_TYPE, kind)
        config, count = c_void_p(), c_int()
        if not self._egl.eglChooseConfig(self._display, wanted, byref(config), 1, byref(count)):
            raise StepError("eglChooseConfig", self._egl.error())
        if not count.value:
            raise StepError("eglChooseConfig", f"no config for {version}")
        return config.value or 0

    def load_opengl_function(self, name: str) -> int:
        address = self._egl.eglGetProcAddress(name.encode())
        if not address and self._egl.gles is not None and hasattr(self._egl.gles, name):
            address = ctypes.cast(getattr(self._egl.gles, name), c_void_p).value
        return int(address or 0)

    def is_current(self) -> bool:
        return bool(self._handle and self._egl.eglGetCurrentContext() == self._handle)

    def make_current(self) -> None:
        _leave_window()
        self._egl.eglBindAPI(self._api)
        surface = self._surface
        if not self._egl.eglMakeCurrent(self._display, surface, surface, self._handle):
            raise StepError("eglMakeCurrent", self._egl.error())

    def leave(self) -> None:
        if self.is_current():
            self._egl.leave()

    def leave_thread(self) -> None:
        self._egl.eglReleaseThread()

    def remember(self) -> Callable[[], object] | None:
        return remember(self._egl)

    def release(self) -> None:
        # Current in another thread, it lives on until that thread lets go of it: EGL sees to it.
        handle, surface = self._handle, self._surface
        if handle:
            self.leave()
            self._handle = self._surface = None
            self._egl.eglDestroyContext(self._display, handle)
            if surface:
                self._egl.eglDestroySurface(self._display, surface)


def remember(egl: Egl | None) -> Callable[[], object] | None:
    """What makes this thread's context, a window's or EGL's, current again; None if it has none."""
    glfw = sys.modules.get("glfw")
    if glfw is not None:
        with warnings.catch_warnings(), suppress(glfw.GLFWError):
            warnings.simplefilter("ignore")  # GLFW that was never initialised says so
            if window := glfw.get_current_context():
                return partial(glfw.make_context_current, window)
    if egl is None or not (context := egl.eglGetCurrentContext()):
        return None
    surfaces = egl.eglGetCurrentSurface(DRAW), egl.eglGetCurrentSurface(READ)
    return partial(egl.eglMakeCurrent, egl.eglGetCurrentDisplay(), *surfaces, context)


def _leave_window() -> None:
    """Leave this thread without a GLFW window's context: GLX and EGL exclude each other."""
    glfw = sys.modules.get("glfw")
    if glfw is not None:
        with warnings.catch_warnings(), suppress(glfw.GLFWError):
            warnings.simplefilter("ignore")  # GLFW that was never initialised says so
            if glfw.get_current_context():
                glfw.make_context_current(None)


def _integers(*values: int) -> Any:
    return (c_int * (len(values) + 1))(*values, NONE)

"""GL contexts without a window system, by EGL through ctypes: libraries, displays, devices."""

from __future__ import annotations

import ctypes
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from glnn.core.cached_property import cached_property
from glnn.core.settings import Libraries
from glnn.errors import DeviceError, shown
from glnn.gl.context import Context, StepError, Version

DEBIAN_PACKAGES = "libegl1 libgles2 libgl1-mesa-dri"
EGL_NAMES = {
    "win32": ("libEGL.dll",),
    "darwin": ("libEGL.dylib",),
    # The last two are Android's, which Python takes for Linux before 3.13.
    "linux": ("libEGL.so.1", "libEGL.so", "/system/lib64/libEGL.so", "/system/lib/libEGL.so"),
}
GLES_NAMES = {
    "win32": ("libGLESv2.dll",),
    "darwin": ("libGLESv2.dylib",),
    "linux": (
        *("libGLESv2.so.2", "libGLESv2.so", "libGLESv3.so"),
        *("/system/lib64/libGLESv3.so", "/system/lib64/libGLESv2.so"),
        *("/system/lib/libGLESv3.so", "/system/lib/libGLESv2.so"),
    ),
}


def load_egl(path: str | None, functions: Iterable[str]) -> ctypes.CDLL:
    """The EGL library at `path`, or the first under its usual names, that has all `functions`.

    Raises StepError, which says all that was tried.
    """
    return _load_library("EGL", "GLNN_EGL", path, EGL_NAMES, tuple(functions))


def load_gles(path: str | None) -> ctypes.CDLL:
    """The GL ES library, likewise."""
    return _load_library("GL ES", "GLNN_GLES", path, GLES_NAMES, ("glGetString",))


def _load_library(
    what: str,
    variable: str,
    path: str | None,
    names: dict[str, tuple[str, ...]],
    functions: tuple[str, ...],
) -> ctypes.CDLL:
    tried: list[str] = []
    for name in (path,) if path else names.get(sys.platform, names["linux"]):
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            text = str(error)
            tried.append(text if text.startswith(name) else f"{name}: {text}")
            continue
        missing = [function for function in functions if not hasattr(library, function)]
        if not missing:
            return library
        tried.append(f"{name}: it has no {', '.join(missing)}")
    advice = (
        ""
        if path
        else f"; on Debian: apt install {DEBIAN_PACKAGES}; a driver's own library: {variable}=path"
    )
    raise StepError(f"load {variable if path else what}", "; ".join(tried) + advice)


RENDERABLE_TYPE, SURFACE_TYPE = 0x3040, 0x3033
MAJOR_VERSION, MINOR_VERSION, PROFILE_MASK, CORE_PROFILE = 0x3098, 0x30FB, 0x30FD, 0x1
BITS = {
    "EGL_PBUFFER_BIT": 0x0001,
    "EGL_OPENGL_ES2_BIT": 0x0004,
    "EGL_OPENGL_BIT": 0x0008,
    "EGL_OPENGL_ES3_BIT": 0x0040,
}


@dataclass(frozen=True)
class Display:
    """A display's `extensions` and the `text` that begins with its version of EGL."""

    text: str
    extensions: frozenset[str]

    @property
    def version(self) -> tuple[int, int]:
        match = re.match(r"(\d+)\.(\d+)", self.text)
        return (int(match[1]), int(match[2])) if match else (1, 4)

    @property
    def surfaceless(self) -> bool:
        """Return True where a context can be current without a surface."""
        return "EGL_KHR_surfaceless_context" in self.extensions

    @property
    def needs_config(self) -> bool:
        """Return True where a context, or the surface that it needs, needs a config."""
        return not (self.surfaceless and "EGL_KHR_no_config_context" in self.extensions)

    @property
    def _any_version(self) -> bool:
        """Return True where contexts can be opened with a given minor version."""
        return self.version >= (1, 5) or "EGL_KHR_create_context" in self.extensions

    def attributes(self, version: Version) -> tuple[int, ...]:
        """Return the attributes for eglCreateContext. Raises StepError where `version` cannot be
        requested.
        """
        if self._any_version:
            profile = (PROFILE_MASK, CORE_PROFILE) if version.api == "gl" else ()
            return (MAJOR_VERSION, version.major, MINOR_VERSION, version.minor, *profile)
        if version.api == "gl":
            old = "EGL {}.{}".format(*self.version)
            raise StepError("eglCreateContext", f"this {old} has no EGL_KHR_create_context")
        return (MAJOR_VERSION, version.major)  # any ES 3 then

    def config(self, version: Version) -> tuple[int, ...]:
        """Return the attributes for eglChooseConfig."""
        surface = 0 if self.surfaceless else BITS["EGL_PBUFFER_BIT"]
        return (SURFACE_TYPE, surface, RENDERABLE_TYPE, BITS[self._kind(version)])

    def no_config(self, version: Version) -> str:
        """Return the error message for a display without a matching config."""
        also = " and EGL_PBUFFER_BIT (there is no EGL_KHR_surfaceless_context)"
        return f"no config has {self._kind(version)}{'' if self.surfaceless else also}"

    def _kind(self, version: Version) -> str:
        if version.api == "gl":
            return "EGL_OPENGL_BIT"
        return "EGL_OPENGL_ES3_BIT" if self._any_version else "EGL_OPENGL_ES2_BIT"


DEVICE, SURFACELESS, DEFAULT = "device", "surfaceless", "default"

PLATFORM_DEVICE, PLATFORM_SURFACELESS = 0x313F, 0x31DD
VERSION, EXTENSIONS, NONE, WIDTH, HEIGHT = 0x3054, 0x3055, 0x3038, 0x3057, 0x3056
DRAW, READ = 0x3059, 0x305A
PRIORITY, PRIORITY_LOW = 0x3100, 0x3103
RESET_STRATEGY, LOSE_CONTEXT_ON_RESET = 0x3138, 0x31BF
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
NEEDED = ("glGetString", "glGetStringi", "glGetIntegerv", "glGetIntegeri_v", "glGetInteger64v")
EXTENSION_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "eglQueryDevicesEXT": (c_uint, (c_int, POINTER(c_void_p), POINTER(c_int))),
    "eglGetPlatformDisplayEXT": (c_void_p, (c_uint, c_void_p, c_void_p)),
    "eglQueryDeviceAttribEXT": (c_uint, (c_void_p, c_int, POINTER(c_void_p))),
    "eglQueryDeviceStringEXT": (c_char_p, (c_void_p, c_int)),
}


class ContextOpener(Protocol):
    """Opens a context of the first of `versions` that the display has. Raises StepError."""

    def __call__(self, versions: Sequence[Version]) -> EglContext: ...


class Egl:
    """The EGL library of this process. Raises StepError where there is none.

    low_priority: True where its contexts let others go first, if the driver can.
    """

    def __init__(self, low_priority: bool = False) -> None:
        self.low_priority = low_priority
        named = Libraries.from_environment()
        library = load_egl(named.egl, SIGNATURES)
        self._gles_named = named.gles
        if named.gles and isinstance(self.gles, StepError):
            raise self.gles
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        # Called in each run: with other threads, releasing Python's lock takes twice as long.
        address = ctypes.cast(library.eglGetCurrentContext, c_void_p).value
        self.eglGetCurrentContext: Any = ctypes.PYFUNCTYPE(c_void_p)(address or 0)
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
    def gles(self) -> ctypes.CDLL | StepError:
        """The GL ES library, or why there is none.

        Some drivers' eglGetProcAddress knows extensions only.
        """
        try:
            return load_gles(self._gles_named)
        except StepError as failed:
            return failed

    def address(self, name: str) -> int:
        """Return the address of GL's function `name`, 0 where there is none."""
        pointer = self.eglGetProcAddress(name.encode())
        if not pointer and hasattr(self.gles, name):
            pointer = ctypes.cast(getattr(self.gles, name), c_void_p).value
        return int(pointer or 0)

    def display(self, display: int) -> Display:
        """Return the capabilities of an initialised display."""
        text = (self.eglQueryString(display, VERSION) or b"").decode("utf-8", "replace")
        return Display(text, self._extensions(display))

    def needs(self, step: str, *extensions: str) -> None:
        """Raise StepError unless the library has each of these client extensions."""
        if missing := [name for name in extensions if name not in self.extensions]:
            raise StepError(step, f"this EGL has no {' and no '.join(missing)}")

    def leave(self) -> None:
        """Leave this thread without an EGL context."""
        if self.eglGetCurrentContext():
            self.eglMakeCurrent(self.eglGetCurrentDisplay(), None, None, None)

    def devices(self) -> list[int]:
        """The handles of EGL's devices. Raises StepError where EGL cannot list them."""
        if "EGL_EXT_device_base" not in self.extensions:  # which is the next two in one
            self.needs("eglQueryDevicesEXT", "EGL_EXT_device_enumeration")
        self.needs("eglGetPlatformDisplayEXT", "EGL_EXT_platform_device")
        if not self.eglQueryDevicesEXT:
            raise StepError("eglGetProcAddress", "this EGL has no eglQueryDevicesEXT")
        handles, count = (c_void_p * 64)(), c_int()
        if not self.eglQueryDevicesEXT(64, handles, byref(count)):
            raise StepError("eglQueryDevicesEXT", self.error())
        return [handle or 0 for handle in handles[: count.value]]

    def candidates(self, platform: str) -> Iterator[tuple[str, ContextOpener]]:
        """Yield the name and the opener of each candidate on `platform`. Raises StepError."""
        if platform == DEVICE:
            for index, handle in enumerate(self.devices()):
                yield f"EGL device {index}", partial(self._open, index, PLATFORM_DEVICE, handle)
        elif platform == SURFACELESS:
            self.needs("eglGetPlatformDisplayEXT", "EGL_MESA_platform_surfaceless")
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
        elif not self.eglGetPlatformDisplayEXT:
            raise StepError("eglGetProcAddress", "this EGL has no eglGetPlatformDisplayEXT")
        else:
            step = "eglGetPlatformDisplayEXT"
            display = self.eglGetPlatformDisplayEXT(platform, native, None)
        if not display:
            raise StepError(step, f"no display: {self.error()}")
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
        self._offers = egl.display(display)
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
        self._check_functions()

    def _create(self, version: Version) -> None:
        egl, display = self._egl, self._display
        if not egl.eglBindAPI(API[version.api]):
            api = "OpenGL ES" if version.api == "es" else "OpenGL"
            raise StepError("eglBindAPI", f"this EGL knows no {api}: {egl.error()}")
        config = self._config(version) if self._offers.needs_config else None
        attributes = self._offers.attributes(version)
        if egl.low_priority and "EGL_IMG_context_priority" in self._offers.extensions:
            attributes = (*attributes, PRIORITY, PRIORITY_LOW)
        handle = None
        if "EGL_EXT_create_context_robustness" in self._offers.extensions:
            more = (RESET_STRATEGY, LOSE_CONTEXT_ON_RESET)  # then a reset can be asked for
            handle = egl.eglCreateContext(display, config, None, _integers(*attributes, *more))
        handle = handle or egl.eglCreateContext(display, config, None, _integers(*attributes))
        if not handle:
            raise StepError("eglCreateContext", egl.error())
        self._api, self._handle = API[version.api], handle
        try:
            if not self._offers.surfaceless:
                size = _integers(WIDTH, 1, HEIGHT, 1)
                self._surface = egl.eglCreatePbufferSurface(display, config, size)
                if not self._surface:
                    raise StepError("eglCreatePbufferSurface", egl.error())
            self.make_current()
        except StepError:
            self.release()
            raise

    def _config(self, version: Version) -> int:
        wanted = _integers(*self._offers.config(version))
        config, count = c_void_p(), c_int()
        if not self._egl.eglChooseConfig(self._display, wanted, byref(config), 1, byref(count)):
            raise StepError("eglChooseConfig", self._egl.error())
        if not count.value:
            raise StepError("eglChooseConfig", self._offers.no_config(version))
        return config.value or 0

    def _check_functions(self) -> None:
        """Raise StepError unless GL can be asked what it is: an address of 0 would be called."""
        missing = next((name for name in NEEDED if not self.load_opengl_function(name)), None)
        if missing is None:
            return
        self.release()
        gles = self._egl.gles
        why = f"no GL ES library: {gles.error}" if isinstance(gles, StepError) else "none in GL ES"
        raise StepError("eglGetProcAddress", f"no {missing}, and {why}")

    def load_opengl_function(self, name: str) -> int:
        return self._egl.address(name)

    def is_current(self) -> bool:
        handle = self._handle
        return handle is not None and bool(self._egl.eglGetCurrentContext() == handle)

    def make_current(self) -> None:
        _leave_window()
        self._egl.eglBindAPI(self._api)
        surface = self._surface
        if not self._egl.eglMakeCurrent(self._display, surface, surface, self._handle):
            raise StepError("eglMakeCurrent", self._egl.error())

    def leave(self) -> None:
        if self.is_current():
            self._egl.eglMakeCurrent(self._display, None, None, None)

    @property
    def may_stay(self) -> bool:
        return "glfw" not in sys.modules  # X ends processes that open a window with it current

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
    """Return a callable that restores the thread's context, of GLFW or EGL; None if it has none."""
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


CUDA_DEVICE = 0x323A
CUDA_PREFIX = "cuda:"


def parse_cuda_number(gpu: object) -> int | None:
    """CUDA's number in `gpu`, as in `cuda:1`; None where it asks for something else.

    Raises DeviceError where there is no number behind `cuda:`.
    """
    if not isinstance(gpu, str) or not gpu.lower().startswith(CUDA_PREFIX):
        return None
    match = re.fullmatch(r"cuda:([0-9]{1,6})", gpu, re.ASCII | re.IGNORECASE)
    if match is None:
        raise DeviceError(f"gpu: expected cuda: and a number, as in cuda:0, got {shown(gpu)}")
    return int(match[1])


def cuda_numbers(egl: Egl) -> list[int | None]:
    """CUDA's number of each EGL device, None for those that have none.

    Raises StepError where EGL cannot list its devices.
    """
    return [_cuda_number(egl, handle) for handle in egl.devices()]


def _cuda_number(egl: Egl, handle: int) -> int | None:
    if not (egl.eglQueryDeviceStringEXT and egl.eglQueryDeviceAttribEXT):
        return None
    text = egl.eglQueryDeviceStringEXT(handle, EXTENSIONS)
    if text is None:
        egl.eglGetError()  # forget it
    value = c_void_p()
    if b"EGL_NV_device_cuda" not in (text or b"").split():
        return None
    if not egl.eglQueryDeviceAttribEXT(handle, CUDA_DEVICE, byref(value)):
        egl.eglGetError()
        return None
    return value.value or 0


def cuda_device_index(egl: Egl, number: int) -> int:
    """The index of the EGL device that CUDA calls `number`. Raises StepError: there are these."""
    known = cuda_numbers(egl)
    if number in known:
        return known.index(number)
    have = [f"cuda:{n} (EGL device {i})" for i, n in enumerate(known) if n is not None]
    why = f"there are {', '.join(have)}" if have else f"of {len(known)} EGL devices none has any"
    raise StepError("EGL_CUDA_DEVICE_NV", f"no device has CUDA's number {number}: {why}")

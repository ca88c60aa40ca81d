"""A GL context opened for computing."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glnn.device.capabilities import Capabilities
from glnn.device.context import (
    ES_VERSIONS,
    WINDOW_VERSIONS,
    Attempt,
    Context,
    NoDeviceError,
    StepError,
    Version,
)
from glnn.device.egl import DEFAULT, DEVICE, SURFACELESS, Egl
from glnn.device.window import WindowContext
from glnn.errors import DeviceError, shown
from glnn.settings import Settings

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self

    from glnn.device.program import Program

WINDOW = "window"
PLATFORMS = (DEVICE, SURFACELESS, DEFAULT, WINDOW)
MINIMUM_LIMITS = "es31-minimum"
GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX = 0x9049  # in KiB
BARRIERS = 0xFFFFFFFF  # all: naming those that are needed saved no time on an H200

Way = tuple[str, Callable[[Sequence[Version]], Context]]


class Device:
    """A GL context of this thread, with its capabilities.

    gpu: an EGL device's index, or a part of the renderer's or vendor's name; None takes the first
        that opens. limits: "es31-minimum" lowers every limit to what OpenGL ES 3.1 guarantees.
    version: the only GL version to ask for; (3, 3) and (4, 3) are desktop GL. platform: the only
        way to try, "device", "surfaceless", "default" (all EGL) or "window" (GLFW).
    settings: stands in for the environment's; `gpu` and `limits` fall back to it.

    Raises NoDeviceError, a DeviceError, where no context opens. `attempts` holds the ways that
    failed before one led to this device.
    """

    def __init__(
        self,
        gpu: int | str | None = None,
        limits: str | None = None,
        *,
        version: tuple[int, int] | None = None,
        platform: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = Settings.from_environment() if settings is None else settings
        gpu = settings.gpu if gpu is None else gpu
        limits = settings.limits if limits is None else limits
        self.debug = settings.debug
        self.closed = True
        self.programs: dict[str, Program] = {}  # by their source: compiled once
        self._dropped: list[Callable[[], object]] = []
        check_gpu(gpu)
        _check_arguments(limits, version, platform)
        self._thread = threading.get_ident()
        self._gl, asked, self.attempts = _open(_gpu(gpu), version, platform)
        self.capabilities = asked.with_minimum() if limits == MINIMUM_LIMITS else asked
        # Not at exit: the process ends anyway, and drivers may have torn themselves down already.
        self._finalizer = weakref.finalize(self, self._gl.release)
        self._finalizer.atexit = False
        try:
            self._context = self._adopt()
            self._flush = self.load("glFlush", None)
        except Exception as error:
            self._finalizer()
            raise DeviceError(f"{self._gl.what}: moderngl: {error}") from error
        self.closed = False

    def _adopt(self) -> moderngl.Context:
        import moderngl

        code = 300 if self.capabilities.api == "es" else 330
        gl: Any = self._gl  # the stubs know dictionaries only
        context = moderngl.create_context(require=code, context=gl)
        context.gc_mode = "context_gc"  # __del__ may run in any thread: activate() frees
        # Without a framebuffer, transform feedback captures zeros and says nothing.
        self._target = context.framebuffer([context.renderbuffer((1, 1))])
        self._target.use()
        _drain(context)  # moderngl leaves GL_INVALID_ENUM behind
        return context

    @property
    def context(self) -> moderngl.Context:
        """moderngl's context, for glnn's device and backends only."""
        if self.closed:
            raise DeviceError("the device is closed")
        return self._context

    @cached_property
    def timer_query(self) -> moderngl.Query:
        """The device's only timer query: moderngl never frees one."""
        return self.context.query(time=True)

    def activate(self) -> None:
        """Make the context current and free what was dropped; to be called before using GL.

        Raises DeviceError where the device is closed or belongs to another thread.
        """
        if self.closed:
            raise DeviceError("the device is closed")
        if threading.get_ident() != self._thread:
            raise DeviceError(
                "the device belongs to the thread that opened it: open another in this thread"
            )
        if not self._gl.is_current():
            try:
                self._gl.make_current()
            except StepError as failed:
                raise DeviceError(f"{self._gl.what}: {failed}") from None
        self._context.gc()
        while self._dropped:
            self._dropped.pop()()

    def drop(self, delete: Callable[[], object]) -> None:
        """Let the next `activate` call `delete`: what a finalizer frees, in whatever thread."""
        self._dropped.append(delete)

    def load(self, name: str, result: Any, *arguments: Any) -> Any:
        """GL's function `name`, which moderngl does not offer, of these ctypes types."""
        return ctypes.CFUNCTYPE(result, *arguments)(self._gl.load_opengl_function(name))

    def barrier(self) -> None:
        """Let every later command see what compute shaders have written so far."""
        if self.capabilities.compute:
            self._context.memory_barrier(BARRIERS)

    def check(self, step: str) -> None:
        """In debug mode, raise DeviceError if GL met an error in `step` or before."""
        if self.debug:
            self.check_always(step)

    def check_always(self, step: str) -> None:
        """Raise DeviceError if GL met an error in `step` or before."""
        if errors := _drain(self.context):
            raise DeviceError(f"{step}: {', '.join(errors)} on {self.capabilities.renderer}")

    def flush(self) -> None:
        """Let the GPU begin with what it was told, without waiting."""
        self._flush()

    def memory_available(self) -> int | None:
        """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown."""
        if "GL_NVX_gpu_memory_info" in self.context.extensions:
            found = ctypes.c_int(0)
            get = self.load("glGetIntegerv", None, ctypes.c_uint, ctypes.POINTER(ctypes.c_int))
            get(GPU_MEMORY_INFO_CURRENT_AVAILABLE_VIDMEM_NVX, ctypes.byref(found))
            if _drain(self.context) == [] and found.value > 0:
                return 1024 * found.value
        try:  # such GPUs share the machine's memory
            lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        except OSError:
            return None
        kib = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
        return 1024 * int(kib["MemAvailable"]) if "MemAvailable" in kib else None

    def finish(self) -> None:
        """Wait until the GPU has done all it was told to."""
        self.context.finish()

    def close(self) -> None:
        """Destroy the context and all that lives in it. Harmless when repeated."""
        if self.closed:
            return
        self.closed = True
        if threading.get_ident() == self._thread:
            self._context.release()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Device {self.capabilities.renderer}, {self.capabilities.platform}{state}>"


@dataclass(frozen=True)
class Gpu:
    """A GPU that EGL offers: its index, its names, and why it does not open (None: it does)."""

    index: int
    renderer: str = ""
    vendor: str = ""
    error: str | None = None


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that EGL offers, by index; none where EGL cannot list them.

    Leaves this thread without a current context: devices make theirs current when used.
    """
    found: list[Gpu] = []
    try:
        for index, (_, way) in enumerate(Egl().ways(DEVICE)):
            try:
                context = way(ES_VERSIONS)
            except StepError as failed:
                found.append(Gpu(index, error=str(failed)))
                continue
            asked = Capabilities.ask(context)
            context.release()
            found.append(Gpu(index, asked.renderer, asked.vendor))
    except StepError:
        pass
    return tuple(found)


def check_limits(limits: str | None) -> None:
    """Raise DeviceError unless `limits` is one that a device can be given."""
    if limits is not None and not (isinstance(limits, str) and limits == MINIMUM_LIMITS):
        raise DeviceError(f"limits must be {MINIMUM_LIMITS!r} or None, got {shown(limits)}")


def check_gpu(gpu: object) -> None:
    """Raise DeviceError unless `gpu` is an index, a text or None."""
    if isinstance(gpu, bool) or not isinstance(gpu, (int, str, type(None))):
        raise DeviceError(f"gpu must be an index or a part of a name, got {shown(gpu)}")


def _check_arguments(
    limits: str | None, version: tuple[int, int] | None, platform: str | None
) -> None:
    check_limits(limits)
    if platform not in (None, *PLATFORMS):
        raise DeviceError(f"platform must be one of {PLATFORMS} or None, got {platform!r}")
    known = [(v.major, v.minor) for v in WINDOW_VERSIONS]
    if version not in (None, *known):
        raise DeviceError(f"version must be one of {sorted(known)} or None, got {version!r}")


def _gpu(gpu: int | str | None) -> int | str | None:
    """`gpu` with numbers in text, as from the environment, made indices."""
    return int(gpu) if isinstance(gpu, str) and gpu.isdecimal() else gpu


def _open(
    gpu: int | str | None, version: tuple[int, int] | None, platform: str | None
) -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
    """The first context that fits, its capabilities, and the attempts that failed before it."""
    attempts: list[Attempt] = []
    for what, way in _ways(gpu, platform, attempts):
        default = WINDOW_VERSIONS if way is WindowContext else ES_VERSIONS
        versions = [v for v in WINDOW_VERSIONS if (v.major, v.minor) == version] or default
        try:
            context = way(versions)
        except StepError as failed:
            attempts.append(Attempt(what, failed.step, failed.error))
            continue
        asked = Capabilities.ask(context)
        if isinstance(gpu, str) and gpu.lower() not in f"{asked.renderer}\n{asked.vendor}".lower():
            attempts.append(Attempt(what, "its name", f"{asked.renderer} by {asked.vendor}"))
            context.release()
            continue
        return context, asked, tuple(attempts)
    message = "no usable OpenGL ES context" if gpu is None else f"no usable GPU {gpu!r}"
    raise NoDeviceError(message, tuple(attempts))


def _ways(gpu: int | str | None, platform: str | None, attempts: list[Attempt]) -> Iterator[Way]:
    """The ways to a context in the order to try them; those that cannot begin go to `attempts`."""
    platforms = PLATFORMS if platform is None else (platform,)
    if isinstance(gpu, int):
        platforms = (DEVICE,)
    try:
        egl = Egl() if set(platforms) - {WINDOW} else None
    except StepError as failed:
        attempts.append(Attempt("EGL", failed.step, failed.error))
        egl = None
    for name in platforms:
        if name == WINDOW:
            yield WindowContext.what, WindowContext
        elif egl is not None:
            try:
                ways = list(egl.ways(name))
            except StepError as failed:
                attempts.append(Attempt(f"EGL {name}", failed.step, failed.error))
                continue
            if isinstance(gpu, int):
                offered = f"the indices are 0 to {len(ways) - 1}" if ways else "there are none"
                if not 0 <= gpu < len(ways):
                    attempts.append(Attempt(f"EGL device {gpu}", "eglQueryDevicesEXT", offered))
                ways = ways[gpu : gpu + 1] if gpu >= 0 else []
            elif not ways:
                attempts.append(Attempt(f"EGL {name}", "eglQueryDevicesEXT", "there are none"))
            yield from ways


def _drain(context: moderngl.Context) -> list[str]:
    """The pending GL errors, which are then forgotten."""
    errors: list[str] = []
    while (error := context.error) != "GL_NO_ERROR" and len(errors) < 8:  # a lost context repeats
        errors.append(error)
    return errors

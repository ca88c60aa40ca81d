"""A GL context opened for computing."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from glnn.device.adopting import Adopting
from glnn.device.available import memory_available
from glnn.device.binaries import Binaries
from glnn.device.context import Context, StepError
from glnn.device.functions import Functions
from glnn.device.opening import (
    MINIMUM_LIMITS,
    check_arguments,
    check_gpu,
    elsewhere,
    gpu_asked,
    open_context,
)
from glnn.device.sharing import Sharing
from glnn.device.timeline import Fence, Timeline
from glnn.device.worker import StoppedError, Worker
from glnn.disk import Disk
from glnn.errors import DeviceError
from glnn.process import GL_PROCESS, ProcessLock
from glnn.settings import Settings
from glnn.span import Spans

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self

T = TypeVar("T")
CLOSED = "the device is closed"
BARRIERS = 0xFFFFFFFF  # all: naming those that are needed saved no time on an H200
RESETS = {0x8253: "guilty", 0x8254: "innocent", 0x8255: "unknown"}


class Device:
    """A GL context with its capabilities. Any thread may use it, by `perform`.

    gpu: an EGL device's index, or a part of the renderer's or vendor's name; None takes the first
        that opens. limits: "es31-minimum" lowers every limit to what OpenGL ES 3.1 guarantees.
    version: the only GL version to ask for; (3, 3) and (4, 3) are desktop GL. platform: the only
        way to try, "device", "surfaceless", "default" (all EGL) or "window" (GLFW).
    settings: stands in for the environment's; `gpu` and `limits` fall back to it.

    Raises NoDeviceError, a DeviceError, where no context opens, DeviceError in a fork of a process
    that used GL. `attempts` holds the ways that failed before one led to this device. `lost` says
    how the driver reset the context, None unless it did: then the device is closed.
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
        self.lost: str | None = None
        self.programs: dict[tuple[object, ...], Any] = {}  # by their source: compiled once
        self.compiled, self.restored = Spans(), Spans()  # when; restored: from a binary
        self.faults: dict[str, bool] = {}  # of the driver, as probes found them
        self.staging: Any = None  # by which large content comes (staging.py), once there was some
        self._dropped: list[Callable[[], object]] = []
        self.timeline = Timeline()
        check_gpu(gpu)
        check_arguments(limits, version, platform)
        self._again = partial(
            Device, gpu, limits, version=version, platform=platform, settings=settings
        )
        self._renewing = ProcessLock()
        self._renewed: Device | None = None
        with elsewhere():
            self._gl, asked, self.attempts = open_context(gpu_asked(gpu), version, platform)
            self.capabilities = asked.with_minimum() if limits == MINIMUM_LIMITS else asked
            # Not at exit: the process ends anyway, and drivers may have torn themselves down.
            worker = Worker("glnn device")
            self._finalizer = weakref.finalize(self, _destroy, self._gl, worker)
            self._finalizer.atexit = False
            try:
                self.adopting = Adopting(self._gl)
                self._context = self._adopt()
                self.functions = Functions(self._gl, asked.renderer)
                self.binaries = Binaries(self.functions, asked, Disk.of(settings))
                self._flush, self._finish = self.load("glFlush", None), self.load("glFinish", None)
                self._reset_status = self._reset_asker()
                self._sharing = Sharing(self._gl, worker)
            except Exception as error:
                self._finalizer()
                raise DeviceError(f"{self._gl.what}: moderngl: {error}") from error
            self._gl.leave()
        self.closed = False

    def _adopt(self) -> moderngl.Context:
        import moderngl

        code = 300 if self.capabilities.api == "es" else 330
        gl: Any = self.adopting  # the stubs know dictionaries only
        context = moderngl.create_context(require=code, context=gl)
        context.gc_mode = "context_gc"  # __del__ may run in any thread: who uses GL frees
        # Without a framebuffer, transform feedback captures zeros and says nothing.
        self._target = context.framebuffer([context.renderbuffer((1, 1))])
        self._target.use()
        _drain(context)  # moderngl leaves GL_INVALID_ENUM behind
        return context

    @property
    def context(self) -> moderngl.Context:
        """moderngl's context, for glnn's device and backends only."""
        if self.closed:
            raise DeviceError(self.lost or CLOSED)
        return self._context

    @cached_property
    def timer_query(self) -> moderngl.Query:
        """The device's only timer query: moderngl never frees one."""
        return self.context.query(time=True)

    def _reset_asker(self) -> Callable[[], int]:
        """GL's function that says whether the context was reset; one that says no if it has none.

        Which a driver does that was not asked to tell, too.
        """
        offers, found = self.capabilities, self._context.extensions
        core = offers.version >= ((3, 2) if offers.api == "es" else (4, 5))
        named = {"": core, "KHR": "GL_KHR_robustness" in found, "EXT": "GL_EXT_robustness" in found}
        for suffix, there in named.items():
            name = f"glGetGraphicsResetStatus{suffix}"
            if there and self._gl.load_opengl_function(name):
                ask: Callable[[], int] = self.load(name, ctypes.c_uint)
                return ask
        return lambda: 0

    def perform(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, called where GL may be used. From any thread.

        That is this thread while only the one that opened the device asks; from the first request
        of another on it is a thread of the device's own, for all. Such calls nest. Raises
        DeviceError where the device is closed or, outside this, held by `activate` elsewhere, or
        where this process is a fork of the one that used GL.
        """
        self._check_usable()
        try:
            return self._sharing.perform(work, self._ready)
        except StepError as failed:
            raise self._refused(failed) from None
        except StoppedError:
            raise DeviceError(self.lost or CLOSED) from None

    def activate(self) -> None:
        """Make the context current and free what was dropped; to be called before using GL.

        Only inside `perform`, or in the thread that opened the device. That thread holds the
        context from then on until `release`. Raises what `perform` raises.
        """
        if self._sharing.current:
            return
        self._check_usable()
        try:
            self._sharing.hold(self._ready)
        except StepError as failed:
            raise self._refused(failed) from None

    def release(self) -> None:
        """Leave the context: after `activate`, so that other threads can use the device again.

        Also where a run left it current, for threads and contexts that other libraries make.
        Harmless when repeated.
        """
        if not GL_PROCESS.forked:
            self._sharing.release()

    def _refused(self, failed: StepError) -> DeviceError:
        if "CONTEXT_LOST" in failed.error:
            return self._lose(failed.step, "unknown")
        return DeviceError(f"{self._gl.what}: {failed}")

    def _check_usable(self) -> None:
        GL_PROCESS.check()  # before any lock: a fork finds them as they were
        if self.closed:
            raise DeviceError(self.lost or CLOSED)

    def _ready(self) -> None:
        """With the context, before work: free what was dropped in whatever thread."""
        self._check_usable()  # a thread that was waited for may have closed it
        self._context.gc()
        while self._dropped:
            self._dropped.pop()()

    def check_reset(self, step: str) -> None:
        """Raise DeviceError if the driver has reset the context: `step` may have no result."""
        if status := self._reset_status():
            raise self._lose(step, RESETS.get(status, f"0x{status:04x}"))

    def _lose(self, step: str, guilt: str) -> DeviceError:
        """Close the device as lost."""
        self.lost = (
            f"{step}: the context on {self.capabilities.renderer} was reset by its driver "
            f"({guilt}): what it held is lost; a session runs again, on a new device"
        )
        self.close()
        return DeviceError(self.lost)

    def renewed(self) -> Device:
        """A device opened as this lost one was, the same one for whoever asks.

        Raises DeviceError where none opens.
        """
        with self._renewing:
            if self._renewed is None or (self._renewed.closed and self._renewed.lost is None):
                self._renewed = self._again()
            found = self._renewed
        return found if found.lost is None else found.renewed()

    def drop(self, delete: Callable[[], object]) -> None:
        """Let the next use of GL call `delete`: what a finalizer frees, in whatever thread."""
        self._dropped.append(delete)

    def load(self, name: str, result: Any, *arguments: Any) -> Any:
        """GL's function `name`, which moderngl does not offer, of these ctypes types.

        Raises DeviceError where the driver has none: calling address 0 would end the process.
        """
        return self.functions.slow(name, result, *arguments)

    def barrier(self) -> None:
        """Let every later command see what compute shaders have written so far."""
        if self.capabilities.compute:
            context: Any = self._context  # the stubs of moderngl 5.8 leave it out
            context.memory_barrier(BARRIERS)

    def check(self, step: str) -> None:
        """In debug mode, raise DeviceError if GL met an error in `step` or before."""
        if self.debug:
            self.check_always(step)

    def check_always(self, step: str) -> None:
        """Raise DeviceError if GL met an error in `step` or before."""
        if errors := _drain(self.context):
            self.check_reset(step)
            raise DeviceError(f"{step}: {', '.join(errors)} on {self.capabilities.renderer}")

    def flush(self) -> None:
        """Let the GPU begin with what it was told, without waiting."""
        self._flush()

    def memory_available(self) -> int | None:
        """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown."""
        return self.perform(lambda: memory_available(self.context, self.load))

    def finish(self) -> None:
        """Wait until the GPU has done all it was told to, from any thread.

        Raises DeviceError after a reset.
        """
        self.perform(self.wait)  # without the context glFinish does nothing, and says nothing

    def wait(self) -> None:
        """The same as `finish`, for callers that are inside `perform`."""
        if self.closed:  # in the middle of the work
            raise DeviceError(self.lost or CLOSED)
        self._finish()  # moderngl's would hold Python's other threads up
        self.timeline.end(over=True)
        self.check_reset("finish")

    def fence(self) -> Fence:
        """A fence behind all that the GPU was told to do. Only inside `perform`."""
        return self.timeline.fence(self.load, self.check_reset)

    def close(self) -> None:
        """Destroy the context and all that lives in it. Harmless when repeated."""
        if not self.closed and not GL_PROCESS.forked:
            self._sharing.end(self._end)
        self.closed = True

    def _end(self) -> None:
        if not self.closed:
            self.closed = True
            self._context.release()
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<Device {self.capabilities.renderer}, {self.capabilities.platform}{state}>"


def _destroy(gl: Context, worker: Worker) -> None:
    if not GL_PROCESS.forked:
        worker.stop(gl.leave_thread)
        gl.release()


def _drain(context: moderngl.Context) -> list[str]:
    """The pending GL errors, which are then forgotten."""
    errors: list[str] = []
    while (error := context.error) != "GL_NO_ERROR" and len(errors) < 8:  # a lost context repeats
        errors.append(error)
    return errors

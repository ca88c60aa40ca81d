"""A GL context opened for computing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from glnn.disk import Disk
from glnn.errors import DeviceError, NoRoomError
from glnn.gl.adopting import Adopting
from glnn.gl.available import memory_available
from glnn.gl.believed import BrokenLimits
from glnn.gl.binaries import Binaries
from glnn.gl.context import Context, StepError
from glnn.gl.faults import RESETS, drain, reset_asker
from glnn.gl.functions import Functions
from glnn.gl.opening import MINIMUM_LIMITS, elsewhere
from glnn.gl.sharing import Sharing
from glnn.gl.timeline import Fence, Timeline
from glnn.gl.wanted import Wanted
from glnn.gl.worker import Begun, StoppedError, Worker
from glnn.process import GL_PROCESS, give_way, process_lock, step_back
from glnn.settings import Settings
from glnn.span import Spans

if TYPE_CHECKING:
    import moderngl
    from typing_extensions import Self

T = TypeVar("T")
B = TypeVar("B", bound=Begun)
CLOSED = "the device is closed"
BARRIERS = 0xFFFFFFFF  # all: naming those that are needed saved no time on an H200


class Device:
    """A GL context with its capabilities. Any thread may use it, by `perform`.

    gpu: an EGL device's index, or a part of the renderer's or vendor's name; None takes the first
        that opens. limits: "es31-minimum" lowers every limit to what OpenGL ES 3.1 guarantees.
    version: the only GL version to ask for; (3, 3) and (4, 3) are desktop GL. platform: the only
        way to try, "device", "surfaceless", "default" (all EGL) or "window" (GLFW).
    priority: "low" lets other programs go first, "normal" does not. wait: how the host waits for
        it: "block" as its driver does, "spin" or "sleep" by asking again at once or after pauses.
    settings: stands in for the environment's; what is None falls back to it.

    Raises NoDeviceError, a DeviceError, where no context opens, DeviceError in a fork of a process
    that used GL. `attempts` holds the ways that failed before one led to this device. `lost` says
    how the driver reset the context, None unless it did: then the device is closed. `stated` has
    the limits as the driver states them, `capabilities` those that are known to hold.
    """

    def __init__(
        self,
        gpu: int | str | None = None,
        limits: str | None = None,
        *,
        version: tuple[int, int] | None = None,
        platform: str | None = None,
        priority: str | None = None,
        wait: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = Settings.from_environment() if settings is None else settings
        wanted = Wanted.of(settings, gpu, limits, version, platform, priority, wait)
        self._again = partial(Device, **vars(wanted), settings=settings)
        self.low = wanted.low
        self.debug = settings.debug
        self.closed = True
        self.lost: str | None = None
        self.programs: dict[tuple[object, ...], Any] = {}  # by their source: compiled once
        self.compiled, self.restored = Spans(), Spans()  # when; restored: from a binary
        self.faults: dict[str, bool] = {}  # of the driver, as probes found them
        self.staging: Any = None  # by which large content comes (staging.py), once there was some
        self._dropped: list[Callable[[], object]] = []
        self.timeline = Timeline(wanted.wait)
        self._renewing = process_lock()
        self._renewed: Device | None = None
        with elsewhere():
            self._gl, asked, self.attempts = wanted.open()
            self.stated = asked.with_minimum() if wanted.limits == MINIMUM_LIMITS else asked
            self.capabilities = BrokenLimits.load(settings.cache, asked).lowered(self.stated)
            # Not at exit: the process ends anyway, and drivers may have torn themselves down.
            worker = Worker("glnn device", step_back if self.low else None)
            self._finalizer = weakref.finalize(self, _destroy, self._gl, worker)
            self._finalizer.atexit = False
            try:
                self.adopting = Adopting(self._gl)
                self._context = self._adopt()
                self.functions = Functions(self._gl, asked.renderer)
                self.binaries = Binaries(self.functions, asked, Disk.of(settings))
                self._flush, self._finish = self.load("glFlush", None), self.load("glFinish", None)
                extensions = self._context.extensions
                known = self.capabilities, extensions, self.load
                self._reset_status = reset_asker(self._gl, *known)
                self._sharing = Sharing(self._gl, worker)
            except Exception as error:
                self._finalizer()
                raise DeviceError(f"{self._gl.what}: moderngl: {error}") from error
            self._gl.leave()
        if self.low:
            worker.start()  # no other thread works for it
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
        drain(context)  # moderngl leaves GL_INVALID_ENUM behind
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

    def perform(self, work: Callable[[], T]) -> T:
        """Call `work` on the thread where GL may be used and return its result. From any thread.

        That is this thread while only the one that opened the device asks; from the first request
        of another on it is a thread of the device's own, for all. Such calls nest. Raises
        DeviceError where the device is closed or, outside this, held by `activate` elsewhere, or
        where this process is a fork of the one that used GL.
        """
        return self._asked(lambda: self._sharing.perform(work, self._ready))

    @property
    def contended(self) -> bool:
        """Return True where other threads wait for the device, so that `overlap` may pay."""
        return self._sharing.contended

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` and return its result; both are called as by
        `perform`.

        Where several threads ask, what others ask for may be begun with in between. Raises what
        `perform` raises.
        """
        return self._asked(lambda: self._sharing.overlap(begin, end, self._ready))

    def _asked(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, with the context's errors turned into those of `perform`."""
        self._check_usable()
        try:
            return work()
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
        self.collect()

    def collect(self) -> None:
        """Free what was dropped in whatever thread. Only inside `perform`."""
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
        """Raise DeviceError if GL met an error in `step` or before, NoRoomError if of memory."""
        if errors := drain(self.context):
            self.check_reset(step)
            kind = NoRoomError if "GL_OUT_OF_MEMORY" in errors else DeviceError
            raise kind(f"{step}: {', '.join(errors)} on {self.capabilities.renderer}")

    def flush(self) -> None:
        """Let the GPU begin with what it was told, without waiting."""
        self._flush()
        if self.low:
            give_way()

    def memory_available(self) -> int | None:
        """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown."""
        own = self.capabilities.own_memory

        def available() -> int | None:
            self.collect()
            return memory_available(self.context, self.load, own)

        return self.perform(available)

    def finish(self) -> None:
        """Wait until the GPU has done all it was told to, from any thread.

        Raises DeviceError after a reset.
        """
        self.perform(self.wait)  # without the context there is nothing to wait for

    def wait(self) -> None:
        """The same as `finish`, for callers that are inside `perform`."""
        if self.closed:  # in the middle of the work
            raise DeviceError(self.lost or CLOSED)
        # Not by glFinish: with it NVIDIA's driver (580) stops for 0.4 ms every 250 dispatches.
        fence = self.fence()
        fence.wait(checked=False)
        if not fence.over:  # of a driver that made none, or cannot wait for it
            self._finish()
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

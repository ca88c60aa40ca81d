"""A GL context opened for computing, its fences, and the devices that callers share."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, MutableMapping
from ctypes import c_uint, c_uint64, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from glnn.core.cached_property import cached_property
from glnn.core.disk_cache import DiskCache
from glnn.core.process import GL_PROCESS, give_way, process_lock, step_back
from glnn.core.settings import Settings
from glnn.core.trace_spans import Spans
from glnn.errors import DeviceError, GlnnError, NoRoomError
from glnn.gl.context import Context, GlFunctions, ModernglLoader, NoDeviceError, StepError
from glnn.gl.context_thread import PendingWork, SharedContext, StoppedError, Worker
from glnn.gl.device_info import Capabilities, memory_available
from glnn.gl.device_selection import (
    MINIMUM_LIMITS,
    DeviceOptions,
    check_gpu,
    check_limits,
    preserve_current_context,
)
from glnn.gl.limit_overrides import LimitOverrides
from glnn.gl.program_binaries import ProgramBinaries

if TYPE_CHECKING:
    import moderngl
    from numpy.typing import NDArray
    from typing_extensions import Self


BLOCK, SPIN, SLEEP = "block", "spin", "sleep"
MIN_SLEEP, MAX_SLEEP = 5e-5, 1e-3  # seconds of one sleep
SLEEP_SHARE = 0.25  # of the time waited so far, which the answer is late by at the most


def poll(over: Callable[[], bool], how: str, seconds: float) -> bool:
    """Ask `over` until it says so, or `seconds` have passed; whether it does.

    how: `spin` asks again at once, `sleep` after a pause of 50 us to 1 ms that grows with the wait.
    """
    start = time.perf_counter()
    while not over():
        waited = time.perf_counter() - start
        if waited >= seconds:
            return False
        if how == SLEEP:
            time.sleep(min(max(SLEEP_SHARE * waited, MIN_SLEEP), MAX_SLEEP, seconds - waited))
    return True


SYNC_GPU_COMMANDS_COMPLETE, SYNC_FLUSH_COMMANDS = 0x9117, 1
TIMEOUT_EXPIRED, WAIT_FAILED = 0x911B, 0x911D
MAX_WAIT = 1.0  # seconds of one wait, so that Ctrl-C is seen


class Timeline:
    """The commands of a context, in segments: fences end them, and waits for all.

    wait_mode: one of WAITS, in which fences are waited for.
    """

    def __init__(self, wait_mode: str = BLOCK) -> None:
        self.wait_mode = wait_mode
        self.current = 1
        """The segment that commands given now belong to."""
        self.completed = 0
        """The last segment known to be over."""
        self.latest: Callable[[], Fence | None] = no_fence
        """Returns the last fence, unless nobody has it any more."""

    @property
    def idle(self) -> bool:
        """Return True where all segments that were ended are known to be over."""
        return self.completed + 1 == self.current

    def end(self, *, over: bool = False) -> int:
        """End the segment, and say which it was. over: whether all its commands are done."""
        ended, self.current = self.current, self.current + 1
        if over:
            self.completed = ended
        return ended


class FenceFunctions:
    """GL's functions of fences."""

    def __init__(self, functions: GlFunctions) -> None:
        self.make = functions.quick("glFenceSync", c_void_p)
        self.wait = functions.slow("glClientWaitSync", c_uint, c_void_p, c_uint, c_uint64)
        self.delete = functions.quick("glDeleteSync", None, c_void_p)


class Fence:
    """The end of a segment of a device's commands, to be waited for. Only inside `perform`."""

    __slots__ = ("__weakref__", "_check", "_functions", "_sync", "_timeline", "segment")

    def __init__(
        self, timeline: Timeline, functions: FenceFunctions, check: Callable[[str], None]
    ) -> None:
        """check: raises DeviceError where the context was reset."""
        self._timeline, self._functions, self._check = timeline, functions, check
        self._sync: int | None = functions.make(SYNC_GPU_COMMANDS_COMPLETE, 0)
        self.segment = timeline.end()
        timeline.latest = weakref.ref(self)

    @property
    def is_signaled(self) -> bool:
        """Return True where the segment is known to be over."""
        return self._timeline.completed >= self.segment

    def wait(self, seconds: float = float("inf"), *, checked: bool = True) -> bool:
        """Wait for it no longer than `seconds`; whether it is over.

        checked: whether to raise DeviceError where the driver has reset the context, which closes
        the device: what is mapped is gone then.
        """
        timeline, functions = self._timeline, self._functions
        if timeline.wait_mode != BLOCK and not self._poll(seconds):
            return False
        sync = self._sync
        if sync is None:
            return True
        while timeline.completed < self.segment:
            part = min(seconds, MAX_WAIT)
            said = functions.wait(sync, SYNC_FLUSH_COMMANDS, int(1e9 * part))
            if said == TIMEOUT_EXPIRED:
                seconds -= part
                if seconds <= 0:
                    return False
                continue
            if said != WAIT_FAILED:
                timeline.completed = max(timeline.completed, self.segment)
            break
        self.delete()
        if checked:
            self._check("wait")
        return True

    def _poll(self, seconds: float) -> bool:
        """Ask for no longer than `seconds` whether it is over, or cannot be; whether that is so."""
        wait = self._functions.wait

        def over() -> bool:
            if self.is_signaled or self._sync is None:
                return True
            return bool(wait(self._sync, SYNC_FLUSH_COMMANDS, 0) != TIMEOUT_EXPIRED)

        return poll(over, self._timeline.wait_mode, seconds)

    def delete(self) -> None:
        """Give up what GL keeps for it: nobody waits for it any more."""
        sync, self._sync = self._sync, None
        if sync is not None:
            self._functions.delete(sync)


def no_fence() -> None:
    """Return None: there is no fence."""


RESETS = {0x8253: "guilty", 0x8254: "innocent", 0x8255: "unknown"}


def load_reset_status(
    gl: Context, offers: Capabilities, extensions: set[str], load: Callable[..., Any]
) -> Callable[[], int]:
    """GL's function that says whether the context was reset; one that says no if it has none.

    Which a driver does that was not asked to tell, too. load: as `Device.load`.
    """
    core = offers.version >= ((3, 2) if offers.api == "es" else (4, 5))
    named = {"": core, "KHR": "GL_KHR_robustness" in extensions}
    named["EXT"] = "GL_EXT_robustness" in extensions
    for suffix, there in named.items():
        name = f"glGetGraphicsResetStatus{suffix}"
        if there and gl.load_opengl_function(name):
            ask: Callable[[], int] = load(name, c_uint)
            return ask
    return lambda: 0


def pop_errors(context: moderngl.Context) -> list[str]:
    """The pending GL errors, which are then forgotten."""
    errors: list[str] = []
    while (error := context.error) != "GL_NO_ERROR" and len(errors) < 8:  # a lost context repeats
        errors.append(error)
    return errors


T = TypeVar("T")
B = TypeVar("B", bound=PendingWork)
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
        options = DeviceOptions.from_settings(
            settings, gpu, limits, version, platform, priority, wait
        )
        self._open_again = partial(Device, **vars(options), settings=settings)
        self.low_priority = options.low_priority
        self.debug = settings.debug
        self.closed = True
        self.lost: str | None = None
        self.programs: dict[tuple[object, ...], Any] = {}  # by their source: compiled once
        self.compiled, self.restored = Spans(), Spans()  # when; restored: from a binary
        self.probe_results: dict[str, bool] = {}  # of the driver, as probes found them
        self.staging: Any = None  # by which large content comes (staging.py), once there was some
        self.blocks: Any = None  # of tensors that come and go (block_pool.py), once there were some
        self._garbage: list[Callable[[], object]] = []
        self._copied_in: MutableMapping[moderngl.Buffer, int] = weakref.WeakKeyDictionary()
        """The segment of the last copy to or from each buffer, where `reorders_copies`."""
        self._last_copied_in = 0  # the last of these segments
        self.timeline = Timeline(options.wait)
        self._closing_fence: Callable[[], Fence | None] = no_fence
        """Returns a fence that is known to be behind all commands so far."""
        self._reopen_lock = process_lock()
        self._successor: Device | None = None
        with preserve_current_context():
            self._gl, asked, self.attempts = options.open()
            self.stated = asked.with_minimum() if options.limits == MINIMUM_LIMITS else asked
            self.capabilities = LimitOverrides.load(settings.cache, asked).lowered(self.stated)
            # Not at exit: the process ends anyway, and drivers may have torn themselves down.
            worker = Worker("glnn device", step_back if self.low_priority else None)
            self._finalizer = weakref.finalize(self, _destroy, self._gl, worker)
            self._finalizer.atexit = False
            try:
                self.moderngl_loader = ModernglLoader(self._gl)
                self._context = self._adopt()
                self.functions = GlFunctions(self._gl, asked.renderer)
                self.binaries = ProgramBinaries(
                    self.functions, asked, DiskCache.from_settings(settings)
                )
                self._flush, self._finish = self.load("glFlush", None), self.load("glFinish", None)
                extensions = self._context.extensions
                known = self.capabilities, extensions, self.load
                self._reset_status = load_reset_status(self._gl, *known)
                self._fence_functions = FenceFunctions(self.functions)
                self._shared_context = SharedContext(self._gl, worker)
            except Exception as error:
                self._finalizer()
                raise DeviceError(f"{self._gl.what}: moderngl: {error}") from error
            self._gl.leave()
        if self.low_priority:
            worker.start()  # no other thread works for it
        self.closed = False

    def _adopt(self) -> moderngl.Context:
        import moderngl

        code = 300 if self.capabilities.api == "es" else 330
        gl: Any = self.moderngl_loader  # the stubs know dictionaries only
        context = moderngl.create_context(require=code, context=gl)
        context.gc_mode = "context_gc"  # __del__ may run in any thread: who uses GL frees
        # Without a framebuffer, transform feedback captures zeros and says nothing.
        self._target = context.framebuffer([context.renderbuffer((1, 1))])
        self._target.use()
        pop_errors(context)  # moderngl leaves GL_INVALID_ENUM behind
        return context

    @property
    def context(self) -> moderngl.Context:
        """moderngl's context, for glnn's device and backends only."""
        if self.closed:
            raise DeviceError(self.lost or CLOSED)
        return self._context

    def copy_buffer(
        self,
        target: moderngl.Buffer,
        source: moderngl.Buffer,
        nbytes: int,
        read_offset: int = 0,
        write_offset: int = 0,
    ) -> None:
        """Copy bytes from one buffer to another. Only inside `perform`."""
        copy = self.context.copy_buffer
        copy(target, source, nbytes, read_offset=read_offset, write_offset=write_offset)
        if self.capabilities.reorders_copies:
            segment = self._last_copied_in = self.timeline.current
            self._copied_in[target] = self._copied_in[source] = segment

    def write_buffer(self, target: moderngl.Buffer, content: NDArray[Any], offset: int = 0) -> None:
        """Write `content` to `target`, from the byte `offset` on. Only inside `perform`.

        Waits for earlier copies to or from that buffer where the driver might write before them.
        """
        if self._last_copied_in:
            self._wait_for_copies(target)
        target.write(content, offset=offset)  # older moderngl takes it by name only

    def _wait_for_copies(self, buffer: moderngl.Buffer) -> None:
        """Wait until the copies to or from `buffer` are done."""
        if self._copied_in.pop(buffer, 0) > self.timeline.completed:
            self.wait()
        if self._last_copied_in <= self.timeline.completed:  # all of them
            self._last_copied_in = 0
            self._copied_in.clear()

    @cached_property
    def timer_query(self) -> moderngl.Query:
        """The device's only timer query: moderngl never frees one."""
        return self.context.query(time=True)

    def perform(self, work: Callable[[], T], *, fenced: bool = False) -> T:
        """Call `work` on the thread where GL may be used and return its result. From any thread.

        fenced: whether the last command of `work` makes a fence. `finish` waits for that one then,
        if nothing is asked for in between: another one takes a GPU some 20 us.

        That is this thread while only the one that opened the device asks; from the first request
        of another on it is a thread of the device's own, for all. Such calls nest. Raises
        DeviceError where the device is closed or, outside this, held by `activate` elsewhere, or
        where this process is a fork of the one that used GL.
        """
        self._check_usable()
        try:
            done = self._note_fence if fenced else None
            return self._shared_context.perform(work, self._ready, done)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def _note_fence(self) -> None:
        """Note that a fence is behind all commands so far."""
        self._closing_fence = self.timeline.latest

    @property
    def contended(self) -> bool:
        """Return True where other threads wait for the device, so that `overlap` may pay."""
        return self._shared_context.contended

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` and return its result; both are called as by
        `perform`.

        Where several threads ask, what others ask for may be begun with in between. Raises what
        `perform` raises.
        """
        self._check_usable()
        try:
            return self._shared_context.overlap(begin, end, self._ready)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def _translated(self, error: StepError | StoppedError) -> DeviceError:
        """Return the error of `perform` for one of the context's."""
        if isinstance(error, StepError):
            return self._refused(error)
        return DeviceError(self.lost or CLOSED)

    def activate(self) -> None:
        """Make the context current and free what was dropped; to be called before using GL.

        Only inside `perform`, or in the thread that opened the device. That thread holds the
        context from then on until `release`. Raises what `perform` raises.
        """
        if self._shared_context.current:
            return
        self._check_usable()
        try:
            self._shared_context.hold(self._ready)
        except StepError as failed:
            raise self._refused(failed) from None

    def release(self) -> None:
        """Leave the context: after `activate`, so that other threads can use the device again.

        Also where a run left it current, for threads and contexts that other libraries make.
        Harmless when repeated.
        """
        if not GL_PROCESS.forked:
            self._shared_context.release()

    def _refused(self, failed: StepError) -> DeviceError:
        if "CONTEXT_LOST" in failed.error:
            return self._lose(failed.step, "unknown")
        return DeviceError(f"{self._gl.what}: {failed}")

    def _check_usable(self) -> None:
        if GL_PROCESS.forked:  # before any lock: a fork finds them as they were
            GL_PROCESS.check()
        if self.closed:
            raise DeviceError(self.lost or CLOSED)

    def _ready(self) -> None:
        """With the context, before work: delete what was queued in whatever thread."""
        self._closing_fence = no_fence
        self._ready_to_wait()

    def _ready_to_wait(self) -> None:
        """The same before work that gives no command but a fence."""
        self._check_usable()  # a thread that was waited for may have closed it
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete what `delete_later` queued, in whatever thread. Only inside `perform`."""
        self._context.gc()
        while self._garbage:
            self._garbage.pop()()

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

    def reopen(self) -> Device:
        """A device opened as this lost one was, the same one for whoever asks.

        Raises DeviceError where none opens.
        """
        with self._reopen_lock:
            if self._successor is None or (self._successor.closed and self._successor.lost is None):
                self._successor = self._open_again()
            successor = self._successor
        return successor if successor.lost is None else successor.reopen()

    def delete_later(self, delete: Callable[[], object]) -> None:
        """Let the next use of GL call `delete`: what a finalizer frees, in whatever thread."""
        self._garbage.append(delete)

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
        if errors := pop_errors(self.context):
            self.check_reset(step)
            kind = NoRoomError if "GL_OUT_OF_MEMORY" in errors else DeviceError
            raise kind(f"{step}: {', '.join(errors)} on {self.capabilities.renderer}")

    def flush(self) -> None:
        """Let the GPU begin with what it was told, without waiting."""
        self._flush()
        if self.low_priority:
            give_way()

    def memory_available(self) -> int | None:
        """Bytes that may still be allocated: the GPU's own, else the machine's; None if unknown."""
        dedicated = self.capabilities.dedicated_memory

        def available() -> int | None:
            self.collect_garbage()
            return memory_available(self.context, self.load, dedicated)

        return self.perform(available)

    def finish(self) -> None:
        """Wait until the GPU has done all it was told to, from any thread.

        Raises DeviceError after a reset.
        """
        self._check_usable()
        try:  # without the context there is no wait
            self._shared_context.perform(self.wait, self._ready_to_wait)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def wait(self) -> None:
        """The same as `finish`, for callers that are inside `perform`."""
        self._check_usable()  # it may be closed in the middle of the work
        self._wait_at(self._closing_fence() or self.fence())

    def wait_for(self, segment: int) -> None:
        """Wait until the commands of a segment of the timeline are done. Only inside `perform`.

        Raises DeviceError after a reset.
        """
        if self.timeline.completed < segment:
            self._check_usable()
            fence = self.timeline.latest()
            if fence is None or fence.segment < segment:
                fence = self.fence()
            self._wait_at(fence)

    def _wait_at(self, fence: Fence) -> None:
        """Wait for `fence`. Raises DeviceError after a reset."""
        # Not by glFinish: with it NVIDIA's driver (580) stops for 0.4 ms every 250 dispatches.
        fence.wait(checked=False)
        if not fence.is_signaled:  # of a driver that made none, or cannot wait for it
            self._finish()
            self.timeline.end(over=True)
        self.check_reset("finish")

    def fence(self) -> Fence:
        """A fence behind all that the GPU was told to do. Only inside `perform`."""
        return Fence(self.timeline, self._fence_functions, self.check_reset)

    def close(self) -> None:
        """Destroy the context and all that lives in it. Harmless when repeated."""
        if not self.closed and not GL_PROCESS.forked:
            self._shared_context.end(self._end)
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


class SharedDevices:
    """Cache of open devices, one for each combination of GPU, limits, priority and way to wait.

    It is opened when it is asked for first.
    """

    def __init__(self) -> None:
        self._lock = process_lock()
        self._devices: dict[DeviceOptions, Device] = {}

    def open(
        self,
        gpu: int | str | None = None,
        limits: str | None = None,
        *,
        priority: str | None = None,
        wait: str | None = None,
    ) -> Device:
        """The device for `gpu`, `limits` and the like; None is what the environment asks for.

        Another one where it was closed or lost. Raises DeviceError where none opens, and in a fork
        of a process that used GL.
        """
        check_gpu(gpu)
        check_limits(limits)
        GL_PROCESS.check()  # before the lock
        with self._lock:
            asked = DeviceOptions.from_settings(
                Settings.from_environment(), gpu, limits, None, None, priority, wait
            )
            device = self._devices.get(asked)
            if device is None or device.closed:
                lost = device is not None and device.lost is not None
                fresh = device.reopen() if device and lost else Device(**vars(asked))
                self._devices[asked] = device = fresh
            return device


def limits_or_default(limits: str | None) -> str | None:
    """The limits asked for, by an argument or by the environment."""
    return Settings.from_environment().limits if limits is None else limits


SHARED = SharedDevices()


def shared_device(
    backend: str,
    device: Device | None,
    gpu: int | str | None,
    limits: str | None,
    priority: str | None,
    wait: str | None,
) -> Device | None:
    """The device for a session: `device`, or a shared one where `priority` or `wait` ask for that.

    None where it is for the backend to say. Raises GlnnError where these are given with a device,
    and what `SharedDevices.open` raises.
    """
    if (priority, wait) == (None, None):
        return device
    if device is not None:
        raise GlnnError("priority and wait are for the Device that the session is given")
    if backend == "cpu":
        return None
    try:
        return SHARED.open(gpu, limits, priority=priority, wait=wait)
    except NoDeviceError:
        if backend != "auto":
            raise
        return None  # then another backend may open

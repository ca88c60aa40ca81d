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
from glnn.core.process import GL_PROCESS, give_way, lower_priority, process_lock
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
SLEEP_SHARE = 0.25  # of the time waited so far: the most that a sleep delays the answer by


def poll(over: Callable[[], bool], how: str, seconds: float) -> bool:
    """Call `over` until it returns True, or `seconds` have passed; return its last result.

    how: `spin` calls again at once, `sleep` after a pause of 50 us to 1 ms, longer with the wait.
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
    """The commands of a context, in segments that end with fences and with waits for all commands.

    wait_mode: how fences are waited for: BLOCK, SPIN or SLEEP.
    """

    def __init__(self, wait_mode: str = BLOCK) -> None:
        self.wait_mode = wait_mode
        self.current = 1
        """The segment of the commands that are submitted now."""
        self.completed = 0
        """The last segment whose commands are known to be done."""
        self.latest: Callable[[], Fence | None] = no_fence
        """Returns the last fence; None once nobody refers to it."""

    @property
    def idle(self) -> bool:
        """Return True where the commands of all ended segments are known to be done."""
        return self.completed + 1 == self.current

    def end(self, *, over: bool = False) -> int:
        """End the current segment and return it. over: True where all its commands are done."""
        segment, self.current = self.current, self.current + 1
        if over:
            self.completed = segment
        return segment


class FenceFunctions:
    """GL's functions of fences."""

    def __init__(self, functions: GlFunctions) -> None:
        self.make = functions.quick("glFenceSync", c_void_p)
        self.wait = functions.slow("glClientWaitSync", c_uint, c_void_p, c_uint, c_uint64)
        self.delete = functions.quick("glDeleteSync", None, c_void_p)


class Fence:
    """The end of a segment of a device's commands. Only inside `perform`."""

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
        """Return True where the segment's commands are known to be done."""
        return self._timeline.completed >= self.segment

    def wait(self, seconds: float = float("inf"), *, checked: bool = True) -> bool:
        """Wait no longer than `seconds`; return True where the commands are done.

        checked: True to raise DeviceError where the driver has reset the context. That closes the
        device, and mapped memory becomes invalid.
        """
        timeline, functions = self._timeline, self._functions
        if timeline.wait_mode != BLOCK and not self._poll(seconds):
            return False
        sync = self._sync
        if sync is None:
            return True
        while timeline.completed < self.segment:
            timeout = min(seconds, MAX_WAIT)
            status = functions.wait(sync, SYNC_FLUSH_COMMANDS, int(1e9 * timeout))
            if status == TIMEOUT_EXPIRED:
                seconds -= timeout
                if seconds <= 0:
                    return False
                continue
            if status != WAIT_FAILED:
                timeline.completed = max(timeline.completed, self.segment)
            break
        self.delete()
        if checked:
            self._check("wait")
        return True

    def _poll(self, seconds: float) -> bool:
        """Poll no longer than `seconds`; return True where the commands are done or waits fail."""
        wait = self._functions.wait

        def over() -> bool:
            if self.is_signaled or self._sync is None:
                return True
            return bool(wait(self._sync, SYNC_FLUSH_COMMANDS, 0) != TIMEOUT_EXPIRED)

        return poll(over, self._timeline.wait_mode, seconds)

    def delete(self) -> None:
        """Delete GL's sync object: nobody waits for it any more."""
        sync, self._sync = self._sync, None
        if sync is not None:
            self._functions.delete(sync)


def no_fence() -> None:
    """Return None: there is no fence."""


RESETS = {0x8253: "guilty", 0x8254: "innocent", 0x8255: "unknown"}


def load_reset_status(
    gl: Context, offers: Capabilities, extensions: set[str], load: Callable[..., Any]
) -> Callable[[], int]:
    """Return GL's function for the reset status; one that returns 0, no reset, where it has none.

    Drivers report resets also to contexts that did not request it. load: as `Device.load`.
    """
    core = offers.version >= ((3, 2) if offers.api == "es" else (4, 5))
    suffixes = {"": core, "KHR": "GL_KHR_robustness" in extensions}
    suffixes["EXT"] = "GL_EXT_robustness" in extensions
    for suffix, is_supported in suffixes.items():
        name = f"glGetGraphicsResetStatus{suffix}"
        if is_supported and gl.load_opengl_function(name):
            ask: Callable[[], int] = load(name, c_uint)
            return ask
    return lambda: 0


def pop_errors(context: moderngl.Context) -> list[str]:
    """Return the pending GL errors, and clear them."""
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
    version: the only GL version to try; (3, 3) and (4, 3) are desktop GL. platform: the only
        platform to try: "device", "surfaceless", "default" (all EGL) or "window" (GLFW).
    priority: "low" lets other programs go first, "normal" does not. wait: how the host waits for
        the device: "block" as the driver does, "spin" by polling, "sleep" by polling with pauses.
    settings: replaces the environment's settings; arguments that are None fall back to it.

    Raises NoDeviceError, a DeviceError, where no context opens, DeviceError in a fork of a process
    that used GL. `attempts` lists the attempts that failed before this device opened. `lost` is the
    message of a reset by the driver, after which the device is closed; None without one. `stated`
    has the limits that the driver states, `capabilities` those that are known to hold.
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
        self.programs: dict[tuple[object, ...], Any] = {}
        """The programs of backends by key: see `Programs.program`."""
        self.compiled, self.restored = Spans(), Spans()
        """The times in which programs were compiled, and loaded from binaries."""
        self.probe_results: dict[str, bool] = {}
        """The results of probes for the driver's faults, by the probe's name (probe.py)."""
        self.staging: Any = None
        """The StagingBuffers (transfer.py), created on first use."""
        self.blocks: Any = None
        """The BlockPool (block_pool.py), created on first use."""
        self._garbage: list[Callable[[], object]] = []
        self._copy_segments: MutableMapping[moderngl.Buffer, int] = weakref.WeakKeyDictionary()
        """The segment of the last copy to or from each buffer, where `reorders_writes`."""
        self._last_copy_segment = 0
        """The segment of the last copy; 0 once all copies are known to be done."""
        self.timeline = Timeline(options.wait)
        self._closing_fence: Callable[[], Fence | None] = no_fence
        """Returns a fence that is known to be behind all commands so far; None without one."""
        self._reopen_lock = process_lock()
        self._successor: Device | None = None
        with preserve_current_context():
            self._gl, driver, self.attempts = options.open()
            self.stated = driver.with_minimum() if options.limits == MINIMUM_LIMITS else driver
            self.capabilities = LimitOverrides.load(settings.cache, driver).lowered(self.stated)
            # Not at exit: the process ends anyway, and drivers may have shut down before.
            worker = Worker("glnn device", lower_priority if self.low_priority else None)
            self._finalizer = weakref.finalize(self, _destroy, self._gl, worker)
            self._finalizer.atexit = False
            try:
                self.moderngl_loader = ModernglLoader(self._gl)
                self._context = self._adopt()
                self.functions = GlFunctions(self._gl, driver.renderer)
                self.binaries = ProgramBinaries(
                    self.functions, driver, DiskCache.from_settings(settings)
                )
                self._flush, self._finish = self.load("glFlush", None), self.load("glFinish", None)
                self._reset_status = load_reset_status(
                    self._gl, self.capabilities, self._context.extensions, self.load
                )
                self._fence_functions = FenceFunctions(self.functions)
                self._shared_context = SharedContext(self._gl, worker)
            except Exception as error:
                self._finalizer()
                raise DeviceError(f"{self._gl.what}: moderngl: {error}") from error
            self._gl.leave()
        if self.low_priority:
            worker.start()  # all work runs in the worker, which lowers its own priority
        self.closed = False

    def _adopt(self) -> moderngl.Context:
        """Return moderngl's context for the GL context, with a framebuffer."""
        import moderngl

        code = 300 if self.capabilities.api == "es" else 330
        gl: Any = self.moderngl_loader  # the stubs know dictionaries only
        context = moderngl.create_context(require=code, context=gl)
        context.gc_mode = "context_gc"  # __del__ runs in any thread: `collect_garbage` deletes
        # Without a framebuffer, transform feedback captures zeros and reports no error.
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
        if self.capabilities.reorders_writes:
            segment = self._last_copy_segment = self.timeline.current
            self._copy_segments[target] = self._copy_segments[source] = segment

    def write_buffer(self, target: moderngl.Buffer, content: NDArray[Any], offset: int = 0) -> None:
        """Write `content` to `target`, from the byte `offset` on. Only inside `perform`.

        Waits for earlier copies to or from that buffer where the driver might write before them.
        """
        if self._last_copy_segment:
            self._wait_for_copies(target)
        target.write(content, offset=offset)  # a keyword, as moderngl 5.6 takes it no other way

    def _wait_for_copies(self, buffer: moderngl.Buffer) -> None:
        """Wait until the copies to or from `buffer` are done."""
        if self._copy_segments.pop(buffer, 0) > self.timeline.completed:
            self.wait()
        if self._last_copy_segment <= self.timeline.completed:  # all copies are done
            self._last_copy_segment = 0
            self._copy_segments.clear()

    @cached_property
    def timer_query(self) -> moderngl.Query:
        """The device's only timer query: moderngl never frees one."""
        return self.context.query(time=True)

    def perform(self, work: Callable[[], T], *, fenced: bool = False) -> T:
        """Call `work` on the thread where GL may be used and return its result. From any thread.

        fenced: True where the last command of `work` makes a fence. If no other work follows,
        `finish` waits for that fence: a further one takes a GPU some 20 us.

        `work` runs in the calling thread as long as only the thread that opened the device calls;
        from the first call of another thread on, a worker thread of the device runs the work of
        all. Calls nest. Raises DeviceError where the device is closed, where another thread holds
        it by `activate`, or in a fork of a process that used GL.
        """
        self._check_usable()
        try:
            done = self._note_fence if fenced else None
            return self._shared_context.perform(work, self._prepare_work, done)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def _note_fence(self) -> None:
        """Note that the latest fence is behind all commands so far."""
        self._closing_fence = self.timeline.latest

    @property
    def contended(self) -> bool:
        """Return True where other threads wait for the device, so that `overlap` may be faster."""
        return self._shared_context.contended

    def overlap(self, begin: Callable[[], B], end: Callable[[B], T]) -> T:
        """Call `end` on the result of `begin` and return its result; both are called as by
        `perform`.

        Where several threads call, the work of others may begin in between. Raises what `perform`
        raises.
        """
        self._check_usable()
        try:
            return self._shared_context.overlap(begin, end, self._prepare_work)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def _translated(self, error: StepError | StoppedError) -> DeviceError:
        """Return the DeviceError for an error of the context."""
        if isinstance(error, StepError):
            return self._refused(error)
        return DeviceError(self.lost or CLOSED)

    def activate(self) -> None:
        """Make the context current and delete garbage; to be called before using GL.

        Only inside `perform`, or in the thread that opened the device. That thread holds the
        context from then on until `release`. Raises what `perform` raises.
        """
        if self._shared_context.current:
            return
        self._check_usable()
        try:
            self._shared_context.hold(self._prepare_work)
        except StepError as error:
            raise self._refused(error) from None

    def release(self) -> None:
        """Leave the context: after `activate`, so that other threads can use the device again.

        Also where a run left it current, for threads and contexts of other libraries. Harmless when
        repeated.
        """
        if not GL_PROCESS.forked:
            self._shared_context.release()

    def _refused(self, error: StepError) -> DeviceError:
        """Return the DeviceError for a context that cannot be made current."""
        if "CONTEXT_LOST" in error.error:
            return self._lose(error.step, "unknown")
        return DeviceError(f"{self._gl.what}: {error}")

    def _check_usable(self) -> None:
        if GL_PROCESS.forked:  # before any lock: the parent may have held it at the fork
            GL_PROCESS.check()
        if self.closed:
            raise DeviceError(self.lost or CLOSED)

    def _prepare_work(self) -> None:
        """Check the device and delete garbage before work, once the context is current."""
        self._closing_fence = no_fence
        self._prepare_wait()

    def _prepare_wait(self) -> None:
        """Do so before work that submits no commands but a fence."""
        self._check_usable()  # the thread that had the context may have closed the device
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete the GL objects that any thread dropped. Only inside `perform`."""
        self._context.gc()
        while self._garbage:
            self._garbage.pop()()

    def check_reset(self, step: str) -> None:
        """Raise DeviceError if the driver has reset the context: `step` may have failed."""
        if status := self._reset_status():
            raise self._lose(step, RESETS.get(status, f"0x{status:04x}"))

    def _lose(self, step: str, guilt: str) -> DeviceError:
        """Close the device as lost, and return the error to raise."""
        self.lost = (
            f"{step}: the context on {self.capabilities.renderer} was reset by its driver "
            f"({guilt}): what it held is lost; a session runs again, on a new device"
        )
        self.close()
        return DeviceError(self.lost)

    def reopen(self) -> Device:
        """Return a device opened as this lost one was, the same one in every call.

        Raises DeviceError where none opens.
        """
        with self._reopen_lock:
            if self._successor is None or (self._successor.closed and self._successor.lost is None):
                self._successor = self._open_again()
            successor = self._successor
        return successor if successor.lost is None else successor.reopen()

    def delete_later(self, delete: Callable[[], object]) -> None:
        """Queue `delete` for the next use of GL; for finalizers, which run in any thread."""
        self._garbage.append(delete)

    def load(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return GL's function `name`, which moderngl does not offer, of these ctypes types.

        Raises DeviceError where the driver has none: calling address 0 would end the process.
        """
        return self.functions.slow(name, result, *arguments)

    def barrier(self) -> None:
        """Make what compute shaders have written so far visible to all later commands."""
        if self.capabilities.compute:
            context: Any = self._context  # the stubs of moderngl 5.8 leave it out
            context.memory_barrier(BARRIERS)

    def check(self, step: str) -> None:
        """In debug mode, raise DeviceError if GL reports an error of `step` or before."""
        if self.debug:
            self.check_always(step)

    def check_always(self, step: str) -> None:
        """Raise DeviceError if GL reports an error of `step` or before, NoRoomError for memory."""
        if errors := pop_errors(self.context):
            self.check_reset(step)
            kind = NoRoomError if "GL_OUT_OF_MEMORY" in errors else DeviceError
            raise kind(f"{step}: {', '.join(errors)} on {self.capabilities.renderer}")

    def flush(self) -> None:
        """Let the GPU begin with the commands so far, without waiting."""
        self._flush()
        if self.low_priority:
            give_way()

    def memory_available(self) -> int | None:
        """Return the free bytes of the GPU's memory, else of the machine's; None if unknown."""
        dedicated = self.capabilities.dedicated_memory

        def available() -> int | None:
            self.collect_garbage()
            return memory_available(self.context, self.load, dedicated)

        return self.perform(available)

    def finish(self) -> None:
        """Wait until the GPU has done all commands so far, from any thread.

        Raises DeviceError after a reset.
        """
        self._check_usable()
        try:
            self._shared_context.perform(self.wait, self._prepare_wait)
        except (StepError, StoppedError) as error:
            raise self._translated(error) from None

    def wait(self) -> None:
        """The same as `finish`, for callers that are inside `perform`."""
        self._check_usable()  # the work may have closed it
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
        if not fence.is_signaled:  # the driver created no fence, or failed to wait for it
            self._finish()
            self.timeline.end(over=True)
        self.check_reset("finish")

    def fence(self) -> Fence:
        """Return a fence behind all commands so far. Only inside `perform`."""
        return Fence(self.timeline, self._fence_functions, self.check_reset)

    def close(self) -> None:
        """Destroy the context and all its objects. Harmless when repeated."""
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
    """Cache of open devices, one for each combination of GPU, limits, priority and wait mode."""

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
        """Return the device for these options, opened on first use, or again once it is closed.

        An option that is None is the environment's. Raises DeviceError where none opens, and in a
        fork of a process that used GL.
        """
        check_gpu(gpu)
        check_limits(limits)
        GL_PROCESS.check()  # before the lock
        with self._lock:
            options = DeviceOptions.from_settings(
                Settings.from_environment(), gpu, limits, None, None, priority, wait
            )
            device = self._devices.get(options)
            if device is None or device.closed:
                is_lost = device is not None and device.lost is not None
                device = device.reopen() if device and is_lost else Device(**vars(options))
                self._devices[options] = device
            return device


def limits_or_default(limits: str | None) -> str | None:
    """Return the argument `limits`, or the environment's where that is None."""
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
    """Return the device for a session: `device`, or a shared one for `priority` and `wait`.

    Return None where the backend chooses. Raises GlnnError where `priority` or `wait` come with a
    device, and what `SharedDevices.open` raises.
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
        return None  # `auto` may open a backend without a device

"""This process: its forks and threads, processors and memory."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from glnn.errors import DeviceError, LimitError, first_line

try:
    import resource
except ImportError:  # systems without such limits
    resource = None  # type: ignore[assignment]


CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files in which Linux reports a container's memory limit."""
LOW_PRIORITY = 10  # nice value


class ThisProcess:
    """Cache of this process's `id`, renewed in a fork: `os.getpid` takes long."""

    def __init__(self) -> None:
        self._ask()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._ask)

    def _ask(self) -> None:
        self.id = os.getpid()


THIS_PROCESS = ThisProcess()


LOCKS: WeakSet[Any] = WeakSet()
"""The live locks of `process_lock`, released in a fork."""


def process_lock() -> AbstractContextManager[bool, None]:
    """Return a reentrant lock for the threads of one process, free again in a fork.

    It is Python's own, in C: Ctrl-C may interrupt an `__enter__` that is Python code after it took
    the lock, which would then never be released.
    """
    lock = threading.RLock()
    LOCKS.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(LOCKS):
        lock._at_fork_reinit()  # as `threading` and `logging` do with their locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class GlProcess:
    """The process that uses GL.

    A fork of it cannot use GL: the fork lacks the driver's threads, which may hold the driver's
    locks.
    """

    def __init__(self) -> None:
        self._pid: int | None = None
        self._opened = False
        self.forked = False
        """True where this process is a fork of the one that uses GL."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self.forked = self._pid is not None

    def check(self) -> None:
        """Raise DeviceError in a fork. Must be called before any lock is taken."""
        if self.forked:
            raise DeviceError(
                f"process {self._pid} used GL before this one was forked from it, and GL does not "
                'survive that: start processes by "spawn", as multiprocessing.get_context("spawn") '
                "does, or fork before GL is used"
            )

    def begin_opening(self) -> None:
        """Note that this process is about to open a GL context. Raises DeviceError in a fork."""
        self.check()
        self._pid = THIS_PROCESS.id

    def end_opening(self, *, success: bool) -> None:
        """Note whether a context opened: forks may use GL where this process never opened one."""
        self._opened |= success
        self._pid = THIS_PROCESS.id if self._opened else None


class Helpers:
    """glnn's own threads that never use a GL context; they live as long as the process."""

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._none)

    def _none(self) -> None:
        self.count = 0

    def start(self, work: Callable[[], object], name: str) -> None:
        """Start a thread that runs `work`, which never ends."""
        threading.Thread(target=work, name=name, daemon=True).start()
        self.count += 1


HELPERS = Helpers()


class GarbageCollector:
    """Python's collector of cyclic garbage, run rarely while many objects are created.

    With Python's own thresholds it scans all new objects again and again and finds nothing. Without
    these scans, a plan of PP-OCRv4's recogniser took 0.75 to 0.8 of the CPU time (one run on two
    cores, widths from 200 to 480). Contexts of `relaxed` may overlap, in several threads. A
    collector that the user turned off, or gave thresholds, is left as it is.
    """

    RARE = 100_000
    """The threshold inside `relaxed`: new objects between two scans; Python's is 700 or 2,000."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._active = 0  # contexts of `relaxed`
        self._thresholds = gc.get_threshold()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restore)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Make the collector run rarely inside the context."""
        with self._lock:
            if not self._active:
                self._thresholds = gc.get_threshold()
                if 0 < self._thresholds[0] < self.RARE:
                    gc.set_threshold(self.RARE, *self._thresholds[1:])
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= self._active > 0  # a fork inside the context reset it to 0
                if not self._active:
                    self._restore()

    def _restore(self) -> None:
        """Restore the thresholds, unless they were changed meanwhile."""
        self._active = 0
        if gc.get_threshold()[0] == self.RARE:
            gc.set_threshold(*self._thresholds)


COLLECTOR = GarbageCollector()


def lower_priority() -> None:
    """Lower the priority of this thread and of the threads it will start, on Linux."""
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            nice = max(LOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def give_way() -> None:
    """Let threads that wait for this one's processor run first, on Linux."""
    if sys.platform == "linux":
        os.sched_yield()


def is_single_threaded() -> bool:
    """Return True where Python has no threads but this one and `HELPERS`.

    Threads that a C library started do not count.
    """
    helpers = HELPERS.count
    return threading.active_count() == 1 + helpers and _thread._count() == helpers


class Releasable(Protocol):
    """A context that can be released from the thread in which it is current."""

    def release(self) -> None:
        """Release it. Harmless when repeated."""


class KeptContext:
    """The context that stays current in the process's only thread until it starts another thread.

    From 3.12 on, Python raises an audit event before a thread starts, in the thread that starts it.
    Before 3.12, no context is kept.
    """

    is_supported = sys.version_info >= (3, 12)

    def __init__(self) -> None:
        self.context: Releasable | None = None
        """The context to release; None where none is kept."""
        self._thread = 0
        self._hooked = False

    def keep(self, context: Releasable) -> None:
        """Register `context`, to be released before this thread, the only one, starts another."""
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._audit_hook())
        self.context, self._thread = context, threading.get_ident()

    def forget(self) -> None:
        """Forget the context without releasing it."""
        self.context = None

    def release(self) -> None:
        """Release the context that this thread keeps, if any."""
        context = self.context
        if context is None or self._thread != threading.get_ident() or GL_PROCESS.forked:
            return
        context.release()
        if self.context is context:  # after `release`: if Ctrl-C interrupts it, it is repeated
            self.context = None

    def _audit_hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        # The hook uses local names only: it outlives the modules' globals at the process's end.
        release = self.release
        starts = {"_thread.start_new_thread", "_thread.start_joinable_thread"}

        def hook(event: str, details: tuple[Any, ...]) -> None:
            if event in starts or (event == "import" and details[0] == "glfw"):
                release()

        return hook


GL_PROCESS = GlProcess()
KEPT_CONTEXT = KeptContext()


def processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have none
        return os.cpu_count() or 1


@cache
def memory_limit() -> int:
    """Return the most bytes of memory that this process may have."""
    if resource is None:
        return sys.maxsize
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            installed = min(installed, int(Path(name).read_text("ascii")))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return installed if limit == resource.RLIM_INFINITY else min(installed, limit)


PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
MIN_CHECKED = 1 << 20  # bytes: allocating fewer takes less time than `free_memory`


def free_memory(process: Path = PROC, groups: Path = CGROUPS) -> int:
    """Return how many bytes of memory this process may still allocate.

    The least of: what the system has available, what the limits of the process's control groups
    leave (cgroup v1 or v2), and what its limit of address space leaves. A system that reports none
    of these sets no bound.

    Args:
        process: The folder in which the system reports processes and memory.
        groups: The folder at which control groups are mounted.
    """
    bounds = [*_available(process), *_left_by_groups(process, groups), *_left_by_limit(process)]
    return max(min(bounds, default=sys.maxsize), 0)


def check_memory(nbytes: int, what: Callable[[], str]) -> None:
    """Raise LimitError where fewer than `nbytes` are free.

    Args:
        nbytes: The bytes that are about to be allocated.
        what: Function that returns the error's subject: what the memory is for.
    """
    if nbytes <= MIN_CHECKED:
        return
    free = free_memory()
    if nbytes > free:
        raise LimitError(
            f"{what()} needs {nbytes} bytes of the host's memory ({readable_bytes(nbytes)}), "
            f"{free} are free ({readable_bytes(free)})"
        )


def out_of_memory(error: MemoryError) -> LimitError:
    """Return `error` as a LimitError, for users."""
    return LimitError(f"the host has too little memory: {first_line(error)}")


def readable_bytes(nbytes: int) -> str:
    """Return `nbytes` as people read it: `12 B`, `3.4 KiB`, `5.6 MiB`."""
    if nbytes < 2**20:
        return f"{nbytes} B" if nbytes < 2**10 else f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes / 2**20:.1f} MiB"


def _available(process: Path) -> Iterator[int]:
    """Yield the bytes that the system can give without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in (process / "meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10


def _left_by_groups(process: Path, groups: Path) -> Iterator[int]:
    """Yield the bytes left by the limit of each control group that the process is in.

    The page cache counts as used there; it is subtracted, as it is dropped when memory is needed.
    """
    try:
        lines = (process / "self" / "cgroup").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            top, files = groups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            top, files = groups / "memory", names
        else:
            continue
        group = Path(name.lstrip("/"))
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                yield _left_by_group(top / folder, *files)


def _left_by_group(folder: Path, limit: str, use: str, cached: str) -> int:
    """Return the bytes left by one group's limit. Raises OSError, ValueError where it has none."""
    left = int((folder / limit).read_text("ascii")) - int((folder / use).read_text("ascii"))
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text("ascii").splitlines():
            key, _, number = line.partition(" ")
            if key == cached:
                left += int(number)
    return left


def _left_by_limit(process: Path) -> Iterator[int]:
    """Yield the bytes left by the process's limit of address space."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    with suppress(OSError, ValueError, IndexError):
        pages = int((process / "self" / "statm").read_text("ascii").split()[0])
        yield limit - pages * os.sysconf("SC_PAGE_SIZE")

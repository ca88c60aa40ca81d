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
except ImportError:  # where there are no such limits
    resource = None  # type: ignore[assignment]


CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The files in which Linux reports a container's memory limit."""
NICE = 10  # of a thread that steps back


class ThisProcess:
    """This process's `id`, asked of the system once, and once more in a fork: asking takes long."""

    def __init__(self) -> None:
        self._ask()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._ask)

    def _ask(self) -> None:
        self.id = os.getpid()


THIS = ThisProcess()


LOCKS: WeakSet[Any] = WeakSet()
"""The live locks of `process_lock`, renewed in a fork."""


def process_lock() -> AbstractContextManager[bool, None]:
    """Return a reentrant lock for the threads of one process. A fork finds it free.

    It is Python's own, in C: one whose `__enter__` is Python code may be interrupted by Ctrl-C once
    it has the lock, and nobody would ever free it.
    """
    lock = threading.RLock()
    LOCKS.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(LOCKS):
        lock._at_fork_reinit()  # as `threading` and `logging` do with theirs


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


class GlProcess:
    """The process that uses GL.

    A fork of it cannot: the driver's threads are not in it, its locks may be held by them.
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
        """Raise DeviceError in a fork. To be called before any lock is taken."""
        if self.forked:
            raise DeviceError(
                f"process {self._pid} used GL before this one was forked from it, and GL does not "
                'survive that: start processes by "spawn", as multiprocessing.get_context("spawn") '
                "does, or fork before GL is used"
            )

    def opening(self) -> None:
        """Note that this process begins with GL. Raises DeviceError in a fork."""
        self.check()
        self._pid = THIS.id

    def opened(self, *, any: bool) -> None:
        """Note whether a context opened: where none ever did, forks may try for themselves."""
        self._opened |= any
        self._pid = THIS.id if self._opened else None


class Helpers:
    """Threads of glnn's own that never want a context of GL; they live as long as the process."""

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
    """Python's collector of cyclic garbage, which looks rarely while many objects are made.

    By itself it looks at all of them again and again while they become more, and finds nothing:
    without that a plan of PP-OCRv4's recogniser took 0.75 to 0.8 of the CPU time (one run on two
    cores, widths from 200 to 480). Spans may overlap, in several threads; who turns the collector
    off, or gives it thresholds, has it so.
    """

    RARE = 100_000
    """Objects more than there were when it looked last, by Python 700 or 2,000."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._spans = 0
        self._before = gc.get_threshold()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._ended)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Make the collector run rarely inside the context."""
        with self._lock:
            if not self._spans:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < self.RARE:
                    gc.set_threshold(self.RARE, *self._before[1:])
            self._spans += 1
        try:
            yield
        finally:
            with self._lock:
                self._spans -= self._spans > 0  # none is left in a fork of a span
                if not self._spans:
                    self._ended()

    def _ended(self) -> None:
        """Give back the thresholds, unless somebody has set others."""
        self._spans = 0
        if gc.get_threshold()[0] == self.RARE:
            gc.set_threshold(*self._before)


COLLECTOR = GarbageCollector()


def step_back() -> None:
    """Let other threads go before this one, and before those it starts, where the system can."""
    if sys.platform == "linux":
        with suppress(OSError):
            me = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, me, max(NICE, os.getpriority(os.PRIO_PROCESS, me)))


def give_way() -> None:
    """Let threads that wait for this one's processor go first, where the system can."""
    if sys.platform == "linux":
        os.sched_yield()


def is_single_threaded() -> bool:
    """Return True where Python knows no other thread than this one and `HELPERS`.

    Python does not know threads that a C library started.
    """
    helpers = HELPERS.count
    return threading.active_count() == 1 + helpers and _thread._count() == helpers


class Releasable(Protocol):
    """An object that a thread keeps until it must release it."""

    def release(self) -> None:
        """Let go of it. Harmless when repeated."""


class Keeping:
    """State that the process's only thread keeps until it starts another thread.

    Python tells of that by an audit event, in the thread that starts the other and before it does:
    from 3.12 on. Before, nothing is kept.
    """

    possible = sys.version_info >= (3, 12)

    def __init__(self) -> None:
        self.kept: Releasable | None = None
        """What is to be released."""
        self._keeper = 0
        self._watching = False

    def keep(self, context: Releasable) -> None:
        """Register `context`, to be released before this thread, the only one, starts another."""
        if not self._watching:
            self._watching = True
            sys.addaudithook(self._watch())
        self.kept, self._keeper = context, threading.get_ident()

    def forget(self) -> None:
        """Do not release it: nothing is kept any more."""
        self.kept = None

    def leave(self) -> None:
        """Leave what this thread keeps, if anything."""
        kept = self.kept
        if kept is None or self._keeper != threading.get_ident() or GL_PROCESS.forked:
            return
        kept.release()
        if self.kept is kept:  # only now: where Ctrl-C interrupts that, the next call does it
            self.kept = None

    def _watch(self) -> Callable[[str, tuple[Any, ...]], None]:
        # All names are the function's own: at the process's end modules lose theirs before it.
        leave = self.leave
        starts = {"_thread.start_new_thread", "_thread.start_joinable_thread"}

        def watch(event: str, details: tuple[Any, ...]) -> None:
            if event in starts or (event == "import" and details[0] == "glfw"):
                leave()

        return watch


GL_PROCESS = GlProcess()
KEEPING = Keeping()


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
MIN_CHECKED = 1 << 20  # bytes: to ask the system what is free takes longer than to take so many


def free_memory(process: Path = PROC, groups: Path = CGROUPS) -> int:
    """Return how many bytes of memory this process may still take.

    That is the least of what the system has available, of what the limits of its control groups
    leave (cgroup v1 or v2), and of what its own limit of address space leaves. A system that says
    none of these sets no bound.

    Args:
        process: Where the system tells about processes and memory.
        groups: Where control groups are mounted.
    """
    rests = [*_available(process), *_left_by_groups(process, groups), *_left_by_limit(process)]
    return max(min(rests, default=sys.maxsize), 0)


def check_memory(nbytes: int, what: Callable[[], str]) -> None:
    """Raise LimitError where fewer than `nbytes` are free.

    Args:
        nbytes: The bytes that are about to be taken.
        what: Gives the error's subject: what they are for.
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
    """Return the error that says so to a user."""
    return LimitError(f"the host has too little memory: {first_line(error)}")


def readable_bytes(nbytes: int) -> str:
    """Return `nbytes` as people read it: `12 B`, `3.4 KiB`, `5.6 MiB`."""
    if nbytes < 2**20:
        return f"{nbytes} B" if nbytes < 2**10 else f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes / 2**20:.1f} MiB"


def _available(process: Path) -> Iterator[int]:
    """Yield what the system could give without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in (process / "meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10


def _left_by_groups(process: Path, groups: Path) -> Iterator[int]:
    """Yield what the limit of each control group leaves that the process is in.

    What was read from files counts as used there, and is given up when memory is asked for.
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
    """Return what one group's limit leaves. Raises OSError, ValueError where it has none."""
    most = int((folder / limit).read_text("ascii"))
    left = most - int((folder / use).read_text("ascii"))
    with suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text("ascii").splitlines():
            key, _, number = line.partition(" ")
            if key == cached:
                left += int(number)
    return left


def _left_by_limit(process: Path) -> Iterator[int]:
    """Yield what the process's own limit of address space leaves."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    with suppress(OSError, ValueError, IndexError):
        pages = int((process / "self" / "statm").read_text("ascii").split()[0])
        yield limit - pages * os.sysconf("SC_PAGE_SIZE")

"""Memory of the host: how much of it is free, and errors before more than that is taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # where there are no such limits
    resource = None  # type: ignore[assignment]

from glnn.errors import LimitError, first_line

PROCESS = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")
UNCHECKED = 1 << 20  # bytes: to ask the system what is free takes longer than to take so many


def free_memory(process: Path = PROCESS, groups: Path = GROUPS) -> int:
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
    if nbytes <= UNCHECKED:
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
        own = Path(name.lstrip("/"))
        for folder in (own, *own.parents):
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

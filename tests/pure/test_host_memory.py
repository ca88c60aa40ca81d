"""How much of the host's memory is free, by what a system of files made for it says."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from glnn.core import process as process_module
from glnn.core.process import check_memory, free_memory, readable_bytes
from glnn.errors import LimitError

GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A system of which 8 GiB are available, without groups and limits."""
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (unlimited, unlimited))
    write(tmp_path / "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8388608 kB\n")
    return tmp_path / "proc", tmp_path / "groups"


def test_what_the_system_has_available(system: tuple[Path, Path]) -> None:
    assert free_memory(*system) == 8 * GIB


def test_a_system_that_says_nothing_sets_no_bound(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path) == sys.maxsize


def test_groups_of_the_second_version_and_those_around_them(system: tuple[Path, Path]) -> None:
    process, groups = system
    write(process / "self/cgroup", "0::/outer/inner\n")
    write(groups / "outer/inner/memory.max", "max\n")
    write(groups / "outer/memory.max", f"{3 * GIB}\n")
    write(groups / "outer/memory.current", f"{2 * GIB}\n")
    assert free_memory(*system) == GIB
    write(groups / "outer/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    assert free_memory(*system) == GIB + GIB // 2  # what was read is given up for it


def test_groups_of_the_first_version(system: tuple[Path, Path]) -> None:
    process, groups = system
    write(process / "self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    write(groups / "memory/memory.limit_in_bytes", f"{4 * GIB}\n")  # the container's own
    write(groups / "memory/memory.usage_in_bytes", f"{GIB}\n")
    write(groups / "memory/memory.stat", f"total_inactive_file {1 << 20}\n")
    assert free_memory(*system) == 3 * GIB + (1 << 20)
    write(groups / "memory/a/b/memory.limit_in_bytes", f"{GIB}\n")
    write(groups / "memory/a/b/memory.usage_in_bytes", f"{2 * GIB}\n")
    assert free_memory(*system) == 0  # what is over its limit has nothing


def test_the_limit_of_address_space(
    system: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2 * GIB, 2 * GIB))
    pages = GIB // resource.getpagesize()
    write(system[0] / "self/statm", f"{pages} 5 5 5 0 5 0\n")
    assert free_memory(*system) == GIB


def test_here_it_is_some() -> None:
    assert 1 << 20 < free_memory() < 1 << 50


def test_the_error_says_what_is_needed_and_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "free_memory", lambda: 3 << 20)
    check_memory(3 << 20, lambda: "this")
    check_memory(1 << 20, lambda: "this")
    with pytest.raises(
        LimitError,
        match=r"^this needs 4194304 bytes of the host's memory \(4.0 MiB\), "
        r"3145728 are free \(3.0 MiB\)$",
    ):
        check_memory(4 << 20, lambda: "this")


def test_few_bytes_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the system was asked")

    monkeypatch.setattr(process_module, "free_memory", asked)
    check_memory(1 << 20, lambda: "this")


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (4864, "4.8 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1536.0 MiB"),
    ],
)
def test_bytes_as_people_read_them(nbytes: int, said: str) -> None:
    assert readable_bytes(nbytes) == said

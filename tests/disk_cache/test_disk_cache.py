"""What is kept on disk: whole or not there, checked, bounded, of this user alone."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from glnn.core.disk_cache import MAGIC, STALE, SWEPT, DiskCache, EntryPart, digest, table
from glnn.core.settings import Settings
from glnn.errors import GlnnError

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

PARTS = {"one": b"abc", "none": b"", "two": bytes(range(100))}


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def file(disk: DiskCache, name: str = "programs/a") -> Path:
    assert disk.folder is not None
    return disk.folder / f"{name}.glnn-kept"


def left(disk: DiskCache) -> list[str]:
    """The files that there are."""
    assert disk.folder is not None
    return sorted(path.name for path in disk.folder.rglob("*") if path.is_file())


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_what_was_written_is_read(disk: DiskCache) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert disk.write("programs/a", {**PARTS, "array": numbers}, device="gpu")
    assert disk.read("programs/a") == {**PARTS, "array": numbers.tobytes()}
    assert disk.read("programs/b") is None and disk.read("plans/a") is None
    entry = disk.map("programs/a")
    assert entry is not None and entry.about == {"device": "gpu"}
    assert bytes(entry.part("two")) == PARTS["two"] and entry.check("two")
    assert entry.nbytes == sum(map(len, PARTS.values())) + 24
    (listed,) = disk.entries()
    assert (listed.name, listed.kind, listed.about) == ("programs/a", "programs", {"device": "gpu"})
    assert listed.nbytes == file(disk).stat().st_size


def test_it_is_this_users_alone(disk: DiskCache) -> None:
    before = os.umask(0)
    try:
        disk.write("programs/a", PARTS)
    finally:
        os.umask(before)
    assert file(disk).stat().st_mode & 0o777 == 0o600
    assert file(disk).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_not_read(disk: DiskCache, mode: int) -> None:
    disk.write("programs/a", PARTS)
    file(disk).chmod(mode)
    assert disk.read("programs/a") is None


def test_what_is_of_another_user_is_not_read(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write("programs/a", PARTS)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert disk.read("programs/a") is None and disk.map("programs/a") is None
    assert file(disk).exists(), "it is not ours to remove"


def test_what_is_old_is_read_where_nothing_can_be_written(
    disk: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write("programs/a", PARTS)
    age(file(disk), 2 * STALE)

    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert disk.read("programs/a") == PARTS and disk.map("programs/a") is not None


def test_a_link_is_not_followed(disk: DiskCache) -> None:
    disk.write("programs/b", PARTS)
    file(disk).symlink_to(file(disk, "programs/b"))
    assert disk.read("programs/a") is None and disk.read("programs/b") == PARTS


def test_every_flipped_bit_is_noticed(disk: DiskCache) -> None:
    """But in the padding, which nobody reads."""
    disk.write("programs/a", PARTS, device="gpu")
    raw = file(disk).read_bytes()
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << at % 8
        file(disk).write_bytes(flipped)
        found = disk.read("programs/a")
        assert found is None or found == PARTS
        padding = len(MAGIC) <= at < 64 or 64 + 3 <= at < 128
        assert (found is None) != padding, at
        assert file(disk).exists() == padding, "what is damaged is removed"
        file(disk).unlink(missing_ok=True)
        fd = os.open(file(disk), os.O_CREAT | os.O_WRONLY, 0o600)
        os.close(fd)


def test_every_cut_is_noticed(disk: DiskCache) -> None:
    disk.write("programs/a", PARTS)
    raw = file(disk).read_bytes()
    for length in (0, 1, len(MAGIC), 36, 100, len(raw) // 2, len(raw) - 1):
        disk.write("programs/a", PARTS)
        os.truncate(file(disk), length)
        assert disk.read("programs/a") is None and not file(disk).exists()
    disk.write("programs/a", PARTS)
    with file(disk).open("ab") as stream:
        stream.write(b"x")
    assert disk.read("programs/a") is None


@pytest.mark.parametrize(
    "places",
    [
        {"a": [0, 1 << 40, 0]},
        {"a": [-8, 8, 0]},
        {"a": [0, 1.5, 0]},
        {"a": [0, True, 0]},
        {"a": "abc"},
        {"a": [1, 2]},
        ["a"],
        None,
    ],
)
def test_a_table_that_is_none(disk: DiskCache, places: object) -> None:
    """Well under its checksum."""
    import json
    import struct
    import zlib

    disk.write("programs/a", {})
    text = json.dumps({"name": "programs/a", "about": {}, "parts": places}).encode()
    foot = struct.pack("<QQI8s", len(MAGIC), len(text), zlib.crc32(text), MAGIC)
    file(disk).write_bytes(MAGIC + text + foot)
    assert disk.read("programs/a") is None and not file(disk).exists()


def test_an_entry_under_another_name_is_none(disk: DiskCache) -> None:
    disk.write("programs/a", PARTS)
    file(disk).rename(file(disk, "programs/b"))
    assert disk.read("programs/b") is None
    assert MAGIC in table("programs/b", {}, {"x": EntryPart(8, 0, 0)}, 8)


def test_a_folder_in_its_place(disk: DiskCache) -> None:
    file(disk).mkdir(parents=True)
    assert disk.read("programs/a") is None and disk.map("programs/a") is None
    assert not disk.write("programs/a", PARTS)
    assert left(disk) == [] and disk.entries() == [] and disk.clear() == (0, 0)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    disk = DiskCache(tmp_path / "cache")
    assert not disk.write("programs/a", PARTS) and disk.read("programs/a") is None
    assert disk.entries() == [] and disk.clear() == (0, 0)
    assert (tmp_path / "cache").read_text() == "mine"


def test_nothing_is_kept_nowhere() -> None:
    disk = DiskCache(None)
    assert not disk.keeps and not disk.write("programs/a", PARTS)
    assert disk.read("programs/a") is None and disk.entries() == [] and disk.clear() == (0, 0)


@pytest.mark.parametrize("name", ["a", "programs/", "../a", "programs/../a", "programs/.a", "P/a"])
def test_what_is_no_name(disk: DiskCache, name: str) -> None:
    with pytest.raises(ValueError, match="expected an entry's name"):
        disk.read(name)


def test_what_is_not_committed_leaves_nothing(disk: DiskCache) -> None:
    disk.write("programs/a", PARTS)
    with pytest.raises(KeyboardInterrupt), disk.writer("programs/a") as draft:
        draft.append("one", b"other")
        raise KeyboardInterrupt
    dropped = disk.writer("programs/b")
    dropped.append("one", b"other")
    del dropped
    assert left(disk) == ["a.glnn-kept"] and disk.read("programs/a") == PARTS
    draft = disk.writer("programs/a")
    assert draft.append("one", b"") and draft.commit()
    assert not draft.append("two", b"") and not draft.commit()
    with pytest.raises(ValueError, match="there is a part 'one'"):
        draft.append("one", b"")


def test_what_is_removed_meanwhile_stays_with_who_has_it(disk: DiskCache) -> None:
    disk.write("programs/a", PARTS)
    entry = disk.map("programs/a")
    disk.write("programs/a", {"one": b"other"})
    disk.clear()
    assert entry is not None and entry.check("two") and bytes(entry.part("one")) == b"abc"


def test_what_was_not_used_for_longest_goes(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, most=10_000)
    for i, name in enumerate("abc"):
        disk.write(f"programs/{name}", {"x": bytes(3000)})
        age(file(disk, f"programs/{name}"), (10 - i) * STALE)
    assert disk.read("programs/a") is not None  # which notes its use
    disk.write("plans/d", {"x": bytes(3000)})
    assert [one.name for one in disk.entries()] == ["plans/d", "programs/a", "programs/c"]
    assert not disk.write("plans/e", {"x": bytes(10_000)}), "more than all may be"
    assert len(disk.entries()) == 3


def test_drafts_of_processes_that_ended_are_swept(disk: DiskCache) -> None:
    mine = disk.writer("plans/a")
    path = file(disk, "plans/a").with_name("b.0123456789abcdef.glnn-part")
    path.write_bytes(b"half")
    other = file(disk, "plans/a").with_name("notes.txt")
    other.write_text("mine")
    for one in other.parent.iterdir():
        age(one, 2 * SWEPT)
    disk.trim()
    assert not path.exists() and other.exists()
    assert mine.append("x", b"y") and mine.commit(), "one that is being written is not swept"


@pytest.mark.skipif(resource is None, reason="no limits on files")
def test_a_disk_that_is_full(disk: DiskCache) -> None:
    disk.write("programs/a", PARTS)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        assert not disk.write("programs/a", {"x": bytes(5000)})
        assert disk.write("programs/b", {"x": bytes(50)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left(disk) == ["a.glnn-kept", "b.glnn-kept"]
    assert disk.read("programs/a") == PARTS


def test_threads_that_write_and_read_the_same(disk: DiskCache) -> None:
    """As processes do: nothing is shared but the folder."""
    contents = [bytes([i]) * (1000 + i) for i in range(4)]
    wrong: list[object] = []

    def work(i: int) -> None:
        own = DiskCache(disk.folder, disk.most)
        for _ in range(30):
            own.write("programs/a", {"x": contents[i]})
            found = own.read("programs/a")
            if found is None or found["x"] not in contents:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and left(disk) == ["a.glnn-kept"]


def test_digests_differ() -> None:
    parts = [(), ("",), (b"",), ("a", "b"), ("ab",), ("a", b"b"), (1,), ("1",), (None,), ("None",)]
    assert len({digest(*one) for one in parts}) == len(parts)
    assert digest("a", 1) == digest("a", 1) and len(digest("\udcff")) == 64


def test_settings() -> None:
    assert Settings.from_environment({}).cache_size == 2 << 30
    given = Settings.from_environment({"GLNN_CACHE": "/x", "GLNN_CACHE_SIZE": "512m"})
    assert DiskCache.from_settings(given) == DiskCache(Path("/x"), 512 << 20)
    assert not DiskCache.from_settings(Settings.from_environment({"GLNN_CACHE_SIZE": "0"})).keeps
    assert not DiskCache.from_settings(Settings.from_environment({"GLNN_CACHE": ""})).keeps
    with pytest.raises(GlnnError, match="GLNN_CACHE_SIZE: expected bytes"):
        Settings.from_environment({"GLNN_CACHE_SIZE": "much"})

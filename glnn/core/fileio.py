"""Safe reading of untrusted files, and atomic writing of files."""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from glnn.errors import ModelError


@dataclass(frozen=True)
class OpenedFile:
    """A file that was opened to be read."""

    path: str
    """The absolute path; links are not resolved."""
    status: os.stat_result
    """The file's status when it was opened."""
    time: int
    """The time when it was opened, in nanoseconds since 1970."""


_OPENED: ContextVar[list[OpenedFile] | None] = ContextVar("opened_files", default=None)


@contextmanager
def record_opened_files() -> Iterator[list[OpenedFile]]:
    """Collect the files that `open_regular` opens in this thread inside the context."""
    opened: list[OpenedFile] = []
    token = _OPENED.set(opened)
    try:
        yield opened
    finally:
        _OPENED.reset(token)


def open_regular(path: str, flags: int) -> int:
    """Open `path` as an `opener` of `open`; raise OSError at once unless it is a regular file."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode):
        opened = _OPENED.get()
        if opened is not None:
            opened.append(OpenedFile(_absolute(path), status, time.time_ns()))
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "is not a file", path)


def _absolute(path: str) -> str:
    """Return the absolute form of `path`; unchanged where the working directory is gone."""
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory is gone
        return path


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file. Raises OSError where it is no regular file or has more than `most` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"holds more than {most} bytes", str(path))
    return content


def check_file(path: Path) -> None:
    """Raise ModelError unless `path` is a regular file: reading a pipe might never end."""
    try:
        if path.is_file():
            return
        fault = "is not a file" if path.exists() else "no such file"
    except (OSError, ValueError):  # a name that is too long or contains a zero byte
        fault = "not a usable file name"
    raise ModelError(f"{path}: {fault}")


def resolve_inside(folder: Path, file: Path, name: object, home: Path | None = None) -> Path:
    """Resolve `name`, a path relative to `file` that must be inside `folder` or `home`.

    Links are resolved before the check. Raises ModelError for any other path.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file}: expected a file name, got {name!r}")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ModelError(f"{file}: the path {name!r} must be relative to the model's folder")
    try:
        path = file.parent / name
        resolved, homes = path.resolve(), [folder] if home is None else [folder, home]
        is_inside = any(resolved.is_relative_to(one.resolve()) for one in homes)
    except (OSError, ValueError, RuntimeError):  # a zero byte, or a cycle of links
        raise ModelError(f"{file}: {name!r} is not a usable file name") from None
    if not is_inside:
        raise ModelError(f"{file}: the path {name!r} leaves the model's folder")
    return path


@dataclass(frozen=True)
class _NewFiles:
    """Files that writes may create, but not replace."""

    targets: frozenset[str]
    """The files, and folders whose files count, with links resolved."""
    patterns: tuple[tuple[str, str], ...]
    """Further files: a folder, and a pattern of names in it."""
    created: set[str] = field(default_factory=set)
    """The files that the writer created, which it may replace."""

    def has(self, target: Path) -> bool:
        """Return True where `target` must not exist yet."""
        path = os.path.realpath(target)
        folder, name = os.path.split(path)
        is_listed = path in self.targets or folder in self.targets
        is_listed |= any(folder == f and fnmatchcase(name, p) for f, p in self.patterns)
        return is_listed and path not in self.created


_NEW: ContextVar[_NewFiles | None] = ContextVar("new_files", default=None)


@contextmanager
def create_only(
    paths: Iterable[str | os.PathLike[str]],
    patterns: Iterable[tuple[str | os.PathLike[str], str]] = (),
) -> Iterator[None]:
    """Make this thread's writes inside the context create `paths`, never replace existing files.

    A folder among `paths` stands for the files in it. Files created inside the context may be
    replaced. patterns: further files, each a folder and a pattern of names in it.
    """
    targets = frozenset(os.path.realpath(path) for path in paths)
    resolved = tuple((os.path.realpath(folder), pattern) for folder, pattern in patterns)
    token = _NEW.set(_NewFiles(targets, resolved))
    try:
        yield
    finally:
        _NEW.reset(token)


def publish(draft: Path, target: Path) -> None:
    """Rename the finished file `draft` to `target`, replacing it atomically.

    Inside `create_only`, raises FileExistsError where `target` exists; `draft` then gets a free
    name in the same folder, which the error names. A broken link counts as missing.
    """
    new = _NEW.get()
    if new is None or not new.has(target):
        draft.replace(target)
        return
    if target.is_symlink() and not target.exists():
        target.unlink(missing_ok=True)
    try:
        _create(draft, target)
    except FileExistsError:
        kept = _rename_to_free_name(draft, target)
        reason = f"it was made meanwhile by something else; what was written is in {kept.name}"
        raise FileExistsError(errno.EEXIST, f"{reason} beside it", str(target)) from None
    new.created.add(os.path.realpath(target))


def _create(draft: Path, target: Path) -> None:
    """Rename `draft` to `target`. Raises FileExistsError where `target` exists."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # no hard links
        target.open("xb").close()
        draft.replace(target)
    else:
        draft.unlink()


def _rename_to_free_name(draft: Path, target: Path) -> Path:
    """Rename `draft` to the first free name of NAME-2, NAME-3 and so on, and return that."""
    for number in count(2):
        path = target.with_name(f"{target.stem}-{number}{target.suffix}")
        with suppress(FileExistsError):
            _create(draft, path)
            break
    return path


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` atomically at the end of the context.

    It is discarded on an exception. A link is followed. Raises OSError where `path` cannot be
    written or is no file, and what `publish` raises.
    """
    target = _target(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as stream:
            yield stream
        publish(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def make_folder(path: str | os.PathLike[str], *, parents: bool = True) -> Path:
    """Make the folder `path` where it is missing, and return it.

    parents: whether to make missing parent folders. Raises OSError where that fails, as for a
    broken link.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except FileExistsError as error:
        link = Path(error.filename)
        if link.is_symlink() and not link.exists():
            reason = f"{link} is a link to {os.readlink(link)}, which is not there"
            raise FileNotFoundError(errno.ENOENT, reason, str(path)) from None
        raise
    return folder


def try_write(path: str | os.PathLike[str]) -> None:
    """Raise OSError where `atomic_write` could not write `path`. Leaves no file behind."""
    target = _target(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.open("xb").close()
    finally:
        draft.unlink(missing_ok=True)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return `path` with links resolved.

    Raises OSError where it exists and is no file, and for a cycle of links.
    """
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a file", str(path))
    return target


ONNX_LOCATION = re.compile(rb"\n\x08location\x12([\x80-\xff]*[\x00-\x7f])")
"""A `location` entry of a tensor's external_data in an .onnx file, up to the name's length."""


def onnx_external_files(path: Path) -> set[Path]:
    """Return the files in which the .onnx file at `path` has external data.

    It needs no package onnx. Raises OSError where the file cannot be read, ValueError where it is
    empty.
    """
    found = set[Path]()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for entry in ONNX_LOCATION.finditer(content):
            length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(entry[1]))
            name = content[entry.end() : entry.end() + length]
            found.add(path.parent / name.decode("utf-8", "replace"))
    return found

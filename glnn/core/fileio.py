"""Safe reading of untrusted files, and writing of files that are there whole or not at all."""

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
    """The absolute path; links are not followed."""
    known: os.stat_result
    """The file's status when it was opened."""
    at: int
    """The time of opening, in nanoseconds since 1970."""


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
    known = os.fstat(handle)
    if stat.S_ISREG(known.st_mode):
        opened = _OPENED.get()
        if opened is not None:
            opened.append(OpenedFile(_absolute(path), known, time.time_ns()))
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
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        fault = "not a usable file name"
    raise ModelError(f"{path}: {fault}")


def resolve_inside(folder: Path, file: Path, name: object, home: Path | None = None) -> Path:
    """Resolve `name`, a path relative to `file`, which must lead into `folder` or `home`.

    Links are followed before that is checked. Raises ModelError for any other path.
    """
    if not isinstance(name, str) or not name:
        raise ModelError(f"{file}: expected a file name, got {name!r}")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ModelError(f"{file}: the path {name!r} must be relative to the model's folder")
    try:
        path = file.parent / name
        place, homes = path.resolve(), [folder] if home is None else [folder, home]
        allowed = any(place.is_relative_to(one.resolve()) for one in homes)
    except (OSError, ValueError, RuntimeError):  # a zero byte, or links in a circle
        raise ModelError(f"{file}: {name!r} is not a usable file name") from None
    if not allowed:
        raise ModelError(f"{file}: the path {name!r} leaves the model's folder")
    return path


@dataclass(frozen=True)
class _NewFiles:
    """Files that writes may create, and not replace."""

    targets: frozenset[str]
    """The files, and folders of such files, without links."""
    patterns: tuple[tuple[str, str], ...]
    """More of them: a folder, and a pattern of names there."""
    created: set[str] = field(default_factory=set)
    """Those that were created since, which are the writer's own."""

    def has(self, target: Path) -> bool:
        """Return whether `target` must not be there yet."""
        place = os.path.realpath(target)
        folder, name = os.path.split(place)
        named = place in self.targets or folder in self.targets
        named |= any(folder == there and fnmatchcase(name, of) for there, of in self.patterns)
        return named and place not in self.created


_NEW: ContextVar[_NewFiles | None] = ContextVar("new_files", default=None)


@contextmanager
def create_only(
    paths: Iterable[str | os.PathLike[str]],
    patterns: Iterable[tuple[str | os.PathLike[str], str]] = (),
) -> Iterator[None]:
    """Have this thread's writes inside the context create `paths`, never replace what is there.

    Of a folder that holds for the files in it. What a write created, later ones may replace.
    patterns: of more such files, each a folder and a pattern of names there.
    """
    targets = frozenset(os.path.realpath(path) for path in paths)
    of_names = tuple((os.path.realpath(folder), pattern) for folder, pattern in patterns)
    token = _NEW.set(_NewFiles(targets, of_names))
    try:
        yield
    finally:
        _NEW.reset(token)


def publish(draft: Path, target: Path) -> None:
    """Give the finished file `draft` its name `target`, which it replaces, atomically.

    Inside `create_only`, raises FileExistsError where `target` is there already; `draft` then gets
    a free name beside it, which the error says. A link that leads nowhere is not there.
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
        kept = _keep_beside(draft, target)
        reason = f"it was made meanwhile by something else; what was written is in {kept.name}"
        raise FileExistsError(errno.EEXIST, f"{reason} beside it", str(target)) from None
    new.created.add(os.path.realpath(target))


def _create(draft: Path, target: Path) -> None:
    """Rename `draft` to `target`. Raises FileExistsError where that is there."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # file systems and systems without hard links
        target.open("xb").close()
        draft.replace(target)
    else:
        draft.unlink()


def _keep_beside(draft: Path, target: Path) -> Path:
    """Rename `draft` to the first free one of NAME-2, NAME-3 and so on, and return that."""
    for number in count(2):
        kept = target.with_name(f"{target.stem}-{number}{target.suffix}")
        with suppress(FileExistsError):
            _create(draft, kept)
            break
    return kept


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file to write that replaces `path` atomically at the end; discard it on an exception.

    A link is followed. Raises OSError where `path` cannot be written, or exists and is no file, and
    as `publish` does.
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

    parents: whether to make the folders that it is in, too. Raises OSError where it cannot be made,
    as where it is a link that leads nowhere.
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
    """Raise OSError where `atomic_write` could not write `path`. Leaves nothing behind."""
    target = _target(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.open("xb").close()
    finally:
        draft.unlink(missing_ok=True)


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the target of the link `path`.

    Raises OSError where it exists and is no file, and for links in a circle.
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
"""An entry of a tensor's external_data in an .onnx file's bytes, up to the length of the name."""


def onnx_external_files(path: Path) -> set[Path]:
    """Return the files that the .onnx file at `path` says to have tensors' numbers.

    Commands ask for them before they write anything, without the package onnx. Raises OSError where
    the file cannot be read, ValueError where it is empty.
    """
    found = set[Path]()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for entry in ONNX_LOCATION.finditer(content):
            length = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(entry[1]))
            name = content[entry.end() : entry.end() + length]
            found.add(path.parent / name.decode("utf-8", "replace"))
    return found

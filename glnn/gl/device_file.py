"""A file in the user's cache that keeps what was found of one device."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

try:
    import fcntl
except ImportError:  # where files have no such locks
    fcntl = None  # type: ignore[assignment]

from glnn.core import fileio
from glnn.errors import printable
from glnn.gl.device_info import Capabilities

Entry = TypeVar("Entry")
TABLES = "certificates", "choices", "fastest", "limits", "verdicts"  # of glnn, whatever is in them
MOST = 4 << 20  # bytes of a file: some 10,000 entries


@dataclass(frozen=True)
class TableFile:
    """A table on disk, for people to look at."""

    table: str
    """The kind of its entries, the name of its folder."""
    path: Path
    """The file."""
    device: str | None
    """The device that it is for; None where the file is damaged."""
    entries: int
    """The number of its entries."""
    nbytes: int
    """The size of the file."""
    written: float
    """When that was last done: seconds since 1970."""


def table_files(folder: Path | None) -> list[TableFile]:
    """The tables that `folder` keeps of whatever device; other files there are passed over."""
    result: list[TableFile] = []
    for path in sorted(folder.glob("*/*.json")) if folder is not None else ():
        table = path.parent.name
        with suppress(OSError):
            known = path.stat()
            device, entries = None, 0
            try:
                text = json.loads(fileio.read_bytes(path, MOST))
                device, entries = str(text["device"]), len(text[table])
            except (ValueError, KeyError, TypeError, RecursionError):
                if table not in TABLES:  # somebody else's
                    continue
            result.append(TableFile(table, path, device, entries, known.st_size, known.st_mtime))
    return result


@dataclass(frozen=True)
class DeviceFile:
    """A table of entries by name, found on `device` by this `version` of glnn.

    path: the file; None where nothing is kept. table: the name that the file has for it. form: of
    the entries; those of others are not read.
    """

    path: Path | None
    device: str
    version: str
    table: str
    form: int

    @classmethod
    def for_device(
        cls, folder: Path | None, table: str, form: int, device: Capabilities, version: str
    ) -> DeviceFile:
        """The file that `folder` keeps for `device` and its driver's version."""
        called = f"{device.vendor} {device.renderer} {device.version_text}"
        if device.minimum:
            called += " es31-minimum"
        name = re.sub(r"[^a-z0-9.]+", "-", called.lower()).strip("-")[:150]
        path = folder / table / f"{name}.json" if folder else None
        return cls(path, called, version, table, form)

    def read(self, entry: Callable[[Any], Entry]) -> dict[str, Entry]:
        """Read the entries of the file; return none where it is missing or of another version.

        entry: makes one of what JSON has, or raises. What another version found is not used, since
        kernels change. A file that cannot be read is passed over with a warning.
        """
        if self.path is None:
            return {}
        known = self.form, self.device, self.version
        try:
            text = json.loads(fileio.read_bytes(self.path, MOST))
            if (text["form"], text["device"], text["glnn"]) != known:
                return {}
            return {key: entry(value) for key, value in text[self.table].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except Exception as error:  # damage can raise nearly anything: RecursionError, KeyError
            why = getattr(error, "strerror", None) or error  # without the path once more
            fault = printable(f"{self.path}: not used, as it is damaged: {why!s:.200}")
            warnings.warn(fault, stacklevel=4)
            return {}

    def reread(self, entry: Callable[[Any], Entry]) -> dict[str, Entry]:
        """Read the file anew without warnings, which its loader has been given already."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.read(entry)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file's folder, so that nobody writes the file between a read and a write.

        Where folders cannot be locked, the last to write the file wins. Raises OSError where there
        can be no such folder.
        """
        if self.path is None or fcntl is None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # some file systems lock nothing
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def write(self, entries: Mapping[str, Any]) -> None:
        """Write the file whole or not at all. Raises OSError where it cannot be written."""
        if self.path is None:
            return
        known = {"form": self.form, "device": self.device, "glnn": self.version}
        text = json.dumps({**known, self.table: dict(sorted(entries.items()))}, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Remove the file. Raises OSError where it cannot be removed."""
        if self.path is not None:
            with suppress(NotADirectoryError):  # then it keeps nothing
                self.path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Raise OSError where nothing could be written."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{self.path.name} is a folder")
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass

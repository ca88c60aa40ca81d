"""A file in the user's cache with a table of results for one device."""

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
TABLES = "certificates", "choices", "fastest", "limits", "verdicts"  # glnn's, even if damaged
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
    """Return the tables in `folder`, of all devices; other files are ignored."""
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
                if table not in TABLES:  # another program's
                    continue
            result.append(TableFile(table, path, device, entries, known.st_size, known.st_mtime))
    return result


@dataclass(frozen=True)
class DeviceFile:
    """A table of entries by name, of results on `device` by this `version` of glnn.

    path: the file; None where nothing is stored. table: the table's name in the file. form: the
    form of the entries; a file of another form is not read.
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
        """Return the file in `folder` for `device` and its driver's version."""
        device_name = f"{device.vendor} {device.renderer} {device.version_text}"
        if device.minimum:
            device_name += " es31-minimum"
        name = re.sub(r"[^a-z0-9.]+", "-", device_name.lower()).strip("-")[:150]
        path = folder / table / f"{name}.json" if folder else None
        return cls(path, device_name, version, table, form)

    def read(self, entry: Callable[[Any], Entry]) -> dict[str, Entry]:
        """Read the entries of the file; return none where it is missing or of another version.

        entry: returns an entry from its JSON data, or raises. Results of another version are not
        used, since kernels change. A file that cannot be read is ignored with a warning.
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
            why = getattr(error, "strerror", None) or error  # without the path, which precedes it
            fault = printable(f"{self.path}: not used, as it is damaged: {why!s:.200}")
            warnings.warn(fault, stacklevel=4)
            return {}

    def reread(self, entry: Callable[[Any], Entry]) -> dict[str, Entry]:
        """Read the file again, without the warnings that the first read gave."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.read(entry)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the file's folder, so that no other process writes the file between a read and a
        write.

        Where folders cannot be locked, the last process to write the file wins. Raises OSError
        where the folder cannot be created.
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
        """Write the file atomically. Raises OSError where it cannot be written."""
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
            with suppress(NotADirectoryError):  # then there is no file
                self.path.unlink(missing_ok=True)

    def probe(self) -> None:
        """Raise OSError where nothing could be written."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{self.path.name} is a folder")
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass

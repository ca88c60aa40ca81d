"""A file in the user's cache that keeps what was found of one device."""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glnn.device import Capabilities


@dataclass(frozen=True)
class DeviceFile:
    """Entries by name, found on `device` by this `version` of glnn.

    path: the file; None where nothing is kept. form: of the entries; others are not read.
    """

    path: Path | None
    device: str
    version: str
    form: int

    @classmethod
    def of(
        cls, folder: Path | None, kind: str, device: Capabilities, version: str, form: int
    ) -> DeviceFile:
        """The file of this `kind` that `folder` keeps for `device` and its driver's version."""
        called = f"{device.vendor} {device.renderer} {device.version_text}"
        if device.minimum:
            called += " es31-minimum"
        name = re.sub(r"[^a-z0-9.]+", "-", called.lower()).strip("-")[:150]
        return cls(folder / kind / f"{name}.json" if folder else None, called, version, form)

    def read(self, check: Callable[[Any], object]) -> dict[str, Any]:
        """What the file keeps: nothing where there is none, or one of another version.

        check: raises on an entry that is malformed. A file that cannot be read is passed over
        with a warning.
        """
        if self.path is None:
            return {}
        try:
            text = json.loads(self.path.read_text("utf-8"))
            if (text["form"], text["device"], text["glnn"]) != (
                self.form,
                self.device,
                self.version,
            ):
                return {}
            for value in text["entries"].values():
                check(value)
            return dict(text["entries"])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            warnings.warn(f"{self.path}: not used, as it is damaged: {error}", stacklevel=3)
            return {}

    def write(self, entries: Mapping[str, Any]) -> None:
        """Write the file whole or not at all. Raises OSError where it cannot be written."""
        if self.path is None:
            return
        known = {"form": self.form, "device": self.device, "glnn": self.version}
        text = json.dumps({**known, "entries": dict(sorted(entries.items()))}, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def write_if_possible(self, entries: Mapping[str, Any]) -> None:
        """`write`, where the cache may be written: what is not kept is found again."""
        with suppress(OSError):
            self.write(entries)

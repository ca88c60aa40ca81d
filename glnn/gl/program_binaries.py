"""Binaries of compiled programs on disk, for later processes."""

from __future__ import annotations

import ctypes
import json
import logging
from collections.abc import Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

from glnn.core.cached_property import cached_property
from glnn.core.disk_cache import DiskCache, digest
from glnn.errors import DeviceError
from glnn.gl.context import GlFunctions
from glnn.gl.device_info import Capabilities
from glnn.version import VERSION

LOG = logging.getLogger(__name__)
FORM = 1  # of the entries
LINKED, LENGTH, FORMATS = 0x8B82, 0x8741, 0x87FE
CAPTURED = 0x8C83
MOST = 32 << 20  # bytes of a binary
KIND = "programs"


@dataclass(frozen=True)
class LoadedProgram:
    """A program that was loaded from its binary."""

    name: str
    """The program's name for people: its shader."""
    program: int
    """GL's name of it."""
    varyings: tuple[str, ...]
    """The varyings that it captures; none for a compute program."""


class ProgramBinaries:
    """The binaries of one device's programs on `disk`.

    A driver loads only its own binaries: one that it refuses, as after an update, is removed, and
    the program is compiled again.
    """

    def __init__(self, gl: GlFunctions, offers: Capabilities, disk: DiskCache) -> None:
        self._gl, self._offers, self._disk = gl, offers, disk

    @cached_property
    def is_supported(self) -> bool:
        """Return True where program binaries are cached and the driver supports getting and loading
        them.
        """
        if not self._disk.keeps:
            return False
        try:
            for name in ("glGetProgramBinary", "glProgramBinary", "glProgramParameteri"):
                self._gl.slow(name, None)
        except DeviceError:
            return False
        count = c_int()  # stays 0 where GL does not know FORMATS
        self._gl.slow("glGetIntegerv", None, c_uint, c_void_p)(FORMATS, byref(count))
        self._drain()
        return count.value > 0

    def key(self, stage: str, name: str, text: str, varyings: Sequence[str] = ()) -> str | None:
        """Return the key of the program of a shader's text; None where nothing is stored.

        name: the shader's name, part of the key: errors must not name a file of another folder.
        """
        if not self.is_supported:
            return None
        offers = self._offers
        driver = offers.vendor, offers.renderer, offers.api, offers.version_text, offers.glsl_text
        return digest(FORM, *driver, VERSION, stage, name, text, *varyings)

    def load(self, key: str, stage: str | None = None) -> LoadedProgram | None:
        """Load the program of `key`; None where it is not stored or the driver refuses it.

        stage: the stage that it must have, None for any. Only where GL may be used, as `save`.
        """
        stored = self._disk.read(f"{KIND}/{key}") if self.is_supported else None
        if stored is None:
            return None
        try:
            known = json.loads(stored["known"])
            name, form, varyings = str(known["name"]), int(known["form"]), tuple(known["varyings"])
            if stage not in (None, known["stage"]) or not 0 <= form < 1 << 32:
                raise ValueError("another stage, or no number")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._refuse(key, str(error))
            return None
        if not self._offers.compute and known["stage"] == "compute":
            return None
        program = self._link(form, stored.get("binary", b""))
        if program is None:
            self._refuse(key, "the driver refuses it")
            return None
        if self._get_parameter(program, CAPTURED) != len(varyings):
            self._delete(program)
            self._refuse(key, "it captures something else")
            return None
        return LoadedProgram(name, program, varyings)

    def _refuse(self, key: str, why: str) -> None:
        LOG.debug("the program %s is not used: %s", key, why)
        self._disk.remove(f"{KIND}/{key}")

    def _link(self, form: int, binary: bytes) -> int | None:
        """Return the program of `binary`; None where the driver refuses it."""
        program: int = self._gl.slow("glCreateProgram", c_uint)()
        try:
            put = self._gl.slow("glProgramBinary", None, c_uint, c_uint, c_void_p, c_int)
            put(program, form, ctypes.create_string_buffer(binary, len(binary)), len(binary))
            if self._get_parameter(program, LINKED):
                return program
        except BaseException:
            self._delete(program)
            raise
        self._delete(program)
        self._drain()  # some drivers report a refusal as an error, too
        return None

    def save(
        self, key: str, stage: str, name: str, program: int, varyings: Sequence[str] = ()
    ) -> bool:
        """Store the binary of a program that was linked to be retrievable; return False where the
        driver or the disk does not allow it.
        """
        size = self._get_parameter(program, LENGTH)
        if not 0 < size <= MOST:
            return False
        length, form = c_int(), c_uint()
        binary = ctypes.create_string_buffer(size)
        get = self._gl.slow("glGetProgramBinary", None, c_uint, c_int, *[c_void_p] * 3)
        get(program, size, byref(length), byref(form), binary)
        if self._drain() or not 0 < length.value <= size:
            return False
        known: dict[str, Any] = {"name": name, "stage": stage, "form": form.value}
        known["varyings"] = list(varyings)
        content = {
            "known": json.dumps(known).encode(),
            "binary": memoryview(binary)[: length.value],
        }
        offers = self._offers
        device = f"{offers.vendor} {offers.renderer} {offers.version_text}"
        about = {"what": name, "device": device, "glnn": VERSION}
        return self._disk.write(f"{KIND}/{key}", content, **about)

    def _get_parameter(self, program: int, what: int) -> int:
        value = c_int()
        ask: Any = self._gl.slow("glGetProgramiv", None, c_uint, c_uint, c_void_p)
        ask(program, what, byref(value))
        return value.value

    def _delete(self, program: int) -> None:
        self._gl.slow("glDeleteProgram", None, c_uint)(program)

    def _drain(self) -> bool:
        """Clear GL's error flags; return True where one was set."""
        ask = self._gl.slow("glGetError", c_uint)
        errors = 0
        while errors < 8 and ask():  # a lost context repeats
            errors += 1
        return errors > 0

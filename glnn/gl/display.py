"""Capabilities of an EGL display and the attributes to open contexts with, also by old EGL
versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from glnn.gl.context import StepError, Version

RENDERABLE_TYPE, SURFACE_TYPE = 0x3040, 0x3033
MAJOR_VERSION, MINOR_VERSION, PROFILE_MASK, CORE_PROFILE = 0x3098, 0x30FB, 0x30FD, 0x1
BITS = {
    "EGL_PBUFFER_BIT": 0x0001,
    "EGL_OPENGL_ES2_BIT": 0x0004,
    "EGL_OPENGL_BIT": 0x0008,
    "EGL_OPENGL_ES3_BIT": 0x0040,
}


@dataclass(frozen=True)
class Display:
    """A display's `extensions` and the `text` that begins with its version of EGL."""

    text: str
    extensions: frozenset[str]

    @property
    def version(self) -> tuple[int, int]:
        found = re.match(r"(\d+)\.(\d+)", self.text)
        return (int(found[1]), int(found[2])) if found else (1, 4)

    @property
    def surfaceless(self) -> bool:
        """Return True where a context can be current without a surface."""
        return "EGL_KHR_surfaceless_context" in self.extensions

    @property
    def needs_config(self) -> bool:
        """Return True where a context, or the surface that it needs, needs a config."""
        return not (self.surfaceless and "EGL_KHR_no_config_context" in self.extensions)

    @property
    def _any_version(self) -> bool:
        """Return True where contexts can be opened with a given minor version."""
        return self.version >= (1, 5) or "EGL_KHR_create_context" in self.extensions

    def attributes(self, version: Version) -> tuple[int, ...]:
        """Return the attributes for eglCreateContext. Raises StepError where `version` cannot be
        requested.
        """
        if self._any_version:
            profile = (PROFILE_MASK, CORE_PROFILE) if version.api == "gl" else ()
            return (MAJOR_VERSION, version.major, MINOR_VERSION, version.minor, *profile)
        if version.api == "gl":
            old = "EGL {}.{}".format(*self.version)
            raise StepError("eglCreateContext", f"this {old} has no EGL_KHR_create_context")
        return (MAJOR_VERSION, version.major)  # any ES 3 then

    def config(self, version: Version) -> tuple[int, ...]:
        """Return the attributes for eglChooseConfig."""
        surface = 0 if self.surfaceless else BITS["EGL_PBUFFER_BIT"]
        return (SURFACE_TYPE, surface, RENDERABLE_TYPE, BITS[self._kind(version)])

    def no_config(self, version: Version) -> str:
        """Return the error message for a display without a matching config."""
        also = " and EGL_PBUFFER_BIT (there is no EGL_KHR_surfaceless_context)"
        return f"no config has {self._kind(version)}{'' if self.surfaceless else also}"

    def _kind(self, version: Version) -> str:
        if version.api == "gl":
            return "EGL_OPENGL_BIT"
        return "EGL_OPENGL_ES3_BIT" if self._any_version else "EGL_OPENGL_ES2_BIT"

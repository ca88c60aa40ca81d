"""The libraries that hold EGL and GL ES: a vendor's lie under other names than Mesa's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable

from glnn.gl.context import StepError

ON_DEBIAN = "on Debian: apt install libegl1 libgles2 libgl1-mesa-dri"
EGL_NAMES = {
    "win32": ("libEGL.dll",),
    "darwin": ("libEGL.dylib",),
    # The last two are Android's, which Python takes for Linux before 3.13.
    "linux": ("libEGL.so.1", "libEGL.so", "/system/lib64/libEGL.so", "/system/lib/libEGL.so"),
}
GLES_NAMES = {
    "win32": ("libGLESv2.dll",),
    "darwin": ("libGLESv2.dylib",),
    "linux": (
        *("libGLESv2.so.2", "libGLESv2.so", "libGLESv3.so"),
        *("/system/lib64/libGLESv3.so", "/system/lib64/libGLESv2.so"),
        *("/system/lib/libGLESv3.so", "/system/lib/libGLESv2.so"),
    ),
}


def load_egl(path: str | None, functions: Iterable[str]) -> ctypes.CDLL:
    """The EGL library at `path`, or the first under its usual names, that has all `functions`.

    Raises StepError, which says all that was tried.
    """
    return _load("EGL", "GLNN_EGL", path, EGL_NAMES, tuple(functions))


def load_gles(path: str | None) -> ctypes.CDLL:
    """The GL ES library, likewise."""
    return _load("GL ES", "GLNN_GLES", path, GLES_NAMES, ("glGetString",))


def _load(
    what: str,
    variable: str,
    path: str | None,
    names: dict[str, tuple[str, ...]],
    functions: tuple[str, ...],
) -> ctypes.CDLL:
    tried: list[str] = []
    for name in (path,) if path else names.get(sys.platform, names["linux"]):
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            text = str(error)
            tried.append(text if text.startswith(name) else f"{name}: {text}")
            continue
        missing = [function for function in functions if not hasattr(library, function)]
        if not missing:
            return library
        tried.append(f"{name}: it has no {', '.join(missing)}")
    advice = "" if path else f"; {ON_DEBIAN}; a driver's own library: {variable}=path"
    raise StepError(f"load {variable if path else what}", "; ".join(tried) + advice)

"""The only place where glnn reads environment variables.

Except that glnn/onnxruntime/standin/sitecustomize.py, too, reads `GLNN_ONNXRUNTIME` as Python
starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glnn.core.redaction import redact_setting
from glnn.errors import GlnnError, shown, suggestion

WAITS = ("block", "spin", "sleep")
PRIORITIES = ("normal", "low")
BACKENDS = ("compute", "feedback", "cpu")
"""The backends, in the order in which `auto` tries them."""
NOTED = ("GLNN_", "MESA_", "LIBGL_", "GALLIUM_", "EGL_", "__EGL_", "LP_", "ZINK_", "ANGLE_")
"""Prefixes of the environment variables that a fault report lists."""


@dataclass(frozen=True)
class Settings:
    """The settings of glnn from environment variables.

    gpu: `GLNN_GPU`, an index or a part of the renderer's name; empty for the first that opens.
    limits: `GLNN_LIMITS`, `es31-minimum` or empty.
    debug: `GLNN_DEBUG`, anything but empty or `0` checks GL for errors after every step.
    cache: `GLNN_CACHE`, the folder of tuning results and of the cache of programs and plans; by
        default the user's cache folder, and no folder if empty.
    cache_size: `GLNN_CACHE_SIZE`, the most bytes of cached programs and plans, also as 512K, 512M
        or 4G; 0 turns the cache off; by default 2G.
    trust: `GLNN_TRUST`, anything but empty or `0` uses kernels before they are checked with NumPy.
    launch: `GLNN_LAUNCH`, the most seconds that one launch should take; 0 for no limit; by default
        0.1 where the device's driver may abort longer ones.
    memory: `GLNN_MEMORY`, the most bytes of device memory for a plan, also as 512K, 512M or 4G; by
        default the memory that the device reports as free.
    kernels: `GLNN_KERNELS`, a folder with the user's kernels; by default none.
    backends: `GLNN_BACKEND`, the backends that `auto` tries, in order, separated by commas; empty
        or `auto` for its own choice.
    wait: `GLNN_WAIT`, how the host waits for a device: `block` (in the driver), `spin` or `sleep`.
    priority: `GLNN_PRIORITY`, `low` to let other programs run first, else `normal`.
    api_key: `GLNN_API_KEY`, the key that clients of `glnn serve` must send; by default none.
    """

    gpu: str | None = None
    limits: str | None = None
    debug: bool = False
    cache: Path | None = None
    cache_size: int = 2 << 30
    memory: int | None = None
    trust: bool = False
    launch: float | None = None
    kernels: Path | None = None
    backends: tuple[str, ...] = ()
    wait: str = "block"
    priority: str = "normal"
    api_key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        return cls(
            gpu=environment.get("GLNN_GPU") or None,
            limits=environment.get("GLNN_LIMITS") or None,
            debug=environment.get("GLNN_DEBUG", "0") not in ("", "0"),
            cache=_cache(environment.get("GLNN_CACHE")),
            kernels=_folder("GLNN_KERNELS", environment.get("GLNN_KERNELS", "")),
            cache_size=_default(_bytes("GLNN_CACHE_SIZE", environment), cls.cache_size),
            memory=_bytes("GLNN_MEMORY", environment),
            trust=environment.get("GLNN_TRUST", "0") not in ("", "0"),
            launch=_launch(environment.get("GLNN_LAUNCH", "")),
            backends=_backends(environment.get("GLNN_BACKEND", "")),
            wait=_one_of("GLNN_WAIT", environment, WAITS),
            priority=_one_of("GLNN_PRIORITY", environment, PRIORITIES),
            api_key=environment.get("GLNN_API_KEY") or None,
        )


@dataclass(frozen=True)
class Libraries:
    """The GL libraries that environment variables specify for this process.

    egl: `GLNN_EGL`, gles: `GLNN_GLES`, each a path or a name for the dynamic linker that replaces
        the usual names; by default None.
    """

    egl: str | None = None
    gles: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Libraries:
        return cls(environment.get("GLNN_EGL") or None, environment.get("GLNN_GLES") or None)


@dataclass(frozen=True)
class StandIn:
    """The setting that allows glnn to stand in for onnxruntime.

    wanted: False where `GLNN_ONNXRUNTIME` is `0`.
    """

    wanted: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> StandIn:
        return cls(environment.get("GLNN_ONNXRUNTIME") != "0")


def describe_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of glnn and of GL's libraries, for fault reports.

    Paths and people's names in values are redacted (`core.redaction`); API keys are left out.
    """
    named = {
        name: text
        for name, text in environment.items()
        if name.startswith(NOTED) and text and not name.endswith("_KEY")
    }
    return {
        name: redact_setting(name, text, environment)[:80] for name, text in sorted(named.items())
    }


def _cache(folder: str | None) -> Path | None:
    if folder is None:
        if sys.platform == "linux":  # without the import of platformdirs
            base = os.environ.get("XDG_CACHE_HOME", "")
            return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "glnn"
        import platformdirs

        return platformdirs.user_cache_path("glnn", appauthor=False)
    return _folder("GLNN_CACHE", folder)


def _folder(variable: str, path: str) -> Path | None:
    try:
        return Path(path).expanduser() if path else None
    except RuntimeError:
        message = f"{variable}: expected a folder, got {path!r}, a home that is not known"
        raise GlnnError(message) from None


def _launch(text: str) -> float | None:
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise GlnnError(f"GLNN_LAUNCH: expected seconds, as in 0.1, or 0, got {text!r}")
    return seconds


def _backends(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ("auto",):
        return ()
    if unknown := [name for name in names if name not in BACKENDS]:
        known = ", ".join(BACKENDS)
        message = f"GLNN_BACKEND: expected auto, {known}, got {shown(unknown[0])}"
        raise GlnnError(message + meant_backend(unknown[0]))
    return names


def meant_backend(name: str) -> str:
    """Return a hint which backend the unknown `name` may mean, for an error; empty without any."""
    if name.lower() in ("gpu", "cuda", "gl", "gles", "opengl", "egl", "vulkan", "opencl"):
        return "; compute is the GPU"
    return suggestion(name, ("auto", *BACKENDS))


def _one_of(variable: str, environment: Mapping[str, str], choices: tuple[str, ...]) -> str:
    text = environment.get(variable, "")
    if text and text not in choices:
        raise GlnnError(f"{variable}: expected {', '.join(choices)}, got {shown(text)}")
    return text or choices[0]


def _bytes(variable: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(variable, "")
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,18})([KMG]?)", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise GlnnError(f"{variable}: expected bytes, as in 4096, 512M or 4G, got {shown(text)}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()]


def _default(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value

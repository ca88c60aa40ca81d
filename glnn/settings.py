"""Every environment variable glnn reads, read in this one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    gpu: `GLNN_GPU`, an index or a part of the renderer's name; empty means the first that opens.
    limits: `GLNN_LIMITS`, `es31-minimum` or empty.
    debug: `GLNN_DEBUG`, anything but empty or `0` checks GL for errors after every step.
    cache: `GLNN_CACHE`, the folder for what tuning found; the user's cache folder unless given,
        and none if empty.
    """

    gpu: str | None = None
    limits: str | None = None
    debug: bool = False
    cache: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        return cls(
            gpu=environment.get("GLNN_GPU") or None,
            limits=environment.get("GLNN_LIMITS") or None,
            debug=environment.get("GLNN_DEBUG", "0") not in ("", "0"),
            cache=_cache(environment.get("GLNN_CACHE")),
        )


def _cache(folder: str | None) -> Path | None:
    if folder is None:
        return user_cache_path("glnn", appauthor=False)
    return Path(folder).expanduser() if folder else None

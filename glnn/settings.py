"""Every environment variable glnn reads, read in this one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    gpu: `GLNN_GPU`, an index or a part of the renderer's name; empty means the first that opens.
    limits: `GLNN_LIMITS`, `es31-minimum` or empty.
    debug: `GLNN_DEBUG`, anything but empty or `0` checks GL for errors after every step.
    """

    gpu: str | None = None
    limits: str | None = None
    debug: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        return cls(
            gpu=environment.get("GLNN_GPU") or None,
            limits=environment.get("GLNN_LIMITS") or None,
            debug=environment.get("GLNN_DEBUG", "0") not in ("", "0"),
        )

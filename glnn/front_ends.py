"""Registry of front ends: modules that read, write and import models, imported on first use.

They are named in one place, `glnn/__init__.py`: what reads ONNX or imports PyTorch takes long to
import, and PyTorch may not be installed. So a part of glnn may ask for a front end above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_MODULES: dict[str, str] = {}


def register(modules: Mapping[str, str]) -> None:
    """Add front ends: the names of their modules, by what they do, as "read onnx"."""
    _MODULES.update(modules)


def front_end(task: str) -> Any:
    """Import the module that does `task`, and return it.

    Raises ImportError where a package that it needs is not installed, KeyError for an unknown task.
    """
    return import_module(_MODULES[task])

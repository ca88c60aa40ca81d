"""Registry of modules that are imported on first use, by what they do.

`glnn/__init__.py` names them, in one place. So layers build graphs without importing the compiler,
and no model has to import what reads ONNX or PyTorch, which takes long or may not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_MODULES: dict[str, str] = {}


def register(modules: Mapping[str, str]) -> None:
    """Add modules: their names by what they do, as "read onnx"."""
    _MODULES.update(modules)


def module_for(task: str) -> Any:
    """Import the module that does `task`, and return it.

    Raises ImportError where a package that it needs is not installed, KeyError for an unknown task.
    """
    return import_module(_MODULES[task])


def registered(beginning: str) -> list[str]:
    """Return the rest of each task that begins so."""
    return [task.removeprefix(beginning) for task in _MODULES if task.startswith(beginning)]

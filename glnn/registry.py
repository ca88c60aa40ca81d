"""Registry of modules that are imported on first use, by task.

`glnn/__init__.py` registers them. So layers build graphs without importing the compiler, and models
do not import the readers of ONNX and PyTorch, which take long to import or may not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_MODULES: dict[str, str] = {}


def register(modules: Mapping[str, str]) -> None:
    """Add modules: their names by task, as "read onnx"."""
    _MODULES.update(modules)


def module_for(task: str) -> Any:
    """Import the module that does `task`, and return it.

    Raises ImportError where a package that it needs is not installed, KeyError for an unknown task.
    """
    return import_module(_MODULES[task])


def registered(beginning: str) -> list[str]:
    """Return the tasks with the prefix `beginning`, without it."""
    return [task.removeprefix(beginning) for task in _MODULES if task.startswith(beginning)]

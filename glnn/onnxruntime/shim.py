"""Makes `import onnxruntime` give glnn.onnxruntime, in this process and in those that it starts.

No installed package is changed. In this process the first finder of `sys.meta_path` resolves
onnxruntime and its submodules to glnn's modules, the same objects. `FOLDER` is put on `sys.path`,
for `importlib.metadata`, and on PYTHONPATH, so that started processes do the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from glnn.core.settings import StandIn
from glnn.errors import GlnnError

if TYPE_CHECKING:
    from _typeshed.importlib import MetaPathFinderProtocol

NAME = "onnxruntime"
PACKAGE = "glnn.onnxruntime"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "standin")
"""Folder that `sys.path` and PYTHONPATH are given."""


class Alias:
    """Loader that returns an existing module of glnn under another name."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._module = import_module(self._target)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # Python has set that of the other name


class Finder:
    """Finder that resolves onnxruntime and its submodules to those of glnn.onnxruntime."""

    stands_for = NAME

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        first, dot, rest = name.partition(".")
        if first != NAME:
            return None
        own_name = f"{PACKAGE}{dot}{rest}"
        result = find_spec(own_name)
        if result is None:
            return None  # other finders fail, too, as they search glnn's folder
        spec = ModuleSpec(name, Alias(own_name), origin=result.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = result.submodule_search_locations
        return spec


def install() -> bool:
    """Make `import onnxruntime` give glnn's, in this process and in those that it starts.

    Idempotent. Returns False, with nothing changed, where `GLNN_ONNXRUNTIME=0` forbids it. Raises
    GlnnError where another onnxruntime was imported already, whose classes would remain in use.
    """
    if not StandIn.from_environment().wanted:
        return False
    imported = sys.modules.get(NAME)
    if imported is not None and imported is not sys.modules[PACKAGE]:
        where = getattr(imported, "__file__", None) or "an unknown place"
        raise GlnnError(
            f"expected no onnxruntime before glnn.onnxruntime.install(), but one was imported"
            f" from {where}: call it before all other imports, or run the program by"
            f" `python -m glnn.onnxruntime`"
        )
    sys.meta_path[:] = [Finder(), *_other_finders()]
    if FOLDER not in sys.path:
        sys.path.insert(1, FOLDER)  # as PYTHONPATH's entries: behind the program's folder
    os.environ["PYTHONPATH"] = python_path(os.environ.get("PYTHONPATH", ""))
    return True


def uninstall() -> None:
    """Undo `install`: the next import of onnxruntime finds the installed package.

    Modules that have imported it already keep glnn's.
    """
    package = sys.modules[PACKAGE]
    sys.meta_path[:] = _other_finders()
    if sys.modules.get(NAME) is package:
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    remaining = os.pathsep.join(path for path in paths if path != FOLDER)
    if remaining:
        os.environ["PYTHONPATH"] = remaining
    else:
        os.environ.pop("PYTHONPATH", None)


def python_path(paths: str) -> str:
    """Return `paths`, a PYTHONPATH, with FOLDER in front.

    The folder of the package glnn follows where only `sys.path[0]` has it, as in a checkout that is
    not installed: programs that are started have another `sys.path[0]`.
    """
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(FOLDER)))
    folders = [FOLDER] if checkout in sys.path[1:] else [FOLDER, checkout]
    listed = paths.split(os.pathsep) if paths else []
    return os.pathsep.join([*folders, *(path for path in listed if path not in folders)])


def _other_finders() -> list[MetaPathFinderProtocol]:
    """Return the finders that are not glnn's."""
    return [one for one in sys.meta_path if getattr(one, "stands_for", None) != NAME]

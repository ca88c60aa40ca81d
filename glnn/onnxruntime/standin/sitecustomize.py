"""Run at the start of every Python with this folder on PYTHONPATH: makes onnxruntime glnn's.

It imports as little as possible, since every Python that a program starts runs it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))


class LateFinder:
    """Finder that replaces itself by glnn's finder when onnxruntime is imported."""

    stands_for = "onnxruntime"

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != self.stands_for:
            return None
        from importlib import import_module

        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            shim = import_module("glnn.onnxruntime.shim")
        except ModuleNotFoundError as missing:
            if missing.name != "glnn":
                raise
            from warnings import warn

            sys.path[:] = [one for one in sys.path if one != HERE]
            text = f"{sys.executable} has no glnn: its onnxruntime is ONNX Runtime, if it has that"
            warn(text, RuntimeWarning, stacklevel=2)
            return None
        result: ModuleSpec | None = shim.Finder().find_spec(name) if shim.install() else None
        return result


def run_hidden_sitecustomize() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    place = sys.path.index(HERE)
    this_module = sys.modules.pop(__name__)
    del sys.path[place]
    try:
        __import__(__name__)
    except ModuleNotFoundError as missing:
        if missing.name != __name__:
            raise
        sys.modules[__name__] = this_module
    finally:
        sys.path.insert(place, HERE)


if __name__ == "sitecustomize" and HERE in sys.path:
    run_hidden_sitecustomize()
    if (
        os.environ.get("GLNN_ONNXRUNTIME") == "0"
    ):  # as in glnn.core.settings, which is not imported here
        sys.path.remove(HERE)
    else:
        sys.meta_path.insert(0, LateFinder())

"""glnn.onnxruntime by the name onnxruntime, where no finder of glnn's was asked before.

A process that `python -I` started, or that was given `sys.path` by another, has not run
sitecustomize.py.
"""

from __future__ import annotations

import sys
from importlib import import_module

from glnn.onnxruntime.shim import FOLDER, NAME, install

if __name__ == NAME:
    del sys.modules[NAME]
    if install():
        sys.modules[NAME] = import_module("glnn.onnxruntime")
    else:
        sys.path[:] = [path for path in sys.path if path != FOLDER]
        import_module(NAME)

"""glnn.onnxruntime under the name onnxruntime, for processes without glnn's finder.

These have not run sitecustomize.py: they were started with `python -I`, or got `sys.path` from
another process.
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

"""PyTorch's Triton and Mesa's CPU driver in one process.

Both bring LLVM. Mesa's loader (22.3.6) opens its driver with RTLD_GLOBAL, so that what is loaded
after it finds Mesa's LLVM first: Triton's library is then mixed of two, and ends the process by a
segmentation fault. PyTorch loads it late, at the first optimiser or compiled function.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

OF_LLVM = "LLVMContextCreate"
"""A function that a process has for all to see where some library brought LLVM so."""


def load_triton() -> None:
    """Load Triton's library, where PyTorch was imported and may do it later.

    To be called before GL is opened, and, since another may have opened it, before PyTorch does
    more than count. Where all see an LLVM already, Triton's looks at its own names first. A library
    that is loaded stays as it is; Python's import of it finds that one. Its code in Python is not
    imported, and nothing is raised: PyTorch does without Triton, too.
    """
    if "torch" not in sys.modules or not hasattr(os, "RTLD_NOW"):
        return
    with suppress(Exception):
        spec = find_spec("triton")
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder, "_C").glob("libtriton*.so")):
                ctypes.CDLL(str(path), mode=_mode())


def _mode() -> int:
    seen = hasattr(ctypes.CDLL(None), OF_LLVM)
    return os.RTLD_NOW | (getattr(os, "RTLD_DEEPBIND", 0) if seen else 0)

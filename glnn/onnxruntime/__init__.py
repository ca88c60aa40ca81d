"""ONNX Runtime's names, by glnn: `import glnn.onnxruntime as onnxruntime`.

glnn runs every model, whichever providers a program asks for; docs/onnxruntime.md says what is
honoured. onnxruntime need not be installed. The names are imported when the first of them is read,
as `python -m glnn.onnxruntime`, which starts a program, needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glnn.onnxruntime.names import *  # noqa: F403


def __getattr__(name: str) -> Any:
    names = vars(import_module("glnn.onnxruntime.names"))
    for one in [*names["__all__"], "__all__", "__author__"]:
        globals().setdefault(one, names[one])  # a program's assignments stay
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("glnn.onnxruntime.names").__all__})

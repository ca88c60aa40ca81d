"""Neural networks on OpenGL ES.

All names are imported on first use: `import glnn` opens no GL context and imports no NumPy.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glnn.registry import register
from glnn.version import VERSION

if TYPE_CHECKING:
    from glnn import errors, filters, images, kernels, layers, ops, training
    from glnn.core.progress_bar import progress
    from glnn.generation import LanguageModel, SpeechToText
    from glnn.gl import Device
    from glnn.model import Model
    from glnn.model.load import load
    from glnn.model.weight_files import load_weights, save_weights
    from glnn.runtime.device_array import DeviceArray
    from glnn.session import InferenceSession

__version__ = VERSION
__all__ = [
    "Device",
    "DeviceArray",
    "InferenceSession",
    "LanguageModel",
    "Model",
    "SpeechToText",
    "__version__",
    "errors",
    "filters",
    "images",
    "kernels",
    "layers",
    "load",
    "load_weights",
    "ops",
    "progress",
    "save_weights",
    "training",
]

register(
    {
        "run graphs": "glnn.compiler",
        "read onnx": "glnn.model.onnx_format",
        "write glnn": "glnn.model.json_format",
        "write onnx": "glnn.model.onnx_format",
        "read rovder": "glnn.documents.rovder",
        "write rovder": "glnn.documents.rovder",
        "import torch": "glnn.torch.importing",
        "read and write torch weights": "glnn.torch.files",
        "write chats": "glnn.generation.chat_template",
    }
    | {
        f"decompose {name}": "glnn.documents.decompositions"
        for name in ("cronin", "im2col", "im2row", "kn2row")
    }
)
logging.getLogger("glnn").addHandler(logging.NullHandler())  # the program configures logging


def __getattr__(name: str) -> Any:
    if name in ("errors", "filters", "images", "kernels", "layers", "ops", "training"):
        return import_module(f"glnn.{name}")
    modules = {
        "InferenceSession": "session",
        "LanguageModel": "generation",
        "Model": "model",
        "SpeechToText": "generation",
        "load": "model",
        "Device": "gl",
        "DeviceArray": "runtime.device_array",
    }
    modules |= dict.fromkeys(("load_weights", "save_weights"), "model.weight_files")
    modules |= {"progress": "core.progress_bar"}
    if name not in modules:
        raise AttributeError(f"module 'glnn' has no attribute {name!r}")
    value = getattr(import_module(f"glnn.{modules[name]}"), name)
    globals()[name] = value  # `__getattr__` is called once for each name
    return value


def __dir__() -> list[str]:
    return __all__

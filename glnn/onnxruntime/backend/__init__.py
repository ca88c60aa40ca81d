"""ONNX's backend interface, by glnn: `prepare(model).run(inputs)`."""

from __future__ import annotations

from glnn.onnxruntime.backend.backend import OnnxRuntimeBackend, OnnxRuntimeBackendRep

is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device

__all__ = [
    "OnnxRuntimeBackend",
    "OnnxRuntimeBackendRep",
    "is_compatible",
    "prepare",
    "run",
    "supports_device",
]

"""ONNX Runtime's own classes by another name."""

from __future__ import annotations

from glnn.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403

"""Layers as nodes of ONNX."""

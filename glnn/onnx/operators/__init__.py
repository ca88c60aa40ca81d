"""Converters of ONNX operators to operators of a graph, by kind."""

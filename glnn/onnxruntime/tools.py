"""Not there: importing it is an ImportError that says so."""

raise ImportError(
    "glnn.onnxruntime has no tools: its tools rewrite files for ONNX Runtime itself; the package onnxruntime has them",
    name=__name__,
)

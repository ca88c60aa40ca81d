"""Stand-in for ONNX Runtime's tools: importing it raises an ImportError that says so."""

raise ImportError(
    "glnn.onnxruntime has no tools: the package onnxruntime has them, which write files for ONNX "
    "Runtime itself",
    name=__name__,
)

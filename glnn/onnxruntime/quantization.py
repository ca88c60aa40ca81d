"""Stand-in for ONNX Runtime's quantization: importing it raises an ImportError that says so."""

raise ImportError(
    "glnn.onnxruntime has no quantization: models are quantized ahead, by the package onnxruntime; "
    "glnn runs what it writes",
    name=__name__,
)

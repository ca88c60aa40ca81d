"""Not there: importing it is an ImportError that says so."""

raise ImportError(
    "glnn.onnxruntime has no quantization: models are quantized ahead of running; the package onnxruntime does it, and glnn runs what it writes",
    name=__name__,
)

"""Of ONNX Runtime's package `transformers`, what programs run models with."""

"""The part of ONNX Runtime's package `transformers` that programs run models with."""

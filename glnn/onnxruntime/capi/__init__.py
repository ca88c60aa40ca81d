"""What ONNX Runtime's package `capi` has: its classes, by the modules that programs import."""

"""The classes of ONNX Runtime's package `capi`, by the modules that programs import."""

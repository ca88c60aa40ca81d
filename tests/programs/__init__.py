"""Programs from pip, run with ONNX Runtime and with glnn: `make check-programs`."""

"""Real programs that were written for ONNX Runtime, run with it and with glnn: `make check-programs`."""

"""How ONNX's operators are put into a graph, by kind."""

"""Makes the cases of the ONNX backend test suite, once for all processes: it takes seconds.

`conformance` has the process that the others are forked from import this.
"""

from tests.onnx.gpu_cases import cases

cases()

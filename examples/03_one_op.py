"""Single ops: NumPy arrays in and out, on any backend, by any kernel."""

from __future__ import annotations

import numpy as np

from glnn import ops
from glnn.backends import open_backend
from glnn.kernels import kernels_for


def main() -> None:
    generator = np.random.default_rng(0)
    a = generator.standard_normal((129, 257), dtype=np.float32)
    b = generator.standard_normal((257, 65), dtype=np.float32)
    exact = a.astype(np.float64) @ b
    backend = open_backend("auto")
    for kernel in kernels_for("matmul", backend.name) or (None,):
        name = kernel.name if kernel else None
        error = np.linalg.norm(ops.matmul(a, b, backend=backend, kernel=name) - exact)
        print(f"{backend.name} {name or 'numpy':10} off by {error / np.linalg.norm(exact):.1e}")


if __name__ == "__main__":
    main()

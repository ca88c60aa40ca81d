"""Two processes that examine kernels at once and share a cache: right results, no verdict lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import glnn

CODE = """
import sys
import numpy as np
import glnn

nn = glnn.layers
for n in map(int, sys.argv[2:]):
    layers = {"pool": nn.AvgPool2d(2), "relu": nn.ReLU()}
    model = glnn.Model.sequential(layers, input_shape=(1, n, n))
    x = np.arange(n * n, dtype=np.float32).reshape(1, 1, n, n)
    found = model(x, backend=sys.argv[1])
    expected = x.reshape(1, 1, n // 2, 2, n // 2, 2).mean((3, 5))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
"""


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_two_processes_examine_at_once(tmp_path: Path, backend: str) -> None:
    """Pools of 2 x 2 results come first, whose results cancel: no kernel is called wrong for it."""
    try:
        glnn.backends.open_backend(backend)
    except glnn.errors.DeviceError as error:
        pytest.skip(str(error))
    path = os.pathsep.join(
        filter(None, [str(Path(glnn.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "GLNN_CACHE": str(tmp_path),
        "GLNN_TRUST": "0",
    }

    def begin(*sizes: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CODE, backend, *map(str, sizes)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    for process in [begin(4, 28, 2), begin(4, 6, 64)]:
        _, said = process.communicate(timeout=200)
        assert process.returncode == 0, said
    again = begin(4, 28, 2, 6, 64, 10)
    _, said = again.communicate(timeout=200)
    assert again.returncode == 0, said
    (file,) = tmp_path.glob("verdicts/*.json")
    verdicts = json.loads(file.read_text("utf-8"))["verdicts"]
    assert verdicts and not any(one.get("wrong") for one in verdicts.values())

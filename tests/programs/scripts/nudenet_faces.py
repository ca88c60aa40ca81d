"""What nudenet finds in the photograph of somebody who is dressed: a face."""

import sys

import numpy as np
from nudenet import NudeDetector

inputs, out = sys.argv[1:]
found = NudeDetector().detect(f"{inputs}/face.png")
np.savez(
    out,
    kinds=[one["class"] for one in found],
    scores=[one["score"] for one in found],
    boxes=[one["box"] for one in found],
)

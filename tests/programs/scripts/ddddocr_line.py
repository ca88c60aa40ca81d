"""A line of letters, by the newer of ddddocr's two models."""

import sys
from pathlib import Path

import numpy as np
from ddddocr import DdddOcr

inputs, out = sys.argv[1:]
picture = Path(inputs, "word.png").read_bytes()
np.savez(out, text=[DdddOcr(show_ad=False, beta=True).classification(picture)])

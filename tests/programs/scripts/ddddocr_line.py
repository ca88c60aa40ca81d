"""A line of letters, by ddddocr."""

import sys
from pathlib import Path

import numpy as np
from ddddocr import DdddOcr

inputs, out = sys.argv[1:]
picture = Path(inputs, "word.png").read_bytes()
np.savez(out, text=[DdddOcr(show_ad=False).classification(picture)])

"""The lines on a page, by rapidocr's own newer models."""

import sys

import numpy as np
from rapidocr import RapidOCR

inputs, out = sys.argv[1:]
found = RapidOCR()(f"{inputs}/page.png")
np.savez(out, boxes=np.array(found.boxes), texts=found.txts, scores=np.array(found.scores))

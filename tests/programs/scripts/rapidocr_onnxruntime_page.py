"""The lines on a page, by rapidocr-onnxruntime: a detector, a classifier, a recogniser."""

import sys

import numpy as np
from rapidocr_onnxruntime import RapidOCR

inputs, out = sys.argv[1:]
found, _ = RapidOCR()(f"{inputs}/page.png")
boxes, texts, scores = zip(*found)
np.savez(out, boxes=np.array(boxes, np.float32), texts=texts, scores=np.array(scores, np.float64))

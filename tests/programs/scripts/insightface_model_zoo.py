"""insightface's classes for faces, with models of the forms that they want."""

import pickle
import sys

import cv2
import numpy as np
from insightface.model_zoo import get_model

inputs, out = sys.argv[1:]
picture = cv2.imread(f"{inputs}/face.png")
results = {}
arcface = get_model(f"{inputs}/arcface.onnx", providers=["CPUExecutionProvider"])
arcface.prepare(ctx_id=-1)
face = cv2.resize(picture, (112, 112))
results["embedding"] = arcface.get_feat([face, face[::-1].copy()])
again = pickle.loads(pickle.dumps(arcface.session))
blob = np.ones((1, 3, 112, 112), np.float32)
results["pickled"] = again.run(None, {again.get_inputs()[0].name: blob})[0]
scrfd = get_model(f"{inputs}/scrfd.onnx")
scrfd.prepare(ctx_id=0, input_size=(160, 160), det_thresh=0.55)
boxes, points = scrfd.detect(picture)
results["boxes"] = boxes
np.savez(out, kinds=[type(arcface).__name__, type(scrfd).__name__], **results)

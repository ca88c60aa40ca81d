"""The notes of some tones, by basic-pitch's ONNX model."""

import sys
from pathlib import Path

import basic_pitch
import numpy as np
from basic_pitch.inference import Model, predict

inputs, out = sys.argv[1:]
model = Model(Path(basic_pitch.__file__).parent / "saved_models/icassp_2022/nmp.onnx")
output, _, notes = predict(f"{inputs}/tones.wav", model)
pitches = sorted((note[2], round(note[0], 2)) for note in notes)
np.savez(out, pitches=np.array([p for p, _ in pitches]), **output)

"""The pitch of a voice, by swift-f0."""

import sys

import numpy as np
from swift_f0 import SwiftF0

inputs, out = sys.argv[1:]
found = SwiftF0().detect(np.load(f"{inputs}/speech.npy"), 16000)
np.savez(out, pitch=found.pitch_hz, confidence=found.confidence)

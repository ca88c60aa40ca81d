"""How good a recording of speech sounds, by speechmos."""

import sys

import numpy as np
from speechmos import dnsmos

inputs, out = sys.argv[1:]
sound = np.clip(np.load(f"{inputs}/speech.npy"), -1, 1)
found = dnsmos.run(sound, 16000, return_df=False)
scores = {key: value for key, value in found.items() if isinstance(value, (float, np.floating))}
np.savez(out, names=sorted(scores), scores=[float(scores[name]) for name in sorted(scores)])

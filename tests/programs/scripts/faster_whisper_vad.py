"""Where somebody speaks, by the Silero VAD of faster-whisper."""

import sys

import numpy as np
from faster_whisper.vad import get_speech_timestamps, get_vad_model

inputs, out = sys.argv[1:]
sound = np.load(f"{inputs}/speech.npy")
heard = get_vad_model()(np.pad(sound, (0, -len(sound) % 512)))
found = [[part["start"], part["end"]] for part in get_speech_timestamps(sound)]
np.savez(out, heard=heard, found=np.array(found))

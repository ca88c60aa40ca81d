"""Listens to a recording step by step: the network's state stays on the device from step to step.

Needs `pip install '.[onnx]'`. The network is Silero VAD: the file silero_vad.onnx of the package
silero-vad, or of its repository.
The recording is a .wav file of 16,000 samples a second and one channel; without one it is hiss with
two seconds of a hum in it.
"""

from __future__ import annotations

import argparse
import wave
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import glnn

try:
    import onnx  # noqa: F401  glnn reads the network by it
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[onnx]'") from None

RATE, STEP, BEFORE = 16000, 512, 64  # samples a second, in a step, and looked back at
STATE = (2, 1, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="silero_vad.onnx")
    parser.add_argument("--wav", help="a recording: 16 bits, 16000 Hz, one channel")
    parser.add_argument("--backend", default="auto", help="auto, compute, feedback or cpu")
    asked = parser.parse_args()

    session = glnn.InferenceSession(asked.model, asked.backend)
    first = {"state": np.zeros(STATE, np.float32)}
    states = session.make_states({"state": "stateN"}, first)
    rate = np.array(RATE, np.int64)
    sound = recorded(asked.wav) if asked.wav else made()
    steps = sound[: len(sound) // STEP * STEP].reshape(-1, STEP)
    before = np.zeros((len(steps), BEFORE), np.float32)
    before[1:] = steps[:-1, -BEFORE:]
    chunks = np.concatenate([before, steps], axis=1)[:, None]

    session.run(None, {"input": chunks[0], "sr": rate}, states=states)  # plans it
    states.reset()
    start = perf_counter()
    heard = [session.run(None, {"input": x, "sr": rate}, states=states)[0].item() for x in chunks]
    kept = perf_counter() - start

    edges = np.flatnonzero(np.diff(np.array(heard) > 0.5, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2) * STEP / RATE:
        print(f"speech from {begin:.2f} s to {end:.2f} s")

    # The same with a state that is read and fed again in each step.
    state, names = first["state"], ["output", "stateN"]
    session.run(names, {"input": chunks[0], "sr": rate, "state": state})
    fed = []
    start = perf_counter()
    for x in chunks:
        y, state = session.run(names, {"input": x, "sr": rate, "state": state})
        fed.append(y.item())
    again = perf_counter() - start
    print(f"{len(chunks)} steps, {1e3 * kept / len(chunks):.2f} ms each with the state kept,")
    print(f"{1e3 * again / len(chunks):.2f} ms with it fed again: {kept / again:.2f} of that")
    print(f"largest difference: {np.abs(np.subtract(heard, fed)).max():.1e}")


def recorded(path: str) -> NDArray[np.float32]:
    """The samples of a .wav file."""
    with wave.open(path, "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path} must have 16 bits, {RATE} Hz and one channel")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    found: NDArray[np.float32] = samples.astype(np.float32) / np.float32(32768)
    return found


def made() -> NDArray[np.float32]:
    """Four seconds of hiss, from 1 s to 3 s with overtones of 120 Hz."""
    time = np.arange(4 * RATE) / RATE
    sound = 0.002 * np.random.default_rng(0).standard_normal(4 * RATE)
    hum = sum(np.sin(2 * np.pi * 120 * n * time) / n for n in range(1, 20))
    sound[RATE : 3 * RATE] += 0.1 * np.asarray(hum)[RATE : 3 * RATE]
    return sound.astype(np.float32)


if __name__ == "__main__":
    main()

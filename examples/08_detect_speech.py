"""Where in a recording somebody speaks.

Needs the packages that requirements.txt names and says how to install. The network is
Silero VAD, from faster-whisper. The recording is made here: hiss, vowels, hiss, a tone, hiss.
Writes speech.png: its wave, which is green where speech is heard.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np
from numpy.typing import NDArray

import glnn

try:
    import onnx  # noqa: F401  glnn reads the network by it
    from PIL import Image, ImageDraw

    NETWORK = distribution("faster-whisper").locate_file("faster_whisper/assets/silero_vad_v6.onnx")
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing.name} is missing: pip install '.[images,onnx]', and "
        "pip install --no-deps -r examples/requirements.txt"
    ) from None

RATE, STEP, BEFORE = 16000, 512, 64  # samples a second, in a step, and looked back at
VOWELS = {  # resonances of a voice in Hz: Peterson and Barney 1952
    "a": (730, 1090, 2440),
    "i": (270, 2290, 3010),
    "u": (300, 870, 2240),
    "e": (530, 1840, 2480),
    "o": (570, 840, 2410),
}


def main() -> None:
    session = glnn.InferenceSession(str(NETWORK))
    sound = recording()
    steps = sound.reshape(-1, STEP)
    before = np.roll(steps[:, -BEFORE:], 1, axis=0)
    before[0] = 0
    state = np.zeros((1, 1, 128), np.float32)
    feeds = {"input": np.concatenate([before, steps], axis=1), "h": state, "c": state}
    (heard,) = session.run(["speech_probs"], feeds)
    speech = heard.ravel() > 0.5
    edges = np.flatnonzero(np.diff(speech, prepend=False, append=False)) * STEP / RATE
    for start, end in edges.reshape(-1, 2):
        print(f"speech from {start:.2f} s to {end:.2f} s")

    sheet = Image.new("RGB", (4 * len(steps), 120), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (step, is_speech) in enumerate(zip(steps, speech, strict=True)):
        reach = min(60, 180 * np.abs(step).max())
        box = (4 * i, 60 - reach, 4 * i + 2, 60 + reach)
        draw.rectangle(box, "limegreen" if is_speech else "grey")
    sheet.save("speech.png")


def recording() -> NDArray[np.float32]:
    """Five seconds, from 1 s to 2.5 s speech."""
    generator = np.random.default_rng(0)
    sound = 0.002 * generator.standard_normal(5 * RATE // STEP * STEP)
    for i, vowel in enumerate("aiueoai"):
        start = RATE + i * 3400
        sound[start : start + 2600] += spoken(VOWELS[vowel], 2600)
    time = np.arange(RATE) / RATE
    sound[7 * RATE // 2 : 9 * RATE // 2] += 0.2 * np.sin(2 * np.pi * 440 * time)
    return sound.astype(np.float32)


def spoken(resonances: tuple[int, ...], count: int) -> NDArray[np.float64]:
    """A vowel: the overtones of a voice of some 110 Hz, as loud as the resonances let them be."""
    time = np.arange(count) / RATE
    phase = 2 * np.pi * np.cumsum(115 - 60 * time) / RATE
    sound = np.zeros(count)
    for n in range(1, 36):
        loud = sum(1 / (1 + ((110 * n - f) / 80) ** 2) for f in resonances)
        sound += loud * np.sin(n * phase) / n**0.5
    return 0.1 * sound * np.minimum(1, np.minimum(time, time[::-1]) / 0.03)


if __name__ == "__main__":
    main()

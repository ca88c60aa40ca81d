"""Seconds of whisper's parts, by its shapes with seeded weights; a model beside faster-whisper.

Of each shape: the features of a window of 30 seconds, the encoder, and the tokens behind them, as
many as half of the context unless --tokens says fewer, with all that the host does between two.
Seconds of the encoder are those of it and a token, less a token's. "seconds_per_s" are seconds of a
recording for each second that a window takes, of a hundred tokens. With --model and --recording
that is transcribed, and shapes only where they are named; faster-whisper transcribes it on the CPU
in the same run where it is installed.

    python -m benchmarks.speech
    python -m benchmarks.speech tiny base small --backend compute --beams 1,5 --repeat 5 --json
    python -m benchmarks.speech tiny --model whisper-tiny.en --recording talk.wav
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.generation.architectures import Config, Packed
from glnn.generation.speech import whisper
from glnn.generation.speech.decoding import TokenRules, decode
from glnn.generation.speech.engine import SpeechEngine
from glnn.generation.speech.log_mel import RATE, log_mel
from glnn.generation.speech.recordings import read_recording
from glnn.generation.speech.speech_to_text import SpeechToText
from glnn.generation.speech.whisper_files import EPS, SpecialTokens, WhisperConfig
from glnn.graph.operators.quantized_matmul import random_weight
from glnn.graph.quantization import GGML_FORMATS

WINDOW_S, FRAMES, CONTEXT, SPOKEN = 30, 1500, 448, 100
SHAPES = {
    "tiny": (4, 4, 384, 6, 80, 51865),
    "base": (6, 6, 512, 8, 80, 51865),
    "small": (12, 12, 768, 12, 80, 51865),
    "medium": (24, 24, 1024, 16, 80, 51865),
    "turbo": (32, 4, 1280, 20, 128, 51866),
    "large": (32, 32, 1280, 20, 128, 51866),
}
"""Layers of encoder and decoder, width, heads, bins, tokens."""
FORMAT = GGML_FORMATS["f16"]


def config_of(name: str) -> WhisperConfig:
    """Return the sizes of a shape."""
    encoder, decoder, width, heads, bins, vocabulary = SHAPES[name]
    halves = [
        Config("whisper", layers, width, heads, heads, width // heads, vocabulary, context, EPS)
        for layers, context in ((encoder, FRAMES), (decoder, CONTEXT))
    ]
    return WhisperConfig(bins, *halves)


def special_of(vocabulary: int) -> SpecialTokens:
    """Return the special tokens of a multilingual model, of which none ends a text."""
    first = vocabulary - 1501
    end = 50257
    return SpecialTokens(
        end, end + 1, first - 4, first - 2, first - 1, (first, vocabulary),
        {"transcribe": first - 5}, {"en": end + 2}, (end,), (),
    )  # fmt: skip


@dataclass(frozen=True)
class SeededWeights:
    """Random weights of one half of a shape; see `glnn.generation.architectures.Weights`."""

    config: Config
    bins: int

    def __contains__(self, name: str) -> bool:
        part = name.split(".")[-2]
        absent = ("output", "attn_qkv", "cross_kv", "attn_q_norm", "attn_k_norm")
        return part not in absent and name[-6:] != "k.bias"

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        *_, part, kind = name.split(".")
        width = self.config.width
        if kind == "bias":
            return (4 * width if part == "ffn_up" else width,)
        return {
            "conv1": (width, self.bins, 3), "conv2": (width, width, 3),
            "token_embd": (self.config.vocabulary, width), "output_norm": (width,),
            "position_embd": (self.config.context, width), "attn_norm": (width,),
            "cross_norm": (width,), "ffn_norm": (width,), "ffn_up": (4 * width, width),
            "ffn_down": (width, 4 * width),
        }.get(part, (width, width))  # fmt: skip

    def alike(self, *names: str) -> bool:
        """Return True where all these matrices are of one format."""
        return True

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a tensor's numbers: a few random ones, again and again."""
        shape = self.shape(name)
        some = np.random.default_rng(0).standard_normal(min(prod(shape), 100_003))
        scale = prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1
        numbers = np.resize(some * scale, shape).astype(np.float32)
        return numbers + 1 if "norm.weight" in name else numbers

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other."""
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]
        words = np.zeros(FORMAT.words(n, k), np.int32)
        return FORMAT, random_weight(FORMAT, words, n, k)


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Return the median of the seconds that `work` takes."""
    times = []
    for _ in range(repeat):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return median(times)


class _Counted:
    """An engine whose texts end after so many tokens, and that counts its runs."""

    def __init__(self, engine: SpeechEngine, tokens: int) -> None:
        self.beams, self.order = engine.beams, engine.order
        self.context, self.runs = 2 * tokens, 0
        self._engine = engine

    def logits(self, tokens: Any, places: Any, rows: Any) -> NDArray[Any]:
        """See `SpeechEngine`."""
        self.runs += 1
        own = [divmod(place, self.context) for place in places]
        moved = [text * self._engine.context + position for text, position in own]
        return self._engine.logits(tokens, moved, rows)


def measured(name: str, backend: str, beams: int, tokens: int, repeat: int) -> dict[str, Any]:
    """Time one shape."""
    config, begun = config_of(name), perf_counter()
    halves = [SeededWeights(one, config.bins) for one in (config.encoder, config.decoder)]
    engine = SpeechEngine(
        whisper.encoder(config, *halves), whisper.decoder(config, halves[1], beams), beams, backend,
        None, None,
    )  # fmt: skip
    samples = np.random.default_rng(0).standard_normal(WINDOW_S * RATE).astype(np.float32)
    features = log_mel(samples, config.bins)
    special = special_of(config.decoder.vocabulary)
    prompt = [special.start, special.languages["en"], special.tasks["transcribe"]]
    rules, counted = TokenRules(special, timestamps=True), _Counted(engine, tokens)

    def step() -> object:
        return engine.logits([special.start], [0], [0])

    def encode() -> object:
        engine.encode(features)
        return step()

    encode()
    decode(counted, special, prompt, rules)
    row: dict[str, Any] = {"shape": name, "beams": beams, "first_s": perf_counter() - begun}
    row["features_s"] = seconds(lambda: log_mel(samples, config.bins), repeat)
    row["device_step_s"] = seconds(step, 8 * repeat)
    row["encoder_s"] = seconds(encode, repeat) - row["device_step_s"]
    counted.runs = 0
    spent = seconds(lambda: decode(counted, special, prompt, rules), repeat)
    row["tokens"] = counted.runs / repeat
    row["step_s"] = spent / row["tokens"]
    window = row["features_s"] + row["encoder_s"] + SPOKEN * row["step_s"]
    return {**row, "seconds_per_s": WINDOW_S / window}


def transcribed(
    folder: Path, recording: Path, backend: str, beams: int, repeat: int
) -> list[dict[str, Any]]:
    """Time a recording by a model, and by faster-whisper on the CPU where it is installed."""
    samples = read_recording(recording)
    speech = SpeechToText(folder, backend=backend, beams=beams)
    texts: dict[str, str] = {}

    def ours() -> None:
        texts["glnn"] = speech.transcribe(samples).text

    ways: dict[str, Callable[[], None]] = {f"glnn {speech.backend}": ours}
    if find_spec("faster_whisper") and find_spec("ctranslate2") and (folder / "model.bin").exists():
        from faster_whisper import WhisperModel

        model = WhisperModel(str(folder), device="cpu", compute_type="float32")

        def theirs() -> None:
            found, _ = model.transcribe(
                samples, beam_size=beams, temperature=0.0, condition_on_previous_text=False
            )
            texts["theirs"] = "".join(one.text for one in found).strip()

        ways["faster-whisper cpu float32"] = theirs
    rows = []
    for name, work in ways.items():
        begun = perf_counter()
        work()
        first = perf_counter() - begun
        spent = seconds(work, repeat)
        row = {"shape": folder.name, "way": name, "beams": beams, "first_s": first}
        rows.append({**row, "seconds_per_s": len(samples) / RATE / spent})
    for row in rows[1:]:
        row["same"] = texts["glnn"] == texts["theirs"]
    return rows


@click.command(help=__doc__)
@click.argument("shapes", nargs=-1)
@click.option("--backend", default="compute", show_default=True)
@click.option("--beams", default="1", show_default=True, help="Numbers, by commas.")
@click.option("--tokens", type=click.IntRange(2, CONTEXT // 2), default=CONTEXT // 2)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True)
@click.option("--model", type=click.Path(path_type=Path), help="A folder of a model.")
@click.option("--recording", type=click.Path(path_type=Path), help="What it transcribes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    shapes: tuple[str, ...], backend: str, beams: str, tokens: int, repeat: int,
    model: Path | None, recording: Path | None, as_json: bool,
) -> None:  # fmt: skip
    if unknown := [one for one in shapes if one not in SHAPES]:
        raise GlnnError(f"no shape {unknown[0]!r}, expected some of {', '.join(SHAPES)}")
    if (model is None) != (recording is None):
        raise GlnnError("--model and --recording need each other")
    about = {**machine(open_backend(backend).device), "backend": backend}
    counts = [int(one) for one in beams.split(",")]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        names = shapes or (("tiny", "base", "small") if model is None else ())
        work = [(name, count) for name in names for count in counts]
        for name, count in bar.track(work, description="timing"):
            rows.append(measured(name, backend, count, tokens, repeat))
            if bar.disable:
                click.echo(json.dumps(rows[-1]), err=True)
        if model is not None and recording is not None:
            for count in counts:
                rows += transcribed(model, recording, backend, count, repeat)
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{key} {value}" for key, value in about.items()))
    keys = (
        "features_s", "encoder_s", "device_step_s", "step_s", "tokens", "seconds_per_s", "first_s"
    )  # fmt: skip
    shown = table("shape", "way", ">beams", *(f">{key}" for key in keys))
    for row in rows:
        cells = (number(row.get(key)) for key in keys)
        shown.add(row["shape"], row.get("way", "seeded"), str(row["beams"]), *cells)
    out.show(shown, "seconds; seconds of a recording for each")


if __name__ == "__main__":
    run(main)

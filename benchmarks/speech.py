"""Seconds of whisper's parts: features, encoder, tokens; and of the transcription of a recording.

MODELS are folders of models, or names of shapes, whose weights are seeded: these need no files and
no package but NumPy. For each, of a window of 30 seconds: the features, the encoder, and --tokens
tokens, none of which ends the text, with all that the host does between two. Seconds of the encoder
are those of it and a token, less a token's. "seconds_per_s" are seconds of a recording for each
second that this takes. With --recording models in folders transcribe it, too, in as many tokens as
it has: rows whose way ends in "whole".

--beside has another program do the same in the same run: `transformers`, by PyTorch with float16
on a GPU it supports, else float32 on the CPU, with seeded weights of the shape; `faster-whisper`,
which transcribes --recording by a folder's model.bin in float32 on all cores of the CPU.

    python -m benchmarks.speech
    python -m benchmarks.speech tiny.en base small --backend compute --beams 1,5 --repeat 5 --json
    python -m benchmarks.speech tiny.en --beside transformers
    python -m benchmarks.speech whisper-tiny.en/ --recording talk.wav --beside faster-whisper
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from glnn.core.process import processors
from glnn.errors import GlnnError
from glnn.generation.architectures import Config, Packed
from glnn.generation.speech import whisper
from glnn.generation.speech.decoding import TokenRules, decode
from glnn.generation.speech.engine import SpeechEngine
from glnn.generation.speech.log_mel import HOP, RATE, log_mel
from glnn.generation.speech.recordings import read_recording
from glnn.generation.speech.speech_to_text import STEP, SpeechToText
from glnn.generation.speech.whisper_files import EPS, SpecialTokens, WhisperConfig
from glnn.graph.operators.quantized_matmul import random_weight
from glnn.graph.quantization import GGML_FORMATS

FRAMES, CONTEXT = 1500, 448
SHAPES = {
    "tiny.en": (4, 4, 384, 6, 80, 51864),
    "tiny": (4, 4, 384, 6, 80, 51865),
    "base.en": (6, 6, 512, 8, 80, 51864),
    "base": (6, 6, 512, 8, 80, 51865),
    "small": (12, 12, 768, 12, 80, 51865),
    "medium": (24, 24, 1024, 16, 80, 51865),
    "turbo": (32, 4, 1280, 20, 128, 51866),
    "large": (32, 32, 1280, 20, 128, 51866),
}
"""Layers of encoder and decoder, width, heads, bins, tokens."""
FORMAT = GGML_FORMATS["f16"]
TRANSFORMERS, FASTER_WHISPER = "transformers", "faster-whisper"
KEYS = (
    "features_s", "encoder_s", "device_step_s", "step_s", "tokens", "whole_s", "seconds_per_s",
    "first_s",
)  # fmt: skip


def config_of(name: str) -> WhisperConfig:
    """Return the sizes of a shape."""
    encoder, decoder, width, heads, bins, vocabulary = SHAPES[name]
    halves = [
        Config("whisper", layers, width, heads, heads, width // heads, vocabulary, context, EPS)
        for layers, context in ((encoder, FRAMES), (decoder, CONTEXT))
    ]
    return WhisperConfig(bins, *halves)


def special_of(vocabulary: int) -> SpecialTokens:
    """Return the special tokens of a model with so many tokens."""
    first, english = vocabulary - 1501, vocabulary == 51864
    end = 50256 if english else 50257
    return SpecialTokens(
        end, end + 1, first - 4, first - 2, first - 1, (first, vocabulary),
        {"transcribe": first - 5}, {} if english else {"en": end + 2}, (), (),
    )  # fmt: skip


@dataclass(frozen=True)
class SeededWeights:
    """Random weights of one half of a shape; see `glnn.generation.architectures.WeightSource`."""

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

    def have_same_format(self, *names: str) -> bool:
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


def noise(frames: int = FRAMES) -> NDArray[np.float32]:
    """Return the samples of a window of so many frames of the encoder's."""
    generator = np.random.default_rng(0)
    return generator.standard_normal(frames * STEP * HOP).astype(np.float32)


def per_second(row: dict[str, Any], samples: NDArray[Any]) -> dict[str, Any]:
    """Return `row` with the seconds of a recording that are transcribed in one."""
    spent = row["features_s"] + row["encoder_s"] + row["tokens"] * row["step_s"]
    return {**row, "seconds_per_s": len(samples) / RATE / spent}


def timed_parts(
    engine: SpeechEngine, config: WhisperConfig, special: SpecialTokens, tokens: int, repeat: int,
    begun: float,
) -> dict[str, Any]:  # fmt: skip
    """Time the parts of a window. begun: when loading the model began."""
    tokens, bins = min(tokens, engine.context // 2), config.bins
    samples = noise(config.frames)
    features = log_mel(samples, bins)
    prompt = [special.start]
    if special.languages:
        prompt += [next(iter(special.languages.values())), special.tasks["transcribe"]]
    endless = replace(special, suppressed=(*special.suppressed, special.end))
    rules, counted = TokenRules(endless, timestamps=True), _Counted(engine, tokens)

    def step() -> object:
        return engine.logits([special.start], [0], [0])

    def encode() -> object:
        engine.encode(features)
        return step()

    encode()
    decode(counted, endless, prompt, rules)
    row: dict[str, Any] = {"first_s": perf_counter() - begun}
    row["features_s"] = seconds(lambda: log_mel(samples, bins), repeat)
    row["device_step_s"] = seconds(step, 8 * repeat)
    row["encoder_s"] = seconds(encode, repeat) - row["device_step_s"]
    counted.runs = 0
    spent = seconds(lambda: decode(counted, endless, prompt, rules), repeat)
    row["tokens"] = counted.runs / repeat
    row["step_s"] = spent / row["tokens"]
    return per_second(row, samples)


def seeded_parts(name: str, backend: str, beams: int, tokens: int, repeat: int) -> dict[str, Any]:
    """Time the parts of a window by a shape with seeded weights."""
    begun, config = perf_counter(), config_of(name)
    halves = [SeededWeights(one, config.bins) for one in (config.encoder, config.decoder)]
    engine = SpeechEngine(
        whisper.encoder(config, *halves), whisper.decoder(config, halves[1], beams), beams, backend,
        None, None,
    )  # fmt: skip
    special = special_of(config.decoder.vocabulary)
    return timed_parts(engine, config, special, tokens, repeat, begun)


def transformers_parts(name: str, beams: int, tokens: int, repeat: int) -> dict[str, Any]:
    """Time the parts of a window by transformers, with weights that it draws for a shape."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise GlnnError(f"--beside transformers: {error}") from None
    begun = perf_counter()
    encoder, decoder, width, heads, bins, vocabulary = SHAPES[name]
    cuda = torch.cuda.is_available()
    kind, device = (torch.float16, "cuda") if cuda else (torch.float32, "cpu")
    special = special_of(vocabulary)
    config = transformers.WhisperConfig(
        d_model=width, encoder_layers=encoder, decoder_layers=decoder, num_mel_bins=bins,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, vocab_size=vocabulary, decoder_start_token_id=special.start,
        eos_token_id=special.end, pad_token_id=special.end, bos_token_id=special.end,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config).eval().to(device, kind)
    model.generation_config.no_timestamps_token_id = special.no_timestamps
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    samples = noise()

    def features() -> Any:
        found = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        return found.to(device, kind)

    def wait() -> None:
        if cuda:
            torch.cuda.synchronize()

    def encode() -> Any:
        found = model.get_encoder()(inputs)
        wait()
        return found

    def write() -> None:
        model.generate(
            encoder_outputs=encoded, decoder_input_ids=prompt, num_beams=beams, do_sample=False,
            min_new_tokens=tokens, max_new_tokens=tokens,
        )  # fmt: skip
        wait()

    prompt = torch.tensor([[special.start]], device=device)
    with torch.inference_mode():
        inputs = features()
        encoded = encode()
        write()
        row: dict[str, Any] = {
            "way": f"transformers {device} {str(kind).rpartition('.')[2]}",
            "first_s": perf_counter() - begun, "tokens": tokens,
            "features_s": seconds(features, repeat), "encoder_s": seconds(encode, repeat),
            "step_s": seconds(write, repeat) / tokens,
        }  # fmt: skip
    return per_second(row, samples)


def transcription(
    work: Callable[[], str], duration: float, repeat: int
) -> tuple[str, dict[str, Any]]:
    """Return the text that `work` gives, and how long it takes. duration: the recording's."""
    begun = perf_counter()
    text = work()
    first = perf_counter() - begun
    spent = seconds(work, repeat)
    return text, {"first_s": first, "whole_s": spent, "seconds_per_s": duration / spent}


def faster_whisper(folder: Path, beams: int) -> Callable[[NDArray[Any]], str]:
    """Return what transcribes samples by faster-whisper."""
    try:
        from faster_whisper import WhisperModel
    except ImportError as error:
        raise GlnnError(f"--beside faster-whisper: {error}") from None
    if not (folder / "model.bin").exists():
        raise GlnnError(f"--beside faster-whisper: it reads model.bin, {folder} has none")
    threads = processors()  # its own choice is 4
    model = WhisperModel(str(folder), device="cpu", compute_type="float32", cpu_threads=threads)

    def work(samples: NDArray[Any]) -> str:
        found, _ = model.transcribe(
            samples, beam_size=beams, temperature=0.0, condition_on_previous_text=False
        )
        return "".join(one.text for one in found).strip()

    return work


@dataclass(frozen=True)
class Choices:
    """Options of the command line that all rows share."""

    backend: str
    tokens: int
    repeat: int
    recording: Path | None
    beside: tuple[str, ...]


def rows_of(model: str, beams: int, choices: Choices) -> Iterator[dict[str, Any]]:
    """Yield what is measured of a model, a row when it is known."""
    tokens, repeat = choices.tokens, choices.repeat
    common = {"model": Path(model).name, "beams": beams}
    if model in SHAPES:
        row = seeded_parts(model, choices.backend, beams, tokens, repeat)
        yield {**common, "way": f"glnn {choices.backend}", **row}
        if TRANSFORMERS in choices.beside:
            yield {**common, **transformers_parts(model, beams, tokens, repeat)}
        return
    begun = perf_counter()
    speech = SpeechToText(model, backend=choices.backend, beams=beams)
    way = f"glnn {speech.backend}"
    row = timed_parts(speech.engine, speech.config, speech.special, tokens, repeat, begun)
    yield {**common, "way": way, **row}
    if choices.recording is None:
        return
    samples = read_recording(choices.recording)
    duration = len(samples) / RATE
    text, row = transcription(
        lambda: speech.transcribe(samples, temperature=0).text, duration, repeat
    )
    yield {**common, "way": f"{way} whole", "text": text, **row}
    if FASTER_WHISPER in choices.beside:
        theirs = faster_whisper(Path(model), beams)
        other, row = transcription(lambda: theirs(samples), duration, repeat)
        row |= {"text": other, "same": text == other}
        yield {**common, "way": "faster-whisper cpu float32 whole", **row}


@click.command(help=__doc__)
@click.argument("models", nargs=-1)
@click.option("--recording", type=click.Path(path_type=Path), help="What models transcribe.")
@click.option("--backend", default="compute", show_default=True)
@click.option("--beams", default="1", show_default=True, help="Numbers, by commas.")
@click.option("--tokens", type=click.IntRange(2, CONTEXT // 2), default=100, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True)
@click.option("--beside", type=click.Choice((TRANSFORMERS, FASTER_WHISPER)), multiple=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    models: tuple[str, ...], recording: Path | None, backend: str, beams: str, tokens: int,
    repeat: int, beside: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    models = models or ("tiny", "base", "small")
    folders = [one for one in models if one not in SHAPES]
    if unknown := [one for one in folders if not Path(one).exists()]:
        raise GlnnError(
            f"no model {unknown[0]!r}, expected a folder, or some of {', '.join(SHAPES)}"
        )
    if recording is not None and not folders:
        raise GlnnError("--recording is for models in folders: seeded weights write nothing down")
    choices = Choices(backend, tokens, repeat, recording, beside)
    about = {**machine(open_backend(backend).device), "backend": backend}
    work = [(model, int(count)) for model in models for count in beams.split(",")]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for model, count in bar.track(work, description="timing"):
            for row in rows_of(model, count, choices):
                rows.append(row)
                click.echo(line_of(row), err=True)
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{key} {value}" for key, value in about.items()))
    shown = table("model", "way", ">beams", *(f">{key}" for key in KEYS))
    for row in rows:
        cells = (number(row.get(key)) for key in KEYS)
        shown.add(row["model"], row["way"], str(row["beams"]), *cells)
    out.show(shown, "seconds; seconds of a recording for each")


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line that is printed while others are still measured."""
    said = ", ".join(f"{key} {number(row[key])}" for key in KEYS if key in row)
    return f"{row['model']}, {row['way']}, beams {row['beams']}: {said}"


if __name__ == "__main__":
    run(main)

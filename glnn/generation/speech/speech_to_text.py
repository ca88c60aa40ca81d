"""Speech to text: the text of a recording, by a whisper model in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from glnn.core.array_functions import softmax
from glnn.core.process import process_lock
from glnn.core.progress_bar import report_work
from glnn.core.types import Array
from glnn.errors import DeviceError, ModelError, shown
from glnn.generation.settings import whole_number
from glnn.generation.speech.decoding import TokenRules, WindowText, decode
from glnn.generation.speech.engine import SpeechEngine
from glnn.generation.speech.fallback import TEMPERATURES, Fallback
from glnn.generation.speech.log_mel import HOP, RATE, log_mel
from glnn.generation.speech.recordings import Recording, read_recording
from glnn.generation.speech.whisper import decoder, encoder
from glnn.generation.speech.whisper_files import TASKS, open_whisper
from glnn.generation.speech.word_times import (
    BY_LETTERS,
    TimedWord,
    Word,
    attention_weights,
    cut_long_marks,
    first_frames,
    join_punctuation,
    median_length,
    place_words,
    split_words,
    time_words,
)
from glnn.gl import Device

MOST_BEAMS = 32
MOST_SEED = (1 << 63) - 1
MOST_TOLD = 0.5
"""Temperature up to which a window's text is told to the next one."""
STEP = 2  # frames of features for each of the encoder's, and for each timestamp
T = TypeVar("T")


@dataclass(frozen=True)
class Segment:
    """A phrase of a recording.

    start, end: seconds from the recording's beginning. tokens: with its timestamps.
    log_probability: of a token of its window, in the mean. no_speech: how likely it is that nobody
    speaks in its window. temperature: by which the text of its window was chosen. words: where they
    were asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    log_probability: float
    no_speech: float
    temperature: float = 0.0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """The phrases of a recording. language: its code. duration: the recording's seconds."""

    segments: tuple[Segment, ...]
    language: str
    duration: float

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(segment.text for segment in self.segments).strip()


@dataclass(frozen=True)
class TranscribeOptions:
    """Options of one recording; see `SpeechToText.transcribe`."""

    language: str | None
    task: str
    timestamps: bool
    words: bool
    prompt: tuple[int, ...]
    condition_on_previous_text: bool
    fallback: Fallback
    seed: int


@dataclass(frozen=True)
class _Window:
    """A window that was read: its text, its phrases, the frames that these are of, its words."""

    text: WindowText
    segments: list[Segment]
    frames: int
    words: list[TimedWord] = field(default_factory=list)


class SpeechToText:
    """A whisper model that writes down what is said in recordings.

    path: a folder of CTranslate2 (model.bin, tokenizer.json, config.json) or its model.bin, or a
    folder of Hugging Face (config.json, safetensors, tokenizer.json, generation_config.json), or of
    Optimum (encoder_model.onnx and decoder_model.onnx in the place of safetensors).
    backend, device, gpu: as `InferenceSession` has them. beams: texts that are tried at a time for
    a window; 1 takes the likeliest token each time. Any thread may use it; they take turns.

    Raises ModelError for a folder that is no such model, or is damaged, LimitError where the memory
    does not suffice, DeviceError where the backend does not open. All before anything is uploaded.

        >>> speech = glnn.SpeechToText("whisper-tiny.en")  # doctest: +SKIP
        >>> speech.transcribe("talk.wav").text  # doctest: +SKIP
        'Go forward 10 meters.'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str = "auto",
        beams: int = 1,
        device: Device | None = None,
        gpu: int | str | None = None,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ModelError(
                f"a speech model lies in a folder, expected its path, got {shown(path)}"
            )
        self.path = Path(path)
        beams = whole_number("beams", beams, MOST_BEAMS)
        files = open_whisper(self.path)
        self.config, self.special, self.tokenizer = files.config, files.special, files.tokenizer
        self.alignment_heads = files.alignment_heads
        self.engine = SpeechEngine(
            encoder(files.config, files.encoder, files.decoder),
            decoder(files.config, files.decoder, beams),
            beams, backend, device, gpu, files.nbytes,
        )  # fmt: skip
        """What runs the model's graphs, for whoever holds `_lock`."""
        self._lock = process_lock()
        """Held for each window: its caches are the engine's."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a SpeechToText cannot be pickled or copied: its weights and caches are on a device; "
            f"load {str(self.path)!r} where it is needed"
        )

    def __repr__(self) -> str:
        """The folder and where it runs."""
        return f"SpeechToText({str(self.path)!r}, {self.backend})"

    @property
    def backend(self) -> str:
        """Name of the backend that runs it."""
        return self.engine.backend.name

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that it knows."""
        return tuple(self.special.languages) or ("en",)

    def transcribe(
        self,
        recording: Recording,
        *,
        rate: int | None = None,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        words: bool = False,
        prompt: str = "",
        condition_on_previous_text: bool = False,
        temperature: float | Sequence[float] = TEMPERATURES,
        compression_threshold: float = 2.4,
        log_probability_threshold: float = -1.0,
        no_speech_threshold: float = 0.6,
        seed: int = 0,
    ) -> Transcript:
        """Return what is said in a recording, of any length.

        recording: a file, or samples (n,) or (n, channels) of `rate` a second, 16,000 unless said:
        float32 or float64 from -1 to 1, int16 or int32. language: a code as "de"; None finds it
        out by the first window. task: "transcribe", or "translate" into English. timestamps:
        whether phrases have their times; without, each window is one. words: whether words have
        theirs, by which those of phrases are corrected. prompt: text that the recording goes on
        from, as names that are in it. condition_on_previous_text: whether each
        window is told the text before it, but for one drawn by a temperature above 0.5.

        temperature: 0 takes the likeliest text of a window; above it, texts are drawn, the more
        evenly the greater, `beams` of them, and the likeliest is taken. Of several the next is
        tried where zlib makes the text more than `compression_threshold` times smaller, or its
        tokens are less likely, in the mean of logarithms, than `log_probability_threshold`. seed:
        of the draws. A window is silent, and left out, where no speech is likelier than
        `no_speech_threshold` and its tokens are less likely than that.

        Raises ModelError for a file that cannot be read and for options out of their ranges,
        ShapeError for samples that are none.
        """
        limits = {
            "compression_threshold": compression_threshold,
            "log_probability_threshold": log_probability_threshold,
            "no_speech_threshold": no_speech_threshold,
        }
        options = self._options(
            language, task, timestamps, words, prompt, condition_on_previous_text, temperature,
            limits, whole_number("seed", seed, MOST_SEED, least=0),
        )  # fmt: skip
        samples = read_recording(recording, rate)
        name = "" if isinstance(recording, np.ndarray) else os.fspath(recording)
        features = log_mel(samples, self.config.bins)
        spoken = options.language or self._language(features)
        options = replace(options, language=spoken)
        windows = -(-features.shape[1] // self._window_frames)
        with report_work("transcribing", str(name), windows) as work:
            found = []
            for position, segments in self._windows(features, options):
                found += segments
                work.done = min(position // self._window_frames, windows)
        return Transcript(tuple(found), spoken, len(samples) / RATE)

    def detect_language(self, recording: Recording, *, rate: int | None = None) -> dict[str, float]:
        """Return how likely each language is in the first window of a recording, by its code.

        recording, rate: see `transcribe`.
        """
        return self._probabilities(log_mel(read_recording(recording, rate), self.config.bins))

    @property
    def _window_frames(self) -> int:
        """Frames of features that the encoder reads at once."""
        return STEP * self.config.frames

    def _part(self, features: Array, position: int) -> Array:
        """Return the features of a window, with zeros behind the recording's end."""
        part = features[:, position : position + self._window_frames]
        return np.asarray(np.pad(part, ((0, 0), (0, self._window_frames - part.shape[1]))))

    def _on_device(self, work: Callable[[SpeechEngine], T]) -> T:
        """Return what `work` does for one window; once more where the device was lost in it."""
        with self._lock:
            try:
                return work(self.engine)
            except DeviceError:
                if not self.engine.lost:
                    raise
                self.engine.reopen()
                return work(self.engine)

    def _probabilities(self, features: Array) -> dict[str, float]:
        """Return the probabilities of languages in the first window."""
        languages, start = self.special.languages, self.special.start
        if not languages:
            return {"en": 1.0}

        def work(engine: SpeechEngine) -> Array:
            engine.encode(self._part(features, 0))
            return engine.logits([start], [0], [0])

        scores = self._on_device(work)[0, list(languages.values())].astype(np.float64)
        shares = zip(languages, softmax(scores).tolist(), strict=True)
        return dict(sorted(shares, key=lambda pair: -pair[1]))

    def _language(self, features: Array) -> str:
        """Return the likeliest language of a recording."""
        return next(iter(self._probabilities(features)))

    def _windows(
        self, features: Array, options: TranscribeOptions
    ) -> Iterator[tuple[int, list[Segment]]]:
        """Yield for each window the frame behind what was read of it, and its phrases."""
        position, before, spoken_until = 0, list(options.prompt), 0.0
        while position < features.shape[1]:
            prompt = self._prompt(before, options)
            work = partial(self._read_window, features, position, prompt, options)
            window = self._on_device(work)
            segments, frames, offset = window.segments, window.frames, position * HOP / RATE
            if window.words:
                segments = self._with_words(segments, window.words, offset, spoken_until)
                spoken_until = segments[-1].end
                if not self._ends_phrase(window.text.best.tokens) and spoken_until > offset:
                    frames = round(spoken_until * RATE / HOP) - position
            position += max(frames, 1)
            found = [one for one in segments if one.start != one.end and one.text.strip()]
            if options.condition_on_previous_text and window.text.temperature <= MOST_TOLD:
                before += [token for segment in found for token in segment.tokens]
            else:
                before = []
            yield position, found

    def _read_window(
        self, features: Array, position: int, prompt: list[int], options: TranscribeOptions,
        engine: SpeechEngine,
    ) -> _Window:  # fmt: skip
        """Return the text of a window, which begins at the frame `position`."""
        engine.encode(self._part(features, position))
        generator = np.random.default_rng((options.seed, position))
        rules = TokenRules(self.special, options.timestamps)
        text = options.fallback.choose(
            lambda one: decode(engine, self.special, prompt, rules, one, generator),
            lambda found: self._text(found.best.tokens).strip(),
        )
        frames = min(self._window_frames, features.shape[1] - position)
        if options.fallback.silent(text):
            return _Window(text, [], frames)
        segments, read = self._segments(text, position, frames, options.timestamps)
        words = self._words(engine, segments, frames // STEP, options) if options.words else []
        return _Window(text, segments, read, words)

    def _start(self, options: TranscribeOptions) -> list[int]:
        """Return the tokens behind which a text begins."""
        special, language = self.special, options.language
        if not special.languages or language is None:
            return [special.start]
        return [special.start, special.languages[language], special.tasks[options.task]]

    def _prompt(self, before: list[int], options: TranscribeOptions) -> list[int]:
        """Return the tokens that a window begins with. before: those of the text before it."""
        special, prompt = self.special, list[int]()
        kept = self.config.decoder.context // 2 - 1
        if before and kept > 0:
            prompt += [special.previous, *before[-kept:]]
        prompt += self._start(options)
        return prompt if options.timestamps else [*prompt, special.no_timestamps]

    def _words(
        self, engine: SpeechEngine, segments: Sequence[Segment], frames: int,
        options: TranscribeOptions,
    ) -> list[TimedWord]:  # fmt: skip
        """Return the words of a window's phrases. frames: of the encoder's, that are recorded."""
        start, end, heads = self._start(options), self.special.end, self.alignment_heads
        text = [token for segment in segments for token in segment.tokens if token < end]
        if not text or not frames:
            return []
        tokens = [*start, self.special.no_timestamps, *text, end]
        rows = range(len(start), len(start) + len(text))
        layers = sorted({layer for layer, _ in heads})
        logits, queries, keys = engine.align(tokens, rows, layers)
        keys = {layer: one[:frames] for layer, one in keys.items()}
        weights = attention_weights(queries, keys, heads, self.config.decoder.head_width)
        first = first_frames(weights[len(start) : -1])
        shares = softmax(logits[:, :end].astype(np.float64))[np.arange(len(text)), text]
        words = split_words(text, self.tokenizer.decode, options.language in BY_LETTERS)
        return time_words(words, first, shares.tolist())

    def _with_words(
        self, segments: Sequence[Segment], words: Sequence[TimedWord], offset: float, before: float
    ) -> list[Segment]:
        """Return phrases with their words, and the times that follow of these.

        offset: seconds at which the window begins. before: those at which the last phrase before it
        ended.
        """
        median = median_length(words)
        rest = join_punctuation(cut_long_marks(words, median))
        found = []
        for one in segments:
            count, own = sum(token < self.special.end for token in one.tokens), list[Word]()
            while rest and count > 0:
                word, tokens = rest[0].word, rest[0].tokens
                own.append(replace(word, start=offset + word.start, end=offset + word.end))
                count -= tokens
                rest = rest[1:]
            if own:
                placed, start, end = place_words(own, one.start, one.end, median, before)
                one, before = replace(one, words=placed, start=start, end=end), end
            found.append(one)
        return found

    def _text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without their timestamps."""
        return self.tokenizer.decode([token for token in tokens if token < self.special.end])

    def _segments(
        self, window: WindowText, position: int, frames: int, timestamps: bool
    ) -> tuple[list[Segment], int]:
        """Return the phrases of a window, and how many of its frames they are of.

        position: the window's first frame. Where a phrase begins that does not end, the next window
        begins with it.
        """
        first, _ = self.special.timestamps
        tokens = window.best.tokens
        phrases: list[tuple[int, int, tuple[int, ...]]] = []
        read = frames
        cuts = [i for i in range(1, len(tokens)) if tokens[i] >= first and tokens[i - 1] >= first]
        if timestamps and cuts:
            if self._ends_phrase(tokens):
                cuts.append(len(tokens))
            else:
                read = STEP * (tokens[cuts[-1] - 1] - first)
            for begin, end in zip([0, *cuts], cuts):
                phrase = tokens[begin:end]
                times = [STEP * max(one - first, 0) for one in (phrase[0], phrase[-1])]
                phrases.append((times[0], times[1], phrase))
        else:
            times = [token - first for token in tokens if token > first]
            phrases.append((0, STEP * times[-1] if timestamps and times else frames, tokens))
        segments = []
        for start, end, phrase in phrases:
            seconds = [(position + frame) * HOP / RATE for frame in (start, end)]
            best = window.best.mean, window.no_speech, window.temperature
            segments.append(Segment(seconds[0], seconds[1], self._text(phrase), phrase, *best))
        return segments, read

    def _ends_phrase(self, tokens: Sequence[int]) -> bool:
        """Return True for tokens whose last phrase ends."""
        first, _ = self.special.timestamps
        return len(tokens) > 1 and tokens[-1] >= first and tokens[-2] < first

    def _options(
        self, language: str | None, task: str, timestamps: bool, words: bool, prompt: str,
        previous: bool, temperature: float | Sequence[float], limits: Mapping[str, float],
        seed: int,
    ) -> TranscribeOptions:  # fmt: skip
        """Return the options of a recording. Raises ModelError for what they cannot be."""
        if language is not None and language not in self.languages:
            known = ", ".join(self.languages)
            raise ModelError(f"language must be one of {known}, got {shown(language)}")
        if task not in TASKS or (task != "transcribe" and not self.special.languages):
            known = " or ".join(TASKS if self.special.languages else TASKS[:1])
            raise ModelError(f"task of this model must be {known}, got {shown(task)}")
        if not isinstance(prompt, str):
            raise ModelError(f"prompt must be text, got {shown(prompt)}")
        flags = {"timestamps": timestamps, "words": words, "condition_on_previous_text": previous}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise ModelError(f"{name} must be True or False, got {shown(flag)}")
        for name, number in limits.items():
            if not _is_number(number):
                raise ModelError(f"{name} must be a number, got {shown(number)}")
        tried = temperature if isinstance(temperature, Sequence) else [temperature]
        if not tried or not all(_is_number(one) and one >= 0 for one in tried):
            raise ModelError(
                f"temperature must be a number of 0 or more, or several, got {shown(temperature)}"
            )
        text = prompt.strip()
        tokens = self.tokenizer.encode(f" {text}", special=False) if text else []
        fallback = Fallback(tuple(map(float, tried)), *map(float, limits.values()))
        return TranscribeOptions(
            language if self.special.languages else "en", task, timestamps, words, tuple(tokens),
            previous, fallback, seed,
        )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value

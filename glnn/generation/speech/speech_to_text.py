"""Speech to text: transcribes recordings with a whisper model."""

from __future__ import annotations

import os
from collections import deque
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
MOST_CONDITIONING = 0.5
"""Temperature up to which a window's text is part of the next window's prompt."""
STEP = 2  # frames of features per frame of the encoder's results, and per timestamp
T = TypeVar("T")


@dataclass(frozen=True)
class Segment:
    """A phrase of a recording.

    start, end: seconds from the recording's beginning. tokens: with its timestamps.
    log_probability: mean log-probability of its window's tokens. no_speech: probability that nobody
    speaks in its window. temperature: at which the text of its window was chosen. words: empty
    unless they were requested.
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
    """The result of one window. frames: how many it covers, after which the next window begins."""

    text: WindowText
    segments: list[Segment]
    frames: int
    words: list[TimedWord] = field(default_factory=list)


class SpeechToText:
    """A whisper model that transcribes recordings.

    path: a folder of CTranslate2 (model.bin, tokenizer.json, config.json) or its model.bin, or a
    folder of Hugging Face (config.json, safetensors, tokenizer.json, generation_config.json), or of
    Optimum (encoder_model.onnx and decoder_model.onnx in the place of safetensors).
    backend, device, gpu: as in `InferenceSession`. beams: width of the beam search; 1 takes the
    likeliest token each time. Any thread may use it; they take turns.

    Raises ModelError for a folder that is no such model, or is damaged; LimitError where the memory
    does not suffice; DeviceError where the backend does not open. All before anything is uploaded.

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
        """Runs the model's graphs. Used only while `_lock` is held."""
        self._lock = process_lock()
        """Held for a whole window, whose results and caches are in the engine."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a SpeechToText cannot be pickled or copied: its weights and caches are on a device; "
            f"load {str(self.path)!r} where it is needed"
        )

    def __repr__(self) -> str:
        """Show the folder and the backend."""
        return f"SpeechToText({str(self.path)!r}, {self.backend})"

    @property
    def backend(self) -> str:
        """Name of the backend that runs it."""
        return self.engine.backend.name

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that the model knows."""
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
        """Transcribe a recording of any length.

        recording: a file, or samples (n,) or (n, channels): float32 or float64 from -1 to 1, int16
        or int32. rate: samples a second, by default 16,000. language: a code as "de"; None detects
        it in the first window. task: "transcribe", or "translate" into English. timestamps: whether
        phrases have times; without, each window is one phrase. words: whether words have times, by
        which those of phrases are corrected. prompt: text before the recording, or names that occur
        in it. condition_on_previous_text: whether the prompt of a window has the text before it,
        back to the last window whose text was drawn at a temperature above 0.5.

        temperature: 0 takes the likeliest text of a window; above 0, `beams` texts are drawn, the
        more evenly the greater it is, and the likeliest of them is taken. Of several temperatures
        the next is tried where zlib makes the text more than `compression_threshold` times smaller,
        or the mean log-probability of its tokens is below `log_probability_threshold`. A window is
        silent, and left out, where the probability of no speech is above `no_speech_threshold` and
        the mean log-probability below its threshold. seed: of the draws.

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
        path = "" if isinstance(recording, np.ndarray) else os.fspath(recording)
        features = log_mel(samples, self.config.bins)
        code = options.language or self._language(features)
        options = replace(options, language=code)
        windows = -(-features.shape[1] // self._window_frames)
        with report_work("transcribing", str(path), windows) as work:
            segments: list[Segment] = []
            for position, window_segments in self._windows(features, options):
                segments += window_segments
                work.done = min(position // self._window_frames, windows)
        return Transcript(tuple(segments), code, len(samples) / RATE)

    def detect_language(self, recording: Recording, *, rate: int | None = None) -> dict[str, float]:
        """Return the probability of each language in a recording's first window, by its code.

        recording, rate: see `transcribe`.
        """
        return self._probabilities(log_mel(read_recording(recording, rate), self.config.bins))

    @property
    def _window_frames(self) -> int:
        """Frames of features in a window, which the encoder reads at once."""
        return STEP * self.config.frames

    def _window_features(self, features: Array, position: int) -> Array:
        """Return the features of the window at `position`, padded by zeros to its full length."""
        window = features[:, position : position + self._window_frames]
        return np.asarray(np.pad(window, ((0, 0), (0, self._window_frames - window.shape[1]))))

    def _on_device(self, work: Callable[[SpeechEngine], T]) -> T:
        """Return the result of `work`, for one window; repeat it where the device is lost."""
        with self._lock:
            try:
                return work(self.engine)
            except DeviceError:
                if not self.engine.lost:
                    raise
                self.engine.reopen()
                return work(self.engine)

    def _probabilities(self, features: Array) -> dict[str, float]:
        """Return the probabilities of languages in the first window, in descending order."""
        languages, start = self.special.languages, self.special.start
        if not languages:
            return {"en": 1.0}

        def work(engine: SpeechEngine) -> Array:
            engine.encode(self._window_features(features, 0))
            return engine.logits([start], [0], [0])

        scores = self._on_device(work)[0, list(languages.values())].astype(np.float64)
        probabilities = zip(languages, softmax(scores).tolist(), strict=True)
        return dict(sorted(probabilities, key=lambda pair: -pair[1]))

    def _language(self, features: Array) -> str:
        """Return the likeliest language of a recording."""
        return next(iter(self._probabilities(features)))

    def _windows(
        self, features: Array, options: TranscribeOptions
    ) -> Iterator[tuple[int, list[Segment]]]:
        """Yield for each window the frame at which the next one begins, and its phrases."""
        position, previous_tokens, spoken_until = 0, list(options.prompt), 0.0
        while position < features.shape[1]:
            prompt = self._prompt(previous_tokens, options)
            work = partial(self._read_window, features, position, prompt, options)
            window = self._on_device(work)
            segments, frames, offset = window.segments, window.frames, position * HOP / RATE
            if window.words:
                segments = self._with_words(segments, window.words, offset, spoken_until)
                spoken_until = segments[-1].end
                if not self._ends_phrase(window.text.best.tokens) and spoken_until > offset:
                    frames = round(spoken_until * RATE / HOP) - position
            position += max(frames, 1)
            segments = [s for s in segments if s.start != s.end and s.text.strip()]
            can_condition = window.text.temperature <= MOST_CONDITIONING
            if options.condition_on_previous_text and can_condition:
                previous_tokens += [token for segment in segments for token in segment.tokens]
            else:
                previous_tokens = []
            yield position, segments

    def _read_window(
        self, features: Array, position: int, prompt: list[int], options: TranscribeOptions,
        engine: SpeechEngine,
    ) -> _Window:  # fmt: skip
        """Transcribe the window that begins at the frame `position`."""
        engine.encode(self._window_features(features, position))
        generator = np.random.default_rng((options.seed, position))
        rules = TokenRules(self.special, options.timestamps)
        text = options.fallback.choose(
            lambda temperature: decode(engine, self.special, prompt, rules, temperature, generator),
            lambda window: self._text(window.best.tokens).strip(),
        )
        frames = min(self._window_frames, features.shape[1] - position)
        if options.fallback.silent(text):
            return _Window(text, [], frames)
        segments, covered = self._segments(text, position, frames, options.timestamps)
        words = self._words(engine, segments, frames // STEP, options) if options.words else []
        return _Window(text, segments, covered, words)

    def _start(self, options: TranscribeOptions) -> list[int]:
        """Return the control tokens that precede every text."""
        special, language = self.special, options.language
        if not special.languages or language is None:
            return [special.start]
        return [special.start, special.languages[language], special.tasks[options.task]]

    def _prompt(self, previous_tokens: list[int], options: TranscribeOptions) -> list[int]:
        """Return the prompt of a window. previous_tokens: of the text before the window."""
        special, prompt = self.special, list[int]()
        limit = self.config.decoder.context // 2 - 1
        if previous_tokens and limit > 0:
            prompt += [special.previous, *previous_tokens[-limit:]]
        prompt += self._start(options)
        return prompt if options.timestamps else [*prompt, special.no_timestamps]

    def _words(
        self, engine: SpeechEngine, segments: Sequence[Segment], frames: int,
        options: TranscribeOptions,
    ) -> list[TimedWord]:  # fmt: skip
        """Return the words of a window's phrases. frames: of the encoder, without padding."""
        start, end, heads = self._start(options), self.special.end, self.alignment_heads
        text = [token for segment in segments for token in segment.tokens if token < end]
        if not text or not frames:
            return []
        tokens = [*start, self.special.no_timestamps, *text, end]
        rows = range(len(start), len(start) + len(text))
        layers = sorted({layer for layer, _ in heads})
        logits, queries, keys = engine.align(tokens, rows, layers)
        keys = {layer: rows[:frames] for layer, rows in keys.items()}
        weights = attention_weights(queries, keys, heads, self.config.decoder.head_width)
        starts = first_frames(weights[len(start) : -1])
        probabilities = softmax(logits[:, :end].astype(np.float64))[np.arange(len(text)), text]
        words = split_words(text, self.tokenizer.decode, options.language in BY_LETTERS)
        return time_words(words, starts, probabilities.tolist())

    def _with_words(
        self,
        segments: Sequence[Segment],
        words: Sequence[TimedWord],
        offset: float,
        previous_end: float,
    ) -> list[Segment]:
        """Return phrases with their words, and with times that agree with these.

        offset: seconds at which the window begins. previous_end: seconds at which the phrase before
        it ended.
        """
        median = median_length(words)
        queue = deque(join_punctuation(cut_long_marks(words, median)))
        result = []
        for segment in segments:
            count = sum(token < self.special.end for token in segment.tokens)
            segment_words = list[Word]()
            while queue and count > 0:
                entry = queue.popleft()
                start, end = offset + entry.word.start, offset + entry.word.end
                segment_words.append(replace(entry.word, start=start, end=end))
                count -= entry.tokens
            if segment_words:
                placed, start, end = place_words(
                    segment_words, segment.start, segment.end, median, previous_end
                )
                segment = replace(segment, words=placed, start=start, end=end)
                previous_end = end
            result.append(segment)
        return result

    def _text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without timestamps."""
        return self.tokenizer.decode([token for token in tokens if token < self.special.end])

    def _segments(
        self, window: WindowText, position: int, frames: int, timestamps: bool
    ) -> tuple[list[Segment], int]:
        """Return the phrases of a window, and how many of its frames they cover.

        position: the window's first frame. frames: of the window, without padding. A last phrase
        that begins and does not end is left out: the next window begins with it.
        """
        first, _ = self.special.timestamps
        tokens = window.best.tokens
        phrases: list[tuple[int, int, tuple[int, ...]]] = []
        covered = frames
        cuts = [i for i in range(1, len(tokens)) if tokens[i] >= first and tokens[i - 1] >= first]
        if timestamps and cuts:
            if self._ends_phrase(tokens):
                cuts.append(len(tokens))
            else:
                covered = STEP * (tokens[cuts[-1] - 1] - first)
            for begin, end in zip([0, *cuts], cuts):
                phrase = tokens[begin:end]
                times = [STEP * max(token - first, 0) for token in (phrase[0], phrase[-1])]
                phrases.append((times[0], times[1], phrase))
        else:
            times = [token - first for token in tokens if token > first]
            phrases.append((0, STEP * times[-1] if timestamps and times else frames, tokens))
        segments = []
        for start, end, phrase in phrases:
            seconds = [(position + frame) * HOP / RATE for frame in (start, end)]
            scores = window.best.mean, window.no_speech, window.temperature
            segments.append(Segment(seconds[0], seconds[1], self._text(phrase), phrase, *scores))
        return segments, covered

    def _ends_phrase(self, tokens: Sequence[int]) -> bool:
        """Return True where the last token is the timestamp that ends a phrase."""
        first, _ = self.special.timestamps
        return len(tokens) > 1 and tokens[-1] >= first and tokens[-2] < first

    def _options(
        self, language: str | None, task: str, timestamps: bool, words: bool, prompt: str,
        previous: bool, temperature: float | Sequence[float], limits: Mapping[str, float],
        seed: int,
    ) -> TranscribeOptions:  # fmt: skip
        """Return the options of a recording. Raises ModelError for invalid ones."""
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
        temperatures = temperature if isinstance(temperature, Sequence) else [temperature]
        if not temperatures or not all(_is_number(t) and t >= 0 for t in temperatures):
            raise ModelError(
                f"temperature must be a number of 0 or more, or several, got {shown(temperature)}"
            )
        text = prompt.strip()
        tokens = self.tokenizer.encode(f" {text}", special=False) if text else []
        fallback = Fallback(tuple(map(float, temperatures)), *map(float, limits.values()))
        return TranscribeOptions(
            language if self.special.languages else "en", task, timestamps, words, tuple(tokens),
            previous, fallback, seed,
        )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value

"""SpeechToText: windows, phrases, languages, options."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import ModelError
from glnn.generation.speech.decoding import Hypothesis, WindowText
from glnn.generation.speech.log_mel import log_mel
from glnn.generation.speech.speech_to_text import Segment
from glnn.generation.speech.subtitles import srt, vtt
from tests.generation.speech.test_decoding import SPECIAL, beam_search
from tests.generation.speech.whisper_folders import (
    CONTEXT,
    ENGLISH,
    FIRST,
    FRAMES,
    FRENCH,
    GENERATION,
    GERMAN,
    HEADS,
    LAYERS,
    NO_TIMESTAMPS,
    PREVIOUS,
    START,
    TRANSCRIBE,
    TRANSLATE,
    hugging_face,
    weights,
)
from tests.generation.speech.whisper_reference import Definition

WINDOW = 2 * FRAMES * 160  # samples


def letters(text: str) -> list[int]:
    return [ord(letter) - 32 for letter in text]


def noise(windows: float, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (0.1 * generator.standard_normal(round(windows * WINDOW))).astype(np.float32)


@pytest.fixture
def speech(tmp_path: Path) -> glnn.SpeechToText:
    return glnn.SpeechToText(hugging_face(tmp_path / "model", weights()), backend="cpu")


class DefinedTexts:
    """Logits by the definition, for the search of test_decoding."""

    def __init__(self, definition: Definition, features: np.ndarray) -> None:
        self._definition, self._encoded = definition, definition.encode(features)

    def of(self, tokens: Sequence[int]) -> np.ndarray:
        prompt = [START, ENGLISH, TRANSCRIBE]
        return self._definition.logits(self._encoded, [*prompt, *tokens[len(prompt) :]])[-1]


@pytest.mark.parametrize("beams", [1, 3])
def test_tokens_of_a_window_are_those_of_the_definition(tmp_path: Path, backend, beams) -> None:
    tensors, samples = weights(7), noise(0.7)
    speech = glnn.SpeechToText(hugging_face(tmp_path, tensors), backend=backend, beams=beams)
    features = log_mel(samples, 80)
    features = np.pad(features, ((0, 0), (0, 2 * FRAMES - features.shape[1])))
    expected, total = beam_search(DefinedTexts(Definition(tensors, HEADS, LAYERS), features), beams)
    found = speech.transcribe(samples, language="en", no_speech_threshold=1.0, temperature=0)
    assert found.language == "en"
    assert found.duration == pytest.approx(0.56)
    assert found.segments, "the model says nothing"
    assert expected[: len(found.segments[0].tokens)] == list(found.segments[0].tokens)
    mean = total / (len(expected) + 1)
    assert found.segments[0].log_probability == pytest.approx(mean, abs=1e-4)


class Script:
    """Stands for `decode`: gives texts one after the other, keeps the prompts and temperatures."""

    def __init__(
        self, monkeypatch, *texts: list[int], no_speech: float = 0.0, means: Sequence[float] = ()
    ) -> None:
        self.prompts: list[list[int]] = []
        self.temperatures: list[float] = []
        self._texts, self._no_speech = iter(texts), no_speech
        self._means = iter([*means, *[-3.0] * len(texts)])
        monkeypatch.setattr("glnn.generation.speech.speech_to_text.decode", self)

    def __call__(self, engine, special, prompt, rules, temperature, generator) -> WindowText:
        self.prompts.append(list(prompt))
        self.temperatures.append(temperature)
        tokens = tuple(next(self._texts))
        best = Hypothesis(tokens, next(self._means) * (len(tokens) + 1))
        return WindowText(best, self._no_speech, temperature)


def phrases(speech, samples, **options) -> list[tuple[float, float, str]]:
    options = {"temperature": 0.0, **options}
    found = speech.transcribe(samples, language="en", **options).segments
    return [(round(one.start, 3), round(one.end, 3), one.text) for one in found]


def test_phrases_have_the_times_of_their_tokens(speech, monkeypatch) -> None:
    time = FIRST
    Script(
        monkeypatch,
        # Two phrases, and one that begins at 0.6 s and does not end: the next window begins there.
        [time, *letters("ab"), time + 10, time + 12, *letters("c"), time + 30, time + 31,
         *letters("lost")],
        # The second window, of 0.6 s to 1.4 s, ends with a phrase: the next begins at its end.
        [time + 1, *letters("d"), time + 20, time + 21, *letters("e"), time + 35],
        # One without timestamps has the whole rest, of 1.4 s to 1.6 s.
        letters("f"),
    )  # fmt: skip
    assert phrases(speech, noise(2)) == [
        (0.0, 0.2, "ab"), (0.24, 0.6, "c"), (0.62, 1.0, "d"), (1.02, 1.3, "e"), (1.4, 1.6, "f"),
    ]  # fmt: skip


def test_one_phrase_ends_at_its_last_timestamp(speech, monkeypatch) -> None:
    Script(monkeypatch, [FIRST, *letters("ab"), FIRST + 10], [FIRST, *letters(" c")])
    found = speech.transcribe(noise(1.5), language="en", temperature=0)
    assert [(one.start, one.end) for one in found.segments] == [(0.0, 0.2), (0.8, 1.2)]
    assert found.text == "ab c"


def test_phrases_of_no_text_or_time_are_left_out(speech, monkeypatch) -> None:
    time = FIRST
    Script(
        monkeypatch,
        [time, *letters(" "), time + 5, time + 6, *letters("a"), time + 6, time + 9, *letters("b"),
         time + 20],
    )  # fmt: skip
    assert phrases(speech, noise(1)) == [(0.18, 0.4, "b")]


def test_prompts_have_the_text_before_where_that_is_asked_for(speech, monkeypatch) -> None:
    one, two = [FIRST, *letters("ab"), FIRST + 40], [FIRST, *letters("c"), FIRST + 40]
    begin = [START, ENGLISH, TRANSCRIBE]
    for options, expected in (
        ({}, [begin, begin]),
        ({"condition_on_previous_text": True}, [begin, [PREVIOUS, *one, *begin]]),
        ({"prompt": " Hi "}, [[PREVIOUS, *letters(" Hi"), *begin], begin]),
        (
            {"prompt": "Hi", "condition_on_previous_text": True},
            [
                [PREVIOUS, *letters(" Hi"), *begin],
                [PREVIOUS, *letters(" Hi"), *one, *begin],
            ],
        ),
    ):
        script = Script(monkeypatch, one, two)
        speech.transcribe(noise(2), language="en", temperature=0, **options)
        assert script.prompts == expected
    script = Script(monkeypatch, letters("a"))
    speech.transcribe(
        noise(1), language="de", task="translate", timestamps=False, prompt="x" * 99, temperature=0
    )
    kept = CONTEXT // 2 - 1
    expected = [PREVIOUS, *letters("x" * kept), START, GERMAN, TRANSLATE, NO_TIMESTAMPS]
    assert script.prompts == [expected]


def test_windows_without_speech_are_left_out(speech, monkeypatch) -> None:
    text = [FIRST, *letters("ab"), FIRST + 10]
    for options, silent in (
        ({}, True),  # no speech 0.7, tokens -3.0
        ({"no_speech_threshold": 0.8}, False),
        ({"log_probability_threshold": -4.0}, False),
    ):
        Script(monkeypatch, text, no_speech=0.7)
        assert phrases(speech, noise(1), **options) == ([] if silent else [(0.0, 0.2, "ab")])


AGAIN = [FIRST, *letters("ha" * 40), FIRST + 10]
FINE, OTHER = [FIRST, *letters("ab"), FIRST + 10], [FIRST, *letters("cd"), FIRST + 10]


@pytest.mark.parametrize(
    ("texts", "means", "no_speech", "expected", "temperature"),
    [
        ([FINE], [-0.9], 0.0, "ab", 0.0),
        ([AGAIN, FINE], [-0.1, -0.9], 0.0, "ab", 0.2),  # "hahaha..." is compressed six times
        ([FINE, OTHER], [-1.1, -0.9], 0.0, "cd", 0.2),
        ([FINE], [-1.1], 0.7, "", None),  # of a silent window unlikely tokens are taken
        ([AGAIN, FINE, OTHER, *3 * [AGAIN]], [-0.1, -1.5, -1.2, *3 * [-0.1]], 0.0, "cd", 1.0),
        ([AGAIN, *5 * [AGAIN]], [-0.4, *5 * [-0.6]], 0.0, "ha" * 40, 1.0),
    ],
)
def test_windows_are_chosen_anew(
    speech, monkeypatch, texts, means, no_speech, expected, temperature
) -> None:
    script = Script(monkeypatch, *texts, no_speech=no_speech, means=means)
    found = speech.transcribe(noise(1), language="en")
    assert script.temperatures == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0][: len(texts)]
    assert found.text == expected
    assert [one.temperature for one in found.segments] == [temperature] * (temperature is not None)


def test_texts_at_high_temperatures_are_told_to_no_window(speech, monkeypatch) -> None:
    begin = [START, ENGLISH, TRANSCRIBE]
    one, two = [FIRST, *letters("ab"), FIRST + 40], [FIRST, *letters("c"), FIRST + 40]
    for temperature, told in ((0.5, [PREVIOUS, *one]), (0.6, [])):
        script = Script(monkeypatch, one, two)
        speech.transcribe(
            noise(2), language="en", temperature=temperature, condition_on_previous_text=True
        )
        assert script.prompts == [begin, [*told, *begin]]


def test_draws_are_those_of_the_seed(speech) -> None:
    samples = noise(2.5)

    def tokens(**options) -> list[tuple[int, ...]]:
        found = speech.transcribe(samples, language="en", temperature=1.0, **options)
        return [one.tokens for one in found.segments]

    assert tokens() == tokens(seed=0) != tokens(seed=1)


@pytest.mark.parametrize("count", [0, 1, 159])
def test_recordings_shorter_than_a_frame_have_no_text(speech, count) -> None:
    found = speech.transcribe(np.zeros(count, np.float32), language="en")
    assert found.segments == () and found.text == ""


def test_languages(tmp_path: Path, speech) -> None:
    definition, samples = Definition(weights(), HEADS, LAYERS), noise(1.3)
    encoded = definition.encode(log_mel(samples, 80)[:, : 2 * FRAMES])
    powers = np.exp(definition.logits(encoded, [START])[0, [ENGLISH, GERMAN, FRENCH]])
    shares = dict(zip(("en", "de", "fr"), powers / powers.sum()))
    found = speech.detect_language(samples)
    assert list(found) == sorted(shares, key=lambda code: -shares[code])
    for code, share in shares.items():
        assert abs(found[code] - share) < 1e-5
    assert speech.transcribe(samples).language == next(iter(found))
    assert set(speech.languages) == {"en", "de", "fr"}


def test_models_of_english_have_no_languages(tmp_path: Path, monkeypatch) -> None:
    said = {**GENERATION, "is_multilingual": False}
    speech = glnn.SpeechToText(hugging_face(tmp_path, weights(), said), backend="cpu")
    assert speech.languages == ("en",)
    assert speech.detect_language(noise(1)) == {"en": 1.0}
    script = Script(monkeypatch, letters("a"), letters("a"))
    assert speech.transcribe(noise(1), temperature=0).language == "en"
    assert script.prompts == [[START]]
    with pytest.raises(ModelError, match="language must be one of en, got 'de'"):
        speech.transcribe(noise(1), language="de")
    with pytest.raises(ModelError, match="task of this model must be transcribe, got 'translate'"):
        speech.transcribe(noise(1), task="translate")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "xx"}, "language must be one of en, de, fr, got 'xx'"),
        ({"task": "sing"}, "must be transcribe or translate, got 'sing'"),
        ({"prompt": 3}, "prompt must be text, got 3"),
        ({"timestamps": 1}, "timestamps must be True or False, got 1"),
        ({"condition_on_previous_text": None}, "must be True or False, got None"),
        ({"no_speech_threshold": "x"}, "no_speech_threshold must be a number, got 'x'"),
        ({"log_probability_threshold": float("nan")}, "must be a number, got nan"),
        ({"compression_threshold": True}, "compression_threshold must be a number, got True"),
        ({"temperature": -0.1}, "temperature must be a number of 0 or more, or several, got -0.1"),
        ({"temperature": []}, "of 0 or more, or several, got"),
        ({"temperature": "0.2"}, "of 0 or more, or several, got '0.2'"),
        ({"temperature": (0.0, None)}, "of 0 or more, or several, got"),
        ({"seed": -1}, "seed must be an integer from 0 to"),
    ],
)
def test_options_that_cannot_be(speech, options, message) -> None:
    with pytest.raises(ModelError, match=message):
        speech.transcribe(noise(1), **options)


@pytest.mark.parametrize("beams", [0, 33, 1.5])
def test_beams_that_cannot_be(tmp_path: Path, beams) -> None:
    with pytest.raises(ModelError, match="beams must be an integer from 1 to 32"):
        glnn.SpeechToText(tmp_path, beams=beams)


def test_models_have_one_class_by_either_name() -> None:
    from glnn.generation import LanguageModel, SpeechToText

    assert glnn.SpeechToText is SpeechToText and glnn.LanguageModel is LanguageModel


def test_it_cannot_be_pickled(speech) -> None:
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        pickle.dumps(speech)
    assert repr(speech).endswith(", cpu)")


def test_threads_take_turns(speech) -> None:
    recordings = [noise(1.5, seed) for seed in range(4)]
    expected = [speech.transcribe(one, language="en") for one in recordings]
    found: dict[int, object] = {}

    def work(i: int) -> None:
        found[i] = speech.transcribe(recordings[i], language="en")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


def test_a_window_is_computed_again_after_the_device_was_lost(tmp_path: Path, monkeypatch) -> None:
    from glnn.errors import DeviceError
    from glnn.generation.speech import speech_to_text

    try:
        speech = glnn.SpeechToText(hugging_face(tmp_path, weights()), backend="compute")
    except DeviceError as error:
        pytest.skip(str(error))
    expected = speech.transcribe(noise(2), language="en")
    decode, calls = speech_to_text.decode, []

    def losing(engine, *arguments) -> WindowText:
        calls.append(engine.backend.device)
        if len(calls) == 2:
            engine.backend.device._reset_status = lambda: 0x8254
        return decode(engine, *arguments)

    monkeypatch.setattr(speech_to_text, "decode", losing)
    assert speech.transcribe(noise(2), language="en") == expected
    assert calls[2] is not calls[1]


def test_subtitles() -> None:
    found = [
        Segment(0.0, 1.5, " a & <b>\n\nc", (), 0.0, 0.0),
        Segment(3661.0004, 3662.9999, "d --> e", (), 0.0, 0.0),
    ]
    assert srt(found) == (
        "1\n00:00:00,000 --> 00:00:01,500\na & <b> c\n\n2\n01:01:01,000 --> 01:01:03,000\nd --> e\n"
    )
    assert vtt(found) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\na &amp; &lt;b&gt; c\n\n"
        "01:01:01.000 --> 01:01:03.000\nd --&gt; e\n"
    )
    assert srt([]) == "" and vtt([]) == "WEBVTT\n"


def test_the_tests_tokens_are_the_folders(speech) -> None:
    languages = {"en": ENGLISH, "de": GERMAN, "fr": FRENCH}
    assert speech.special == replace(SPECIAL, languages=languages)

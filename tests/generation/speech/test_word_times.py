"""Times of words: attention by its definition, paths by trying all, words and their pauses."""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import ModelError
from glnn.generation.speech.log_mel import log_mel
from glnn.generation.speech.whisper_files import open_whisper
from glnn.generation.speech.word_times import (
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
from tests.generation.speech.test_speech_to_text import Script, letters, noise
from tests.generation.speech.whisper_folders import (
    END,
    ENGLISH,
    FIRST,
    FRAMES,
    GENERATION,
    HEADS,
    LAYERS,
    NO_TIMESTAMPS,
    START,
    TRANSCRIBE,
    WIDTH,
    hugging_face,
    weights,
)
from tests.generation.speech.whisper_reference import Definition

generator = np.random.default_rng(0)


def smoothed(weights: np.ndarray) -> np.ndarray:
    """The median of seven frames, by loops."""
    rows, columns = weights.shape
    found = np.empty_like(weights)
    for i in range(rows):
        for j in range(columns):
            near = []
            for k in range(j - 3, j + 4):
                k = -k if k < 0 else 2 * (columns - 1) - k if k >= columns else k
                near.append(weights[i, k])
            found[i, j] = sorted(near)[3]
    return found


def defined_weights(queries, keys, heads, width) -> np.ndarray:
    """Weights of heads, by loops over them and their tokens."""
    total = []
    for layer, head in heads:
        columns = range(head * width, (head + 1) * width)
        q, k = queries[layer][:, columns], keys[layer][:, columns]
        rows = []
        for one in q:
            powers = np.exp(k @ one / width**0.5)
            rows.append(powers / powers.sum())
        table = np.array(rows)
        for j in range(table.shape[1]):
            column = table[:, j]
            table[:, j] = (column - column.mean()) / np.sqrt(((column - column.mean()) ** 2).mean())
        total.append(smoothed(table))
    return sum(total) / len(heads)


def test_attention_weights() -> None:
    queries = {layer: generator.standard_normal((5, 12)) for layer in (1, 3)}
    keys = {layer: generator.standard_normal((20, 12)) for layer in (1, 3)}
    heads = [(1, 0), (3, 2), (3, 1)]
    found = attention_weights(queries, keys, heads, 4)
    np.testing.assert_allclose(found, defined_weights(queries, keys, heads, 4), rtol=1e-9)
    few = attention_weights(queries, {layer: one[:3] for layer, one in keys.items()}, heads, 4)
    assert few.shape == (5, 3) and np.isfinite(few).all()
    same = attention_weights({1: np.zeros((4, 12))}, {1: keys[1]}, [(1, 0)], 4)
    assert not same.any()


def paths(rows: int, columns: int, i: int = 0, j: int = 0) -> Iterator[list[tuple[int, int]]]:
    """All paths from a cell to the last one."""
    if (i, j) == (rows - 1, columns - 1):
        yield [(i, j)]
        return
    for step in ((1, 1), (1, 0), (0, 1)):
        place = i + step[0], j + step[1]
        if place[0] < rows and place[1] < columns:
            for rest in paths(rows, columns, *place):
                yield [(i, j), *rest]


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (5, 1), (3, 6), (5, 5), (6, 3)])
def test_first_frames_are_of_the_best_path(shape) -> None:
    for _ in range(5):
        table = generator.standard_normal(shape)
        best = max(paths(*shape), key=lambda path: sum(table[cell] for cell in path))
        expected = [min(j for i, j in best if i == row) for row in range(shape[0])]
        assert first_frames(table) == expected


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (5, 3)])
def test_first_frames_are_of_a_best_path_where_sums_are_equal(shape) -> None:
    for seed in range(20):
        table = np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float64)
        every = list(paths(*shape))
        sums = [sum(table[cell] for cell in path) for path in every]
        best = [path for path, total in zip(every, sums, strict=True) if total == max(sums)]
        starts = [[min(j for i, j in path if i == row) for row in range(shape[0])] for path in best]
        assert first_frames(table) in starts


def test_long_tables_take_little_time() -> None:
    table = np.full((230, 1500), -1.0)
    spoken = np.sort(generator.choice(1500, 229, replace=False))
    edges = [0, *spoken.tolist(), 1500]
    for row, (first, last) in enumerate(pairwise(edges)):
        table[row, first:last] = 1.0
    assert first_frames(table) == edges[:-1]


PIECES = {
    1: " Hello", 2: " wor", 3: "ld", 4: ",", 5: "(", 6: " (", 7: "x", 8: ")", 9: " it", 10: "'s",
}  # fmt: skip
BYTES = {20: b" \xe4\xbd", 21: b"\xa0", 22: b"\xe5\xa5\xbd", 23: b"\xe5", 24: b"\xa5"}


def decoded(tokens) -> str:
    parts = [BYTES[one] if one in BYTES else PIECES[one].encode() for one in tokens]
    return b"".join(parts).decode("utf-8", "replace")


def test_words_begin_with_spaces() -> None:
    words = split_words([1, 2, 3, 4, 6, 7, 8, 9, 10], decoded, by_letters=False)
    assert words == [
        (" Hello", 1), (" world", 2), (",", 1), (" (x", 2), (")", 1), (" it's", 2),
    ]  # fmt: skip
    assert split_words([], decoded, by_letters=False) == []
    assert split_words([3, 1], decoded, by_letters=False) == [("ld", 1), (" Hello", 1)]
    assert ("(" in string.punctuation) and split_words([7, 5], decoded, False)[1] == ("(", 1)


def test_letters_of_several_tokens_stay_together() -> None:
    assert split_words([20, 21, 22], decoded, by_letters=True) == [(" 你", 2), ("好", 1)]
    assert split_words([20, 21, 22, 1], decoded, by_letters=False) == [(" 你好", 3), (" Hello", 1)]
    broken = split_words([1, 23, 24], decoded, by_letters=True)  # a letter without its end
    assert sum(count for _, count in broken) == 3


def word(text: str, start: float, end: float, tokens: int = 1) -> TimedWord:
    return TimedWord(Word(text, start, end, 0.5), tokens)


def test_words_have_the_times_and_probabilities_of_their_tokens() -> None:
    found = time_words([(" a", 2), ("b", 1)], [10, 15, 20, 50], [0.2, 0.6, 0.9])
    assert [one.tokens for one in found] == [2, 1]
    for one, expected in zip(found, ((" a", 0.2, 0.4, 0.4), ("b", 0.4, 1.0, 0.9))):
        assert one.word.text == expected[0]
        got = one.word.start, one.word.end, one.word.probability
        np.testing.assert_allclose(got, expected[1:])


def test_medians() -> None:
    assert median_length([]) == 0.0
    lengths = [word("a", 0, 0), word("a", 0, 0.2), word("a", 0, 0.4), word("a", 0, 0.5)]
    assert median_length(lengths) == pytest.approx(0.4)
    assert median_length([word("a", 0, 3)]) == 0.7


def test_pauses_at_ends_of_sentences_are_cut() -> None:
    words = [word(" a", 0, 0.2), word(".", 0.2, 2.0), word(" b", 2.0, 4.0), word(" c", 4.0, 9.0)]
    found = [(one.word.start, one.word.end) for one in cut_long_marks(words, 0.2)]
    np.testing.assert_allclose(found, [(0, 0.2), (0.2, 0.6), (3.6, 4.0), (4.0, 9.0)])


def test_punctuation_belongs_to_words() -> None:
    words = [
        word(' "', 0, 1), word(" (", 1, 2), word("a", 2, 3, 2), word(",", 3, 4), word('"', 4, 5),
        word(" b", 5, 6), word(" -", 6, 7), word(" c", 7, 8), word("!", 8, 9),
    ]  # fmt: skip
    found = join_punctuation(words)
    assert [(one.word.text, one.tokens) for one in found] == [
        (' " (a,"', 6), (" b", 1), (" - c!", 3),
    ]  # fmt: skip
    assert [(one.word.start, one.word.end) for one in found] == [(2, 3), (5, 6), (7, 8)]


def placed(*words: tuple[float, float], start: float, end: float, before: float = 0.0):
    """Times of words, and of their phrase, where the median is 0.2 s."""
    given = [Word("a", *times, 0.5) for times in words]
    found, first, last = place_words(given, start, end, 0.2, before)
    return [(round(one.start, 3), round(one.end, 3)) for one in found], round(first, 3), last


def test_phrases_begin_and_end_with_their_words() -> None:
    assert placed((1.0, 1.3), (1.3, 1.5), start=0.9, end=1.6) == (
        [(1.0, 1.3), (1.3, 1.5)], 1.0, 1.5,
    )  # fmt: skip
    # The first word has the pause before it: it is of 0.4 s at most.
    assert placed((1.0, 3.0), (3.0, 3.2), start=2.5, end=3.2) == (
        [(2.6, 3.0), (3.0, 3.2)], 2.6, 3.2,
    )  # fmt: skip
    # So has the second.
    assert placed((1.0, 1.1), (1.1, 3.0), start=1.0, end=3.0)[0] == [(2.2, 2.6), (2.6, 3.0)]
    # There is none where the phrase before it ended just then; then its own times are believed.
    assert placed((1.0, 3.0), (3.0, 3.2), start=2.5, end=3.2, before=2.9) == (
        [(2.5, 3.0), (3.0, 3.2)], 2.5, 3.2,
    )  # fmt: skip
    # The last word goes on beyond the phrase's end.
    assert placed((1.0, 1.2), (1.2, 4.0), start=1.0, end=2.0, before=1.0) == (
        [(1.0, 1.2), (1.2, 2.0)], 1.0, 2.0,
    )  # fmt: skip


def test_words_of_a_recording_are_those_of_the_definition(
    tmp_path: Path, backend, monkeypatch
) -> None:
    """By the scores of a model whose alignment heads its settings name; each letter is a word."""

    def spaced(tokens, decode, by_letters) -> list[tuple[str, int]]:
        return [(f" {decode([token])}", 1) for token in tokens]

    monkeypatch.setattr("glnn.generation.speech.speech_to_text.split_words", spaced)
    tensors, samples = weights(7), noise(0.7)
    heads = [[1, 0], [0, 1]]
    folder = hugging_face(tmp_path, tensors, {**GENERATION, "alignment_heads": heads})
    speech = glnn.SpeechToText(folder, backend=backend)
    options = {"language": "en", "no_speech_threshold": 1.0, "temperature": 0}
    plain = speech.transcribe(samples, **options)
    text = [one for segment in plain.segments for one in segment.tokens if one < END]
    found = speech.transcribe(samples, words=True, **options)
    assert found.text == plain.text and len(text) > 3

    definition = Recorded(tensors, HEADS, LAYERS)
    features = np.pad(log_mel(samples, 80), ((0, 0), (0, 2 * FRAMES)))[:, : 2 * FRAMES]
    tokens = [START, ENGLISH, TRANSCRIBE, NO_TIMESTAMPS, *text, END]
    logits = definition.logits(definition.encode(features), tokens)
    frames = len(samples) // 160 // 2
    keys = {layer: one[:frames] for layer, one in definition.keys.items()}
    table = defined_weights(definition.queries, keys, heads, WIDTH // HEADS)[3:-1]
    powers = np.exp(logits[3 : 3 + len(text), :END])
    shares = powers[range(len(text)), text] / powers.sum(1)
    starts = first_frames(table)
    words = spaced(text, speech.tokenizer.decode, False)
    expected = time_words(words, starts, shares.tolist())
    median = median_length(expected)
    expected = join_punctuation(cut_long_marks(expected, median))
    got = [one for segment in found.segments for one in segment.words]
    assert [one.text for one in got] == [one.word.text for one in expected]
    for one, other in zip(got, expected):
        assert one.probability == pytest.approx(other.word.probability, rel=1e-3)
    inner = [(one, other.word) for one, other in zip(got, expected)][2:-1]
    assert len(inner) > 3 and len(found.segments) == 1
    for one, other in inner:  # the first two and the last may be cut
        assert (one.start, one.end) == pytest.approx((other.start, other.end), abs=1e-6)
    for segment in found.segments:
        assert segment.start <= segment.words[0].end and segment.end >= segment.words[-1].start


class Recorded(Definition):
    """The definition, which keeps the queries and keys of each layer's cross-attention."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.queries: dict[int, np.ndarray] = {}
        self.keys: dict[int, np.ndarray] = {}

    def attention(self, x, seen, name, causal=False):
        if "encoder_attn" in name:
            layer = int(name.split(".")[3])
            self.queries[layer] = self.linear(x, f"{name}.q_proj")
            self.keys[layer] = self.linear(seen, f"{name}.k_proj")
        return super().attention(x, seen, name, causal)


def test_the_next_window_begins_behind_the_last_word(tmp_path: Path, monkeypatch) -> None:
    speech = glnn.SpeechToText(hugging_face(tmp_path, weights()), backend="cpu")
    ended = [FIRST, *letters(" a b"), FIRST + 10]  # the phrase ends: the window is read
    open_end = [FIRST, *letters(" c d")]
    Script(monkeypatch, open_end, *[ended] * 9)
    monkeypatch.setattr(
        "glnn.generation.speech.speech_to_text.first_frames", lambda weights: [0, 5, 10, 15, 30]
    )
    found = speech.transcribe(noise(1), language="en", words=True, temperature=0).segments
    assert [one.text for one in found[0].words] == [" c", " d"]
    assert found[0].end == pytest.approx(0.6)
    assert found[1].words[0].start == pytest.approx(0.6)  # not the window's end, 0.8
    Script(monkeypatch, ended, *[ended] * 9)
    assert len(speech.transcribe(noise(1), language="en", words=True, temperature=0).segments) == 1


def test_alignment_heads(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path, weights())
    half = tuple((layer, head) for layer in range(LAYERS // 2, LAYERS) for head in range(HEADS))
    assert open_whisper(folder).alignment_heads == half
    for wrong in ([[0]], [[0, HEADS]], [[LAYERS, 0]], [[0, True]], [3], [[0, -1]]):
        hugging_face(tmp_path, weights(), {**GENERATION, "alignment_heads": wrong})
        with pytest.raises(ModelError, match="'alignment_heads' must be pairs of a layer below 2"):
            open_whisper(folder)
    hugging_face(tmp_path, weights(), {**GENERATION, "alignment_heads": [[1, 0]]})
    assert open_whisper(folder).alignment_heads == ((1, 0),)

"""Times of words, from the frames that the decoder attends to at each token.

Some heads of the decoder attend to the frames in which a token is spoken. Their weights, by token
and frame, are standardised and smoothed; dynamic time warping finds a path through them, from which
each token's first frame follows (openai/whisper, timing.py). A word that is much longer than others
includes a pause, and is shortened.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glnn.core.array_functions import softmax
from glnn.core.types import Array

MEDIAN_FRAMES = 7
"""Frames of the median filter."""
FRAME_S = 0.02
"""Seconds of a frame of the encoder's results."""
LONGEST = 2.0  # length of a word, in median lengths
MOST_MEDIAN_S = 0.7
PAUSE = 4.0  # from a phrase's end to the first word's end, in median lengths
SLACK_S = 0.5  # by which a word may begin before its phrase, or end after it
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""Punctuation that belongs to the next word, and to the word before it."""
BY_LETTERS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that write no spaces between words."""
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Word:
    """A word, its times in seconds, and the mean probability of its tokens."""

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class TimedWord:
    """A word and its number of tokens."""

    word: Word
    tokens: int


def attention_weights(
    queries: Mapping[int, Array],
    keys: Mapping[int, Array],
    heads: Sequence[tuple[int, int]],
    width: int,
) -> Array:
    """Return the heads' mean attention weights, standardised and smoothed, (tokens, frames).

    queries: by layer, (tokens, heads * width). keys: by layer, (frames, heads * width). heads: as
    (layer, head). width: of a head.
    """
    total: Array = np.zeros((len(queries[heads[0][0]]), len(keys[heads[0][0]])))
    for layer, head in heads:
        columns = slice(head * width, (head + 1) * width)
        scores = queries[layer][:, columns] @ keys[layer][:, columns].T / np.sqrt(width)
        weights = softmax(scores)
        deviation = weights.std(0)
        deviation[deviation == 0] = 1.0
        total += _median_filter((weights - weights.mean(0)) / deviation)
    return np.asarray(total / len(heads))


def _median_filter(weights: Array) -> Array:
    """Return the median of MEDIAN_FRAMES frames around each frame; both ends are mirrored."""
    reach = MEDIAN_FRAMES // 2
    if weights.shape[1] <= reach:
        return weights
    padded = np.pad(weights, ((0, 0), (reach, reach)), "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_FRAMES, axis=1)
    return np.asarray(np.median(windows, axis=2))


def first_frames(weights: Array) -> list[int]:
    """Return the first frame of each token on the path with the greatest sum of weights.

    weights: (tokens, frames). Each step of the path goes to the next token, the next frame, or both
    (dynamic time warping, Sakoe and Chiba 1978).
    """
    rows, columns = weights.shape
    totals = np.full((rows + 1, columns + 1), np.inf)
    totals[0, 0] = 0.0
    for diagonal in range(rows + columns - 1):  # its cells are independent of each other
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        least = np.minimum(np.minimum(totals[i, j], totals[i, j + 1]), totals[i + 1, j])
        totals[i + 1, j + 1] = least - weights[i, j]
    starts, i, j = [0] * rows, rows, columns
    while i > 0:
        starts[i - 1] = j - 1
        both, token, frame = totals[i - 1, j - 1], totals[i - 1, j], totals[i, j - 1]
        if frame <= min(both, token):
            j -= 1
        elif token < both:
            i -= 1
        else:
            i, j = i - 1, j - 1
    return starts


def split_words(
    tokens: Sequence[int], decode: Callable[[Sequence[int]], str], by_letters: bool
) -> list[tuple[str, int]]:
    """Return the words of a text, each with its number of tokens.

    A word begins with a space or is punctuation; by_letters: each letter is one.
    """
    full_text, offset, words = decode(tokens), 0, list[tuple[str, int]]()
    pending: list[int] = []  # tokens of an unfinished character
    for token in tokens:
        pending.append(token)
        text = decode(pending)
        i = text.find(REPLACEMENT)
        if i >= 0 and full_text[offset + i : offset + i + 1] != REPLACEMENT:
            continue  # the next token has more bytes of the character
        begins_word = by_letters or text.startswith(" ") or text.strip() in string.punctuation
        if begins_word or not words:
            words.append((text, len(pending)))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + len(pending)
        offset += len(text)
        pending = []
    if pending and words:
        words[-1] = words[-1][0] + decode(pending), words[-1][1] + len(pending)
    return words


def time_words(
    words: Sequence[tuple[str, int]], starts: Sequence[int], probabilities: Sequence[float]
) -> list[TimedWord]:
    """Return words with their times in the window.

    starts: the first frame of each token, then the frame at which the last one ends. probabilities:
    of the tokens.
    """
    timed_words, first = [], 0
    for text, count in words:
        last = first + count
        mean = float(np.mean(probabilities[first:last]))
        times = starts[first] * FRAME_S, starts[last] * FRAME_S
        timed_words.append(TimedWord(Word(text, *times, mean), count))
        first = last
    return timed_words


def median_length(words: Sequence[TimedWord]) -> float:
    """Return the median length of words in seconds, MOST_MEDIAN_S at most; 0 without words."""
    lengths = [w.word.end - w.word.start for w in words]
    return min(MOST_MEDIAN_S, float(np.median([n for n in lengths if n > 0] or [0.0])))


def cut_long_marks(words: Sequence[TimedWord], median: float) -> list[TimedWord]:
    """Shorten sentence-ending marks, and the words after them, that include the pause there."""
    result, longest = list(words), LONGEST * median
    for i in range(1, len(result)):
        word = result[i].word
        if word.end - word.start <= longest:
            continue
        if word.text in SENTENCE_ENDS:
            result[i] = replace(result[i], word=replace(word, end=word.start + longest))
        elif result[i - 1].word.text in SENTENCE_ENDS:
            result[i] = replace(result[i], word=replace(word, start=word.end - longest))
    return result


def join_punctuation(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Join punctuation to the words that it belongs to, whose times stay the same."""
    backward = list[TimedWord]()  # from the last word on
    for entry in reversed(words):
        text = entry.word.text
        if backward and text.startswith(" ") and text.strip() in OPENING:
            backward[-1] = _joined(backward[-1], text + backward[-1].word.text, entry.tokens)
        else:
            backward.append(entry)
    result = list[TimedWord]()
    for entry in reversed(backward):
        if result and not result[-1].word.text.endswith(" ") and entry.word.text in CLOSING:
            result[-1] = _joined(result[-1], result[-1].word.text + entry.word.text, entry.tokens)
        else:
            result.append(entry)
    return result


def _joined(entry: TimedWord, text: str, tokens: int) -> TimedWord:
    return TimedWord(replace(entry.word, text=text), entry.tokens + tokens)


def place_words(
    words: Sequence[Word], start: float, end: float, median: float, previous_end: float
) -> tuple[tuple[Word, ...], float, float]:
    """Return the words of a phrase without the pauses around it, and the phrase's start and end.

    start, end: the phrase's times by its timestamps. previous_end: when the phrase before it ended.
    """
    result, longest = list(words), LONGEST * median
    first = result[0]
    after_pause = first.end - previous_end > PAUSE * median
    two_long = len(result) > 1 and result[1].end - first.start > LONGEST * longest
    if after_pause and (first.end - first.start > longest or two_long):
        if len(result) > 1 and result[1].end - result[1].start > longest:
            boundary = max(result[1].end / 2, result[1].end - longest)
            result[0], result[1] = replace(first, end=boundary), replace(result[1], start=boundary)
        result[0] = replace(result[0], start=max(0.0, result[0].end - longest))
    if start < result[0].end and start - SLACK_S > result[0].start:
        result[0] = replace(result[0], start=max(0.0, min(result[0].end - median, start)))
    else:
        start = result[0].start
    if end > result[-1].start and end + SLACK_S < result[-1].end:
        result[-1] = replace(result[-1], end=max(result[-1].start + median, end))
    else:
        end = result[-1].end
    return tuple(result), start, end

"""Times of words: where the decoder's attention lies in a window while it reads their tokens.

Some heads of the decoder attend to the frames in which a token is spoken. Their weights, by token
and frame, are brought to one scale and smoothed; a path through them, by dynamic time warping, says
when each token begins (openai/whisper, timing.py). Words that are much longer than others have a
pause in them, and are cut.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glnn.core.array_functions import softmax
from glnn.core.types import Array

MEDIAN_FRAMES = 7
"""Frames of whose weights the median is taken."""
FRAME_S = 0.02
"""Seconds of a frame of the encoder's results."""
LONGEST = 2.0  # times the median of words' lengths
MOST_MEDIAN_S = 0.7
PAUSE = 4.0  # times the median
SLACK_S = 0.5  # that a word may begin before its phrase, or end behind it
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""Punctuation that belongs to the word behind it, and to the word before it."""
BY_LETTERS = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages whose words have no spaces between."""
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Word:
    """A word, its times in seconds, and the probability of its tokens in the mean."""

    text: str
    start: float
    end: float
    probability: float


@dataclass(frozen=True)
class TimedWord:
    """A word and how many tokens it has."""

    word: Word
    tokens: int


def attention_weights(
    queries: Mapping[int, Array],
    keys: Mapping[int, Array],
    heads: Sequence[tuple[int, int]],
    width: int,
) -> Array:
    """Return where the heads attend to, on one scale and smoothed, (tokens, frames), in the mean.

    queries: by layer, (tokens, heads * width). keys: likewise, of frames. heads: layers and heads.
    width: of a head.
    """
    total: Array = np.zeros((len(queries[heads[0][0]]), len(keys[heads[0][0]])))
    for layer, head in heads:
        part = slice(head * width, (head + 1) * width)
        weights = softmax(queries[layer][:, part] @ keys[layer][:, part].T / np.sqrt(width))
        deviation = weights.std(0)
        deviation[deviation == 0] = 1.0
        total += _median((weights - weights.mean(0)) / deviation)
    return np.asarray(total / len(heads))


def _median(weights: Array) -> Array:
    """Return the median of each MEDIAN_FRAMES frames, those beyond either end mirrored."""
    reach = MEDIAN_FRAMES // 2
    if weights.shape[1] <= reach:
        return weights
    padded = np.pad(weights, ((0, 0), (reach, reach)), "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_FRAMES, axis=1)
    return np.asarray(np.median(windows, axis=2))


def first_frames(weights: Array) -> list[int]:
    """Return the frame at which each token begins on the path of the greatest sum of weights.

    weights: (tokens, frames). From each token and frame the path goes on to the next token, the
    next frame, or both (Sakoe and Chiba 1978).
    """
    rows, columns = weights.shape
    totals = np.full((rows + 1, columns + 1), np.inf)
    totals[0, 0] = 0.0
    for diagonal in range(rows + columns - 1):  # of cells that do not hang on each other
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        before = np.minimum(np.minimum(totals[i, j], totals[i, j + 1]), totals[i + 1, j])
        totals[i + 1, j + 1] = before - weights[i, j]
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
    """Return the words of a text, and how many tokens each has.

    A word begins with a space or is punctuation; by_letters: each letter is one.
    """
    whole, place, words = decode(tokens), 0, list[tuple[str, int]]()
    part: list[int] = []
    for token in tokens:
        part.append(token)
        text = decode(part)
        there = text.find(REPLACEMENT)
        if there >= 0 and whole[place + there : place + there + 1] != REPLACEMENT:
            continue  # the bytes of a letter go on with the next token
        alone = by_letters or text.startswith(" ") or text.strip() in string.punctuation
        if alone or not words:
            words.append((text, len(part)))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + len(part)
        place += len(text)
        part = []
    if part and words:
        words[-1] = words[-1][0] + decode(part), words[-1][1] + len(part)
    return words


def time_words(
    words: Sequence[tuple[str, int]], starts: Sequence[int], probabilities: Sequence[float]
) -> list[TimedWord]:
    """Return words with their times in their window.

    starts: the frame at which each token begins, and that at which the last one ends.
    probabilities: of the tokens.
    """
    found, first = [], 0
    for text, count in words:
        last = first + count
        mean = float(np.mean(probabilities[first:last]))
        times = starts[first] * FRAME_S, starts[last] * FRAME_S
        found.append(TimedWord(Word(text, *times, mean), count))
        first = last
    return found


def median_length(words: Sequence[TimedWord]) -> float:
    """Return the median of the seconds of words, MOST_MEDIAN_S at most; 0 where there is none."""
    lengths = [one.word.end - one.word.start for one in words]
    return min(MOST_MEDIAN_S, float(np.median([one for one in lengths if one > 0] or [0.0])))


def cut_long_marks(words: Sequence[TimedWord], median: float) -> list[TimedWord]:
    """Return words of which none at either side of a sentence's end has the pause between them."""
    found, longest = list(words), LONGEST * median
    for i in range(1, len(found)):
        word = found[i].word
        if word.end - word.start <= longest:
            continue
        if word.text in SENTENCE_ENDS:
            found[i] = replace(found[i], word=replace(word, end=word.start + longest))
        elif found[i - 1].word.text in SENTENCE_ENDS:
            found[i] = replace(found[i], word=replace(word, start=word.end - longest))
    return found


def join_punctuation(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Return words with the punctuation that belongs to them; their times stay as they are."""
    found = list[TimedWord]()
    for one in reversed(words):
        text = one.word.text
        if found and text.startswith(" ") and text.strip() in OPENING:
            found[-1] = _joined(found[-1], text + found[-1].word.text, one.tokens)
        else:
            found.append(one)
    result = list[TimedWord]()
    for one in reversed(found):
        if result and not result[-1].word.text.endswith(" ") and one.word.text in CLOSING:
            result[-1] = _joined(result[-1], result[-1].word.text + one.word.text, one.tokens)
        else:
            result.append(one)
    return result


def _joined(one: TimedWord, text: str, tokens: int) -> TimedWord:
    return TimedWord(replace(one.word, text=text), one.tokens + tokens)


def place_words(
    words: Sequence[Word], start: float, end: float, median: float, before: float
) -> tuple[tuple[Word, ...], float, float]:
    """Return the words of a phrase without the pauses around it, and when it begins and ends.

    start, end: the phrase's times by its timestamps. before: when the phrase before it ended.
    """
    found, longest = list(words), LONGEST * median
    first = found[0]
    paused = first.end - before > PAUSE * median
    two = len(found) > 1 and found[1].end - first.start > LONGEST * longest
    if paused and (first.end - first.start > longest or two):
        if len(found) > 1 and found[1].end - found[1].start > longest:
            boundary = max(found[1].end / 2, found[1].end - longest)
            found[0], found[1] = replace(first, end=boundary), replace(found[1], start=boundary)
        found[0] = replace(found[0], start=max(0.0, found[0].end - longest))
    if start < found[0].end and start - SLACK_S > found[0].start:
        found[0] = replace(found[0], start=max(0.0, min(found[0].end - median, start)))
    else:
        start = found[0].start
    if end > found[-1].start and end + SLACK_S < found[-1].end:
        found[-1] = replace(found[-1], end=max(found[-1].start + median, end))
    else:
        end = found[-1].end
    return tuple(found), start, end
